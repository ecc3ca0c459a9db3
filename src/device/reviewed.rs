//! The one list of providers that keep peers inside of memory windows, and out of those that have ended.
//!
//! Where a provider is on it, memory that a window gave to peers is the program's again when the window has ended.
//! Elsewhere that takes the deregistration of the region. What is asked of a provider:
//!
//! 1. through a window, a peer reaches the bytes that it was bound to, and no others of its region;
//! 2. when the invalidation of a window of type 2 has completed, or the unbinding of one of type 1, or
//!    `ibv_dealloc_mw` has returned 0, the device has done its last access through the window, those that had begun
//!    included;
//! 3. to invalidate a window that is not bound, because a peer has invalidated it, is a failed request and nothing
//!    worse; a peer's attempts are so too.
//!
//! | provider | on the list | reason |
//! |---|---|---|
//! | soft | yes | each access is one step under the device's lock, which looks the window up and checks its bounds; `provider/soft/tests/windows.rs` |
//! | mlx5 | type 2 is ended by requests, type 1 by `ibv_dealloc_mw` only | an entry of the table by which the card checks every access, bounds included. A window of type 2 is ended by the posted change of its entry by which the kernel's storage protocols end their registrations: these give pages to others when it has completed. It serves the pair on which that is posted alone; of accesses by other pairs, as to type 1, they say nothing. `ibv_dealloc_mw` destroys the entry as `ibv_dereg_mr` does. Not seen here: no card was tested |
//! | rxe | no | does not check bounds (up to 6.12 at least); a write that has begun is not waited for; invalidating a window of type 2 that is not bound, which a peer can do, stops its kernel |
//! | others | no | not reviewed |
#![allow(unsafe_code, reason = "calls the provider")]

use super::context::ContextInner;
use crate::sys::ibv_device_attr;

/// What is known of a provider's windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reviewed {
    /// Bounds are kept, and `ibv_dealloc_mw` is a barrier; and requests that end windows of type 2 are, and do no harm.
    pub(crate) barrier: bool,
    /// Requests that end windows of type 1 are barriers too.
    pub(crate) type_1: bool,
}

/// Mellanox; of mlx4 too.
const MELLANOX: u32 = 0x02c9;
/// Cards of mlx5, with their virtual functions: Connect-IB, ConnectX-4 to 7, BlueField 1 to 3. Each by name, so that what comes
/// later is looked at first.
const MLX5: [u32; 20] = [
    0x1011, 0x1012, 0x1013, 0x1014, 0x1015, 0x1016, 0x1017, 0x1018, 0x1019, 0x101a, 0x101b, 0x101c, 0x101d, 0x101e,
    0x101f, 0x1021, 0xa2d2, 0xa2d3, 0xa2d6, 0xa2dc,
];

fn is_reviewed(device: &ibv_device_attr) -> bool {
    device.vendor_id == MELLANOX && MLX5.contains(&device.vendor_part_id)
}

impl ContextInner {
    /// What is known of its windows. Nothing where the device does not say what it is.
    pub(crate) fn reviewed(&self) -> Reviewed {
        // SAFETY: open as long as this is there.
        let known = || unsafe { self.provider.query_device(self.raw) }.is_ok_and(|device| is_reviewed(&device));
        *self.reviewed.get_or_init(|| Reviewed { barrier: self.soft || known(), type_1: self.soft })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_of_mlx5() {
        let device = |vendor_id, vendor_part_id| ibv_device_attr { vendor_id, vendor_part_id, ..Default::default() };
        let on_the_list = [(0x02c9, 0x1013), (0x02c9, 0x101d), (0x02c9, 0xa2d6)];
        assert!(on_the_list.iter().all(|&(vendor, part)| is_reviewed(&device(vendor, part))));
        // mlx4, rxe, another vendor with a part number of those.
        let others = [(0x02c9, 0x1007), (0x00ff_ffff, 0), (0x14e4, 0x1013), (0x02c9, 0x1020), (0, 0)];
        assert!(!others.iter().any(|&(vendor, part)| is_reviewed(&device(vendor, part))));
    }
}
