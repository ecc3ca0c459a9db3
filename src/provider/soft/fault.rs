//! Injected faults.
#![forbid(unsafe_code)]

use libc::c_int;

/// A verb, or a call of rdma_cm, that a [`Fault`] can make fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// `ibv_open_device`
    OpenDevice,
    /// `ibv_close_device`
    CloseDevice,
    /// `ibv_query_device`
    QueryDevice,
    /// `ibv_query_port`
    QueryPort,
    /// `ibv_query_gid_table`
    QueryGidTable,
    /// `ibv_alloc_pd`
    AllocPd,
    /// `ibv_dealloc_pd`
    DeallocPd,
    /// `ibv_reg_mr`
    RegMr,
    /// `ibv_dereg_mr`
    DeregMr,
    /// `membarrier`, by which the library waits for peers' writes to end where `ibv_dereg_mr` does not wait
    Membarrier,
    /// `ibv_create_comp_channel`
    CreateCompChannel,
    /// `ibv_destroy_comp_channel`
    DestroyCompChannel,
    /// `ibv_get_cq_event`
    GetCqEvent,
    /// `ibv_create_cq`
    CreateCq,
    /// `ibv_destroy_cq`
    DestroyCq,
    /// `ibv_create_qp`
    CreateQp,
    /// `ibv_modify_qp`
    ModifyQp,
    /// `ibv_query_qp`
    QueryQp,
    /// `ibv_destroy_qp`
    DestroyQp,
    /// `ibv_post_send`: the whole list is refused, and `bad_wr` points at its first request
    PostSend,
    /// `ibv_post_recv`: the whole list is refused, and `bad_wr` points at its first request
    PostRecv,
    /// `ibv_poll_cq`: returns the negative errno
    PollCq,
    /// `ibv_req_notify_cq`
    ReqNotifyCq,
    /// `ibv_query_pkey`
    QueryPkey,
    /// `ibv_get_async_event`
    GetAsyncEvent,
    /// `ibv_reg_mr_iova`
    RegMrIova,
    /// `ibv_reg_dmabuf_mr`
    RegDmabufMr,
    /// `ibv_alloc_mw`
    AllocMw,
    /// `ibv_dealloc_mw`
    DeallocMw,
    /// `ibv_bind_mw`
    BindMw,
    /// `ibv_create_ah`
    CreateAh,
    /// `ibv_destroy_ah`
    DestroyAh,
    /// `ibv_resize_cq`
    ResizeCq,
    /// `ibv_create_srq`
    CreateSrq,
    /// `ibv_modify_srq`
    ModifySrq,
    /// `ibv_query_srq`
    QuerySrq,
    /// `ibv_destroy_srq`
    DestroySrq,
    /// `ibv_post_srq_recv`: the whole list is refused, and `bad_wr` points at its first request
    PostSrqRecv,
    /// `ibv_attach_mcast`
    AttachMcast,
    /// `ibv_detach_mcast`
    DetachMcast,
    /// `rdma_create_event_channel`
    RdmaCreateEventChannel,
    /// `rdma_create_id`
    RdmaCreateId,
    /// `rdma_bind_addr`
    RdmaBindAddr,
    /// `rdma_resolve_addr`
    RdmaResolveAddr,
    /// `rdma_resolve_route`
    RdmaResolveRoute,
    /// `rdma_listen`
    RdmaListen,
    /// `rdma_connect`
    RdmaConnect,
    /// `rdma_accept`
    RdmaAccept,
    /// `rdma_reject`
    RdmaReject,
    /// `rdma_establish`
    RdmaEstablish,
    /// `rdma_notify`
    RdmaNotify,
    /// `rdma_disconnect`
    RdmaDisconnect,
    /// `rdma_init_qp_attr`
    RdmaInitQpAttr,
    /// `rdma_set_option`
    RdmaSetOption,
    /// `rdma_get_cm_event`
    RdmaGetCmEvent,
    /// `rdma_join_multicast`
    RdmaJoinMulticast,
    /// `rdma_leave_multicast`
    RdmaLeaveMulticast,
}

impl Verb {
    /// The C name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OpenDevice => "ibv_open_device",
            Self::CloseDevice => "ibv_close_device",
            Self::QueryDevice => "ibv_query_device",
            Self::QueryPort => "ibv_query_port",
            Self::QueryGidTable => "ibv_query_gid_table",
            Self::AllocPd => "ibv_alloc_pd",
            Self::DeallocPd => "ibv_dealloc_pd",
            Self::RegMr => "ibv_reg_mr",
            Self::DeregMr => "ibv_dereg_mr",
            Self::Membarrier => "membarrier",
            Self::CreateCompChannel => "ibv_create_comp_channel",
            Self::DestroyCompChannel => "ibv_destroy_comp_channel",
            Self::GetCqEvent => "ibv_get_cq_event",
            Self::CreateCq => "ibv_create_cq",
            Self::DestroyCq => "ibv_destroy_cq",
            Self::CreateQp => "ibv_create_qp",
            Self::ModifyQp => "ibv_modify_qp",
            Self::QueryQp => "ibv_query_qp",
            Self::DestroyQp => "ibv_destroy_qp",
            Self::PostSend => "ibv_post_send",
            Self::PostRecv => "ibv_post_recv",
            Self::PollCq => "ibv_poll_cq",
            Self::ReqNotifyCq => "ibv_req_notify_cq",
            Self::QueryPkey => "ibv_query_pkey",
            Self::GetAsyncEvent => "ibv_get_async_event",
            Self::RegMrIova => "ibv_reg_mr_iova",
            Self::RegDmabufMr => "ibv_reg_dmabuf_mr",
            Self::AllocMw => "ibv_alloc_mw",
            Self::DeallocMw => "ibv_dealloc_mw",
            Self::BindMw => "ibv_bind_mw",
            Self::CreateAh => "ibv_create_ah",
            Self::DestroyAh => "ibv_destroy_ah",
            Self::ResizeCq => "ibv_resize_cq",
            Self::CreateSrq => "ibv_create_srq",
            Self::ModifySrq => "ibv_modify_srq",
            Self::QuerySrq => "ibv_query_srq",
            Self::DestroySrq => "ibv_destroy_srq",
            Self::PostSrqRecv => "ibv_post_srq_recv",
            Self::AttachMcast => "ibv_attach_mcast",
            Self::DetachMcast => "ibv_detach_mcast",
            Self::RdmaCreateEventChannel => "rdma_create_event_channel",
            Self::RdmaCreateId => "rdma_create_id",
            Self::RdmaBindAddr => "rdma_bind_addr",
            Self::RdmaResolveAddr => "rdma_resolve_addr",
            Self::RdmaResolveRoute => "rdma_resolve_route",
            Self::RdmaListen => "rdma_listen",
            Self::RdmaConnect => "rdma_connect",
            Self::RdmaAccept => "rdma_accept",
            Self::RdmaReject => "rdma_reject",
            Self::RdmaEstablish => "rdma_establish",
            Self::RdmaNotify => "rdma_notify",
            Self::RdmaDisconnect => "rdma_disconnect",
            Self::RdmaInitQpAttr => "rdma_init_qp_attr",
            Self::RdmaSetOption => "rdma_set_option",
            Self::RdmaGetCmEvent => "rdma_get_cm_event",
            Self::RdmaJoinMulticast => "rdma_join_multicast",
            Self::RdmaLeaveMulticast => "rdma_leave_multicast",
        }
    }

    /// Whether the verb still works on a device that has failed. True for verbs that destroy objects or report earlier
    /// events.
    pub(super) fn outlives_device(self) -> bool {
        matches!(
            self,
            Self::CloseDevice
                | Self::GetAsyncEvent
                | Self::GetCqEvent
                | Self::PollCq
                | Self::DeallocPd
                | Self::DeregMr
                | Self::Membarrier
                | Self::DeallocMw
                | Self::DestroyAh
                | Self::DestroyCompChannel
                | Self::DestroyCq
                | Self::DestroySrq
                | Self::DestroyQp
                | Self::DetachMcast
        )
    }
}

/// A failure for [`Fabric::inject`](super::Fabric::inject).
///
/// A fault acts on the whole fabric. A count of `u32::MAX` lasts until [`Fabric::heal`](super::Fabric::heal).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// From now on, `after` calls of `verb` work as usual, then `count` calls fail with the positive `errno` and do
    /// nothing.
    ///
    /// Models a kernel that is out of memory, a driver that cannot destroy an object, or a broken device. `after: 0,
    /// count: 1` makes only the next call fail; a count of 0 does nothing.
    VerbFails {
        /// Which verb.
        verb: Verb,
        /// How many calls work as usual first.
        after: u32,
        /// How many calls fail then.
        count: u32,
        /// The error; 0 and negative numbers become `EIO`.
        errno: i32,
    },
    /// The next `ibv_post_send` returns `errno` and does not write `bad_wr`, but its requests are in the queue.
    ///
    /// They run with the next post, transition or timer of that queue pair, in any state from Ready To Send on. Models
    /// Linux soft-RoCE below Ready To Send.
    SendKept {
        /// The error that the post returns.
        errno: i32,
    },
    /// The next `ibv_post_recv` returns `errno` and does not write `bad_wr`, but its requests are in the queue.
    ///
    /// Models Linux soft-RoCE in Reset.
    ReceiveKept {
        /// The error that the post returns.
        errno: i32,
    },
    /// The next `count` requests (retransmissions included) never arrive.
    ///
    /// Models a dead peer, a broken link or a full switch. The requester's timer makes it retry.
    RequestsLost {
        /// How many.
        count: u32,
    },
    /// The next `count` answers (acknowledgements, refusals, data read) never come back.
    ///
    /// The responder has executed the request, and recognizes its retransmission. Models link failures in which a
    /// request fails although it was executed.
    AnswersLost {
        /// How many.
        count: u32,
    },
    /// The next `count` requests that the device executes end with a local protection error.
    ///
    /// Models memory that the device cannot access any more. No safe program can cause that.
    RequestsFail {
        /// How many.
        count: u32,
    },
    /// Queue pairs that enter Error from now on do not flush their requests, nor requests that are posted to them
    /// later, until `heal` or another modify to Error.
    ///
    /// Models a device that flushes late, and Linux soft-RoCE, which flushes receives that were posted in Error only
    /// after another modify to Error.
    FlushWithheld,
    /// The device is gone. Its verbs return `EIO`, except taking asynchronous events and closing a context without
    /// objects. Its queue pairs are in Error and make no completions. `IBV_EVENT_DEVICE_FATAL` is raised.
    ///
    /// Models surprise removal, as libibverbs shows it. `heal` brings the device back; its pairs stay in Error.
    DeviceRemoved {
        /// Its name.
        device: String,
    },
    /// The device fails, but its driver works. Its queue pairs are in Error and flush their requests, and
    /// `IBV_EVENT_DEVICE_FATAL` is raised. Verbs return `EIO`, except those that destroy, take events and poll.
    ///
    /// Models the internal error state of a driver. `heal` brings the device back; its pairs stay in Error.
    DeviceFatal {
        /// Its name.
        device: String,
    },
    /// The port is down until `heal`: no packet leaves it or arrives. `IBV_EVENT_PORT_ERR` is raised now,
    /// `IBV_EVENT_PORT_ACTIVE` when the port is up again.
    PortDown {
        /// The name of the device.
        device: String,
    },
    /// Each completion queue of the device loses a completion, as if it had overrun. The queues fail, and their pairs
    /// are in Error. `IBV_EVENT_CQ_ERR` is raised, and `IBV_EVENT_QP_FATAL` for the pairs.
    ///
    /// Models what a device may do by itself: this library never lets a queue overrun. `heal` does not undo it.
    Overrun {
        /// Its name.
        device: String,
    },
    /// The next `count` connect requests of rdma_cm (retransmissions included) never arrive.
    ///
    /// Models a host that does not answer. The client retransmits its request every 4.9 s, and gives up after 77.7 s.
    /// On iWARP, where the request needs a TCP stream, `u32::MAX` blocks each `rdma_connect` until
    /// [`heal`](super::Fabric::heal); then it fails with `ETIMEDOUT`.
    ConnectRequestsLost {
        /// How many.
        count: u32,
    },
    /// The clients of the next `count` connect requests that reach a listener vanish: their identifiers send and
    /// receive nothing more. The server sees the request, and its accept fails with `EINVAL`.
    ///
    /// Models a client whose process ends before the server accepts.
    ClientsGone {
        /// How many.
        count: u32,
    },
    /// The servers of the next `count` accepts vanish after the accept: their identifiers send and receive nothing
    /// more. The client gets the answer, and a reject after it.
    ///
    /// Models a server whose process ends between its accept and the client's answer.
    ServersGone {
        /// How many.
        count: u32,
    },
    /// The address of a neighbour of the device changes: each connection that rdma_cm made on the device gets an
    /// `RDMA_CM_EVENT_UNREACHABLE`, and goes on.
    ///
    /// Models a change in the neighbour table, since Linux 6.0.
    NeighbourChanged {
        /// The name of the device.
        device: String,
    },
    /// The network ends the memberships of the device in multicast groups. The identifier of each membership gets an
    /// `RDMA_CM_EVENT_MULTICAST_ERROR`.
    ///
    /// Models another subnet manager that takes over, or a port that was down.
    GroupsLost {
        /// The name of the device.
        device: String,
    },
    /// A registration fails with `ENOMEM` if the total of registered bytes would exceed `bytes`.
    ///
    /// Models `RLIMIT_MEMLOCK`.
    LockedMemoryLimit {
        /// How many bytes.
        bytes: u64,
    },
}

/// The faults that have not ended.
#[derive(Debug, Default)]
pub(super) struct Faults {
    verbs: Vec<VerbFault>,
    send_kept: Option<c_int>,
    receive_kept: Option<c_int>,
    requests_lost: u32,
    requests_fail: u32,
    answers_lost: u32,
    pub(super) flush_withheld: bool,
    locked_limit: Option<u64>,
    cm_requests_lost: u32,
    clients_gone: u32,
    servers_gone: u32,
}

#[derive(Debug)]
struct VerbFault {
    verb: Verb,
    after: u32,
    count: u32,
    errno: c_int,
}

impl Faults {
    /// Records `fault`. The fabric itself handles faults that name a device.
    pub(super) fn add(&mut self, fault: &Fault) {
        let positive = |errno: i32| if errno > 0 { errno } else { libc::EIO };
        match *fault {
            Fault::VerbFails { verb, after, count, errno } => {
                self.verbs.push(VerbFault { verb, after, count, errno: positive(errno) });
            }
            Fault::SendKept { errno } => self.send_kept = Some(positive(errno)),
            Fault::ReceiveKept { errno } => self.receive_kept = Some(positive(errno)),
            Fault::RequestsLost { count } => self.requests_lost = count,
            Fault::RequestsFail { count } => self.requests_fail = count,
            Fault::AnswersLost { count } => self.answers_lost = count,
            Fault::FlushWithheld => self.flush_withheld = true,
            Fault::LockedMemoryLimit { bytes } => self.locked_limit = Some(bytes),
            Fault::DeviceRemoved { .. }
            | Fault::DeviceFatal { .. }
            | Fault::PortDown { .. }
            | Fault::NeighbourChanged { .. }
            | Fault::GroupsLost { .. }
            | Fault::Overrun { .. } => {}
            Fault::ConnectRequestsLost { count } => self.cm_requests_lost = count,
            Fault::ClientsGone { count } => self.clients_gone = count,
            Fault::ServersGone { count } => self.servers_gone = count,
        }
    }

    /// Counts a call of `verb`, and returns the errno if this call must fail.
    pub(super) fn verb(&mut self, verb: Verb) -> Option<c_int> {
        if self.verbs.is_empty() {
            return None;
        }
        let mut errno = None;
        for fault in self.verbs.iter_mut().filter(|fault| fault.verb == verb) {
            if fault.after > 0 {
                fault.after -= 1;
            } else if fault.count > 0 && errno.is_none() {
                errno = Some(fault.errno);
                spend(&mut fault.count);
            }
        }
        self.verbs.retain(|fault| fault.count > 0);
        errno
    }

    /// How many bytes can be registered in all.
    pub(super) fn locked_limit(&self) -> u64 {
        self.locked_limit.unwrap_or(u64::MAX)
    }

    pub(super) fn send_kept(&mut self) -> Option<c_int> {
        self.send_kept.take()
    }

    pub(super) fn receive_kept(&mut self) -> Option<c_int> {
        self.receive_kept.take()
    }

    /// Whether the request that is being sent gets lost.
    pub(super) fn loses_request(&mut self) -> bool {
        spend(&mut self.requests_lost)
    }

    /// Whether the request that is being sent fails at its requester.
    pub(super) fn fails_request(&mut self) -> bool {
        spend(&mut self.requests_fail)
    }

    /// Whether the answer to the request that is being sent gets lost.
    pub(super) fn loses_answer(&mut self) -> bool {
        spend(&mut self.answers_lost)
    }
}

#[cfg(feature = "cm")]
impl Faults {
    /// Whether the connect request that arrives now gets lost.
    pub(super) fn loses_cm_request(&mut self) -> bool {
        spend(&mut self.cm_requests_lost)
    }

    /// Whether every connect request gets lost.
    pub(super) fn loses_all_cm_requests(&self) -> bool {
        self.cm_requests_lost == u32::MAX
    }

    /// Whether the client of the connect request that arrives now vanishes.
    pub(super) fn takes_client(&mut self) -> bool {
        spend(&mut self.clients_gone)
    }

    /// Whether the server that accepts now vanishes.
    pub(super) fn takes_server(&mut self) -> bool {
        spend(&mut self.servers_gone)
    }
}

/// Whether `count` is above 0. If so, decrements it; but `u32::MAX` stays.
fn spend(count: &mut u32) -> bool {
    match *count {
        0 => false,
        u32::MAX => true,
        _ => {
            *count -= 1;
            true
        }
    }
}
