//! The capabilities and limits of a device.

use crate::sys;
use std::fmt;

/// The capabilities and limits of a device. Each limit is the greatest number of one thing.
#[derive(Clone, Copy)]
#[doc(alias = "ibv_device_attr")]
pub struct DeviceAttributes(pub(super) sys::ibv_device_attr);

/// A limit that C declares as an `int`. Devices never report a negative one.
fn limit(value: i32) -> u32 {
    value.try_into().unwrap_or(0)
}

impl DeviceAttributes {
    /// The vendor, by the number that IEEE assigned.
    pub fn vendor_id(&self) -> u32 {
        self.0.vendor_id
    }

    /// The kind of device, by a number that the vendor assigned.
    pub fn vendor_part_id(&self) -> u32 {
        self.0.vendor_part_id
    }

    /// The version of the hardware, by a number that the vendor assigned.
    #[doc(alias = "hw_ver")]
    pub fn hardware_version(&self) -> u32 {
        self.0.hw_ver
    }

    /// The number of ports. Ports are numbered from 1.
    #[doc(alias = "phys_port_cnt")]
    pub fn port_count(&self) -> u8 {
        self.0.phys_port_cnt
    }

    /// The most queue pairs.
    #[doc(alias = "max_qp")]
    pub fn max_queue_pairs(&self) -> u32 {
        limit(self.0.max_qp)
    }

    /// The most outstanding requests of one work queue.
    #[doc(alias = "max_qp_wr")]
    pub fn max_queue_depth(&self) -> u32 {
        limit(self.0.max_qp_wr)
    }

    /// The most buffers of one list that is sent or received.
    #[doc(alias = "max_sge")]
    pub fn max_elements(&self) -> u32 {
        limit(self.0.max_sge)
    }

    /// The most shared receive queues; 0 if the device has none.
    #[doc(alias = "max_srq")]
    pub fn max_shared_receive_queues(&self) -> u32 {
        limit(self.0.max_srq)
    }

    /// The most receives of one shared receive queue.
    #[doc(alias = "max_srq_wr")]
    pub fn max_shared_receive_depth(&self) -> u32 {
        limit(self.0.max_srq_wr)
    }

    /// The most buffers of one list that a shared receive queue takes.
    #[doc(alias = "max_srq_sge")]
    pub fn max_shared_receive_elements(&self) -> u32 {
        limit(self.0.max_srq_sge)
    }

    /// The most address handles.
    #[doc(alias = "max_ah")]
    pub fn max_address_handles(&self) -> u32 {
        limit(self.0.max_ah)
    }

    /// The most multicast groups.
    #[doc(alias = "max_mcast_grp")]
    pub fn max_multicast_groups(&self) -> u32 {
        limit(self.0.max_mcast_grp)
    }

    /// The most queue pairs in one multicast group.
    #[doc(alias = "max_mcast_qp_attach")]
    pub fn max_queue_pairs_per_group(&self) -> u32 {
        limit(self.0.max_mcast_qp_attach)
    }

    /// The most memory windows; 0 if the device has none.
    #[doc(alias = "max_mw")]
    pub fn max_windows(&self) -> u32 {
        limit(self.0.max_mw)
    }

    /// The most completion queues.
    #[doc(alias = "max_cq")]
    pub fn max_completion_queues(&self) -> u32 {
        limit(self.0.max_cq)
    }

    /// The most protection domains.
    #[doc(alias = "max_pd")]
    pub fn max_domains(&self) -> u32 {
        limit(self.0.max_pd)
    }

    /// The longest time that the device takes to acknowledge, as an exponent like that of
    /// [`AckTimeout`](crate::number::AckTimeout).
    #[doc(alias = "local_ca_ack_delay")]
    pub fn acknowledgement_delay(&self) -> u8 {
        self.0.local_ca_ack_delay
    }

    /// The most entries of one completion queue.
    #[doc(alias = "max_cqe")]
    pub fn max_completion_entries(&self) -> u32 {
        limit(self.0.max_cqe)
    }

    /// The most bytes of one memory region.
    #[doc(alias = "max_mr_size")]
    pub fn max_region_bytes(&self) -> u64 {
        self.0.max_mr_size
    }

    /// The most memory regions.
    #[doc(alias = "max_mr")]
    pub fn max_regions(&self) -> u32 {
        limit(self.0.max_mr)
    }

    /// The most reads and atomics that a queue pair serves at once as the responder.
    #[doc(alias = "max_qp_rd_atom")]
    pub fn max_responder_reads(&self) -> u32 {
        limit(self.0.max_qp_rd_atom)
    }

    /// The most reads and atomics that a queue pair has outstanding at once as the requester.
    #[doc(alias = "max_qp_init_rd_atom")]
    pub fn max_initiator_reads(&self) -> u32 {
        limit(self.0.max_qp_init_rd_atom)
    }

    /// Whether the device has atomics. They are atomic at least among the accesses through this device.
    #[doc(alias = "atomic_cap")]
    pub fn has_atomics(&self) -> bool {
        self.0.atomic_cap != sys::ibv_atomic_cap::IBV_ATOMIC_NONE
    }

    /// Whether the device's atomics are also atomic with those of the processor and of other devices.
    #[doc(alias = "IBV_ATOMIC_GLOB")]
    pub fn atomics_reach_the_processor(&self) -> bool {
        self.0.atomic_cap == sys::ibv_atomic_cap::IBV_ATOMIC_GLOB
    }

    /// The version of its firmware, as the device spells it.
    #[doc(alias = "fw_ver")]
    pub fn firmware(&self) -> String {
        let bytes: Vec<u8> = self.0.fw_ver.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl fmt::Debug for DeviceAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceAttributes")
            .field("firmware", &self.firmware())
            .field("ports", &self.port_count())
            .field("max_queue_pairs", &self.max_queue_pairs())
            .field("max_queue_depth", &self.max_queue_depth())
            .field("max_completion_entries", &self.max_completion_entries())
            .field("max_regions", &self.max_regions())
            .field("max_responder_reads", &self.max_responder_reads())
            .field("max_initiator_reads", &self.max_initiator_reads())
            .field("has_atomics", &self.has_atomics())
            .finish_non_exhaustive()
    }
}
