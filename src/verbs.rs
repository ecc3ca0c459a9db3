//! From C to here, call by call: for a reader who knows the verbs and looks for the method.
//!
//! This module has nothing but this page. Each row links to what does the same; most of the C names are also aliases in
//! the search of this documentation.
//!
//! # Devices
//!
//! | C | here |
//! |---|---|
//! | `ibv_get_device_list`, `ibv_get_device_name`, `ibv_get_device_guid` | [`devices`], [`Device::name`], [`Device::guid`] |
//! | `ibv_open_device`, `ibv_close_device` | [`Context::open`], [`Context::open_default`]; closed with the last object made from it |
//! | `ibv_query_device` | [`Context::attributes`] |
//! | `ibv_query_device_ex` | [`Context::on_demand`] |
//! | `ibv_query_port` | [`Context::port`], [`Context::active_port`] |
//! | `ibv_query_gid`, `ibv_query_gid_table` | [`Port::gids`], [`Port::gid`], [`Port::with_gid`] |
//! | `ibv_query_pkey` | [`Context::partition_keys`] |
//! | `ibv_get_async_event`, `ibv_ack_async_event` | [`Context::events`], [`AsyncEvents::next`]; acknowledged when taken |
//! | `ibv_fork_init`, `ibv_is_fork_initialized` | [`enable_fork_support`], [`fork_support`] |
//!
//! # Domains and memory
//!
//! | C | here |
//! |---|---|
//! | `ibv_alloc_pd`, `ibv_dealloc_pd` | [`Context::named_domain`], [`Context::with_domain`]; deallocated with its last object |
//! | `ibv_reg_mr` | [`ProtectionDomain::register`]; [`ProtectionDomain::buffer`] and [`buffers`](ProtectionDomain::buffers) for memory of the library's own, [`ProtectionDomain::pool`] for memory that is used again and again |
//! | `IBV_ACCESS_LOCAL_WRITE`, `IBV_ACCESS_REMOTE_*` | the type parameter of [`MemoryRegion`]: [`Access`] has the table |
//! | `IBV_ACCESS_RELAXED_ORDERING`, `IBV_ACCESS_ON_DEMAND`, `IBV_ACCESS_ZERO_BASED` | around it: [`RelaxedOrdering`], [`OnDemand`], [`ZeroBased`] |
//! | `IBV_ACCESS_HUGETLB` | [`Pages::huge`]; the flag itself is not needed |
//! | `ibv_reg_dmabuf_mr` | [`ProtectionDomain::register_opaque`] of a [`DmaBuf`] |
//! | `ibv_dereg_mr` | [`MemoryRegion::deregister`], which gives the memory back; or the drop of its last buffer |
//! | `mr->lkey`, `ibv_sge` | [`Buffer`]: address, length and key never part |
//! | `mr->rkey` and an address | [`MemoryRegion::remote`], a [`RemoteRegion`]; its [`to_bytes`](RemoteRegion::to_bytes) go to the peer; [`RemoteRegion::of_peer`] where the peer sent numbers |
//! | `ibv_rereg_mr` | deregister, and register again |
//! | `ibv_alloc_mw`, `ibv_dealloc_mw` | [`ProtectionDomain::window`] (type 1), [`QueuePair::window`] (type 2); [`BoundWindow::dealloc`], or drop |
//! | `IBV_ACCESS_MW_BIND` | [`Windowed`], [`Bindable`] |
//! | `IBV_WR_BIND_MW`, `ibv_bind_mw`, `ibv_inc_rkey` | [`QueuePair::post_bind`]; each bind has a new key |
//! | `IBV_WR_LOCAL_INV`, `ibv_bind_mw` over no bytes | [`QueuePair::post_revoke`] |
//! | `IBV_WR_SEND_WITH_INV`, `wc.invalidated_rkey` | [`QueuePair::post_send_invalidating`], [`Received::invalidated`] |
//!
//! # Completion queues
//!
//! | C | here |
//! |---|---|
//! | `ibv_create_cq` | [`ProtectionDomain::completion_queue`]; on a vector, [`completion_queue_with`](ProtectionDomain::completion_queue_with) |
//! | `ibv_create_cq_ex`, `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll` | [`Polling::Extended`], for [`completion_queue_with`](ProtectionDomain::completion_queue_with) |
//! | `ibv_create_comp_channel` | [`ProtectionDomain::completion_channel`]; each queue has one of its own otherwise |
//! | `ibv_poll_cq` | [`Poller::poll`], [`Poller::poll_each`], [`Poller::poll_retired`] |
//! | `ibv_req_notify_cq`, `ibv_get_cq_event`, `ibv_ack_cq_events` | [`Poller::wait`], [`Poller::wait_for`], [`CompletionChannel::wait_any`]; for event loops [`Poller::arm`] and [`Poller::readiness`] |
//! | `solicited_only` | [`WakeFor`] |
//! | `ibv_resize_cq` | [`Poller::resize`] |
//! | `ibv_wc` | [`Completion::check`] gives a [`Success`] or a [`Failure`] |
//! | `wc.status`, `ibv_wc_status_str` | [`Status`], printed with causes and what to check |
//! | `wc.opcode` | [`Success::operation`], [`Success::into_work`] |
//! | `wc.byte_len` | the length of the received buffer; [`WrittenWithImmediate::written_bytes`] |
//! | `wc.imm_data` | [`Received::immediate`], host byte order |
//! | `wc.src_qp`, `wc.slid`, `wc.sl`, the GRH | [`Datagram`] |
//!
//! # Queue pairs
//!
//! | C | here |
//! |---|---|
//! | `ibv_create_qp` | [`ProtectionDomain::reliable`], [`unreliable`](ProtectionDomain::unreliable), [`datagram`](ProtectionDomain::datagram); `_on` for two completion queues |
//! | `ibv_create_qp_ex`, `ibv_wr_start` … `ibv_wr_complete` | [`Limits::posting`] |
//! | `ibv_qp_cap` | [`Limits`] |
//! | `ibv_modify_qp` to another state | [`into_init`](QueuePair::into_init), [`connect`](QueuePair::connect), [`into_rtr`](QueuePair::into_rtr), [`into_rts`](QueuePair::into_rts), [`into_sqd`](QueuePair::into_sqd), [`into_sqe`](QueuePair::into_sqe), [`resume`](QueuePair::resume), [`into_error`](QueuePair::into_error), [`into_reset`](QueuePair::into_reset): see [`State`] |
//! | `ibv_modify_qp` in a state | [`set_peer_rights`](QueuePair::set_peer_rights), [`set_min_rnr_timer`](QueuePair::set_min_rnr_timer), [`set_qkey`](QueuePair::set_qkey), [`set_path`](QueuePair::set_path), [`modify`](QueuePair::modify) |
//! | `ibv_query_qp` | [`QueuePair::query`] |
//! | `ibv_destroy_qp` | [`QueuePair::destroy`], or drop |
//! | `ibv_post_recv` | [`QueuePair::post_receive`] |
//! | `ibv_post_send` | [`QueuePair::post`] of a [`WorkRequest`], and shorter ones such as [`post_send`](QueuePair::post_send) |
//! | a linked list of requests | [`QueuePair::batch`] |
//! | `wr_id` | a [`WorkId`], from posting and from [`Completion::id`] |
//! | `IBV_SEND_SIGNALED` | all are; [`WorkRequest::unsignalled`] |
//! | `IBV_SEND_FENCE`, `IBV_SEND_SOLICITED`, `IBV_SEND_INLINE` | [`WorkRequest::fenced`], [`WorkRequest::solicited`], [`Inline`] |
//! | `num_sge > 1` | [`BufferList`] |
//! | `IBV_WR_ATOMIC_CMP_AND_SWP`, `IBV_WR_ATOMIC_FETCH_AND_ADD` | [`post_compare_and_swap`](QueuePair::post_compare_and_swap), [`post_fetch_and_add`](QueuePair::post_fetch_and_add), on a [`RemoteWord`] |
//! | `ibv_wr_atomic_write` | [`post_atomic_write`](QueuePair::post_atomic_write), with [`Posting::AtomicWrites`] |
//! | `ibv_create_srq`, `ibv_post_srq_recv`, `ibv_modify_srq`, `ibv_query_srq` | [`ProtectionDomain::shared_receive_queue`], [`ProtectionDomain::shared_datagram_queue`], [`SharedReceiveQueue`] |
//! | `ibv_create_ah`, `ibv_create_ah_from_wc` | [`ProtectionDomain::address_handle`], [`recipient`](ProtectionDomain::recipient), [`sender`](ProtectionDomain::sender) |
//! | `wr.ud`: `ah`, `remote_qpn`, `remote_qkey` | [`Recipient`] |
//! | `ibv_attach_mcast`, `ibv_detach_mcast` | [`join_group`](QueuePair::join_group), [`leave_group`](QueuePair::leave_group); [`Recipient::group`] |
//!
//! # rdma_cm
//!
//! | C | here |
//! |---|---|
//! | `rdma_create_event_channel`, `rdma_get_cm_event`, `rdma_ack_cm_event` | [`cm::Channel`]; events are acknowledged when they are taken, and nobody sees one |
//! | `rdma_create_id`, `rdma_destroy_id` | [`cm::Idle::new`]; dropped |
//! | `rdma_set_option` | [`set_type_of_service`](cm::Idle::set_type_of_service), [`set_reuse_address`](cm::Idle::set_reuse_address), [`set_ack_timeout`](cm::Idle::set_ack_timeout) |
//! | `rdma_bind_addr`, `rdma_listen` | [`cm::Idle::bind`], [`cm::Bound::listen`], or [`cm::listen`] for both |
//! | `rdma_resolve_addr`, `rdma_resolve_route` | [`cm::Idle::resolve`] |
//! | `rdma_connect`, `rdma_establish` | [`cm::Resolved::connect`], [`cm::Connecting::wait`]; or [`cm::connect`] for everything |
//! | `rdma_accept`, `rdma_reject` | [`cm::Request::accept`], [`cm::Request::reject`] |
//! | the same of `RDMA_PS_UDP` | [`cm::Idle::for_datagrams`]; [`cm::look_up`], [`cm::serve`], [`cm::Request::answer`] |
//! | `rdma_join_multicast`, `rdma_leave_multicast` | [`cm::Bound::join`], [`cm::Membership`] |
//! | `rdma_notify` | [`cm::Accepting::message_arrived`] |
//! | `rdma_disconnect` | [`cm::Connection::disconnect`] |
//! | `rdma_init_qp_attr` | inside `connect` and `accept` |
//! | `rdma_create_qp` | a [`QueuePair`] of your own, which goes into `connect` or `accept` |
//! | `rdma_get_local_addr`, `rdma_get_peer_addr` | [`cm::Connection::local_address`], [`cm::Connection::peer_address`] |
//! | `conn_param.private_data` | [`cm::PrivateData`], [`cm::PeerData`] |
//!
//! # Not here
//!
//! | C | why |
//! |---|---|
//! | time stamps, `ibv_wc_read_completion_ts` | few devices have them |
//! | `ibv_alloc_td`, `ibv_alloc_parent_domain` | only one thread posts to a queue here, but providers ask for one thread for the whole pair |
//! | alternate paths, `IBV_QP_ALT_PATH`; `static_rate`, `src_path_bits` of an address | InfiniBand links only, and nothing to test them on |
//! | `ibv_create_qp` of `IBV_QPT_RAW_PACKET`, `IBV_QPT_XRC_*`, `IBV_QPT_DRIVER`; `ibv_create_wq`, `ibv_create_flow` | other transports; each would be a type next to [`ReliableConnection`] |
//! | `ibv_alloc_dm`, `ibv_alloc_null_mr`, `ibv_advise_mr`, `ibv_reg_mr_iova` | not yet asked for |
//! | `rdma_migrate_id`, `rdma_getaddrinfo`, `rdma_set_local_ece` | not yet asked for |

#[allow(unused_imports, reason = "for the links of the page")]
use crate::{
    access::*, attributes::*, completion::*, datagram::*, device::*, domain::*, error::*, event::*, memory::*,
    number::*, queue::*, request::*, shared::*, state::*, transport::*, window::*, *,
};
