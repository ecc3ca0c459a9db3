//! Tests of the table of verbs on a real device. `./x test rxe` runs them on soft-RoCE; some tests expect its
//! particular results.

mod faults;

use super::*;
use crate::sys::*;
use std::{
    ptr,
    time::{Duration, Instant},
};

const GID_ROW: u8 = 1;
const QKEY: u32 = 0x1234;

/// A context with the usual objects. `close` destroys them in the order that C demands.
struct Device {
    context: NonNull<ibv_context>,
    domain: NonNull<ibv_pd>,
    channel: NonNull<ibv_comp_channel>,
    cq: NonNull<ibv_cq>,
    gid: ibv_gid,
}

impl Device {
    fn open() -> Self {
        let name = std::env::var("INTERLOCK_DEVICE").expect("the name of a device");
        let context = open(&name).unwrap().expect("the device");
        // SAFETY: the context is open.
        let domain = unsafe { RdmaCore.alloc_pd(context) }.unwrap();
        // SAFETY: the context is open.
        let channel = unsafe { RdmaCore.create_comp_channel(context) }.unwrap();
        // SAFETY: the context is open, and the channel is alive.
        let cq = unsafe { RdmaCore.create_cq(context, 63, channel, 0) }.unwrap();
        // SAFETY: the context is open.
        let table = unsafe { RdmaCore.query_gid_table(context) }.unwrap();
        let row = table.iter().find(|row| row.gid_index == u32::from(GID_ROW)).expect("a row with an IPv4 address");
        Self { context, domain, channel, cq, gid: row.gid }
    }

    fn pair(&self, qp_type: ibv_qp_type, srq: *mut ibv_srq) -> NonNull<ibv_qp> {
        let cap = ibv_qp_cap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 16 };
        let (send_cq, recv_cq) = (self.cq.as_ptr(), self.cq.as_ptr());
        let mut init = ibv_qp_init_attr { send_cq, recv_cq, srq, cap, qp_type, ..ibv_qp_init_attr::default() };
        // SAFETY: the domain and the queues are alive.
        unsafe { RdmaCore.create_qp(self.domain, &mut init) }.unwrap()
    }

    fn address(&self) -> ibv_ah_attr {
        let mut attributes = ibv_ah_attr { is_global: 1, port_num: 1, ..ibv_ah_attr::default() };
        attributes.grh.dgid = self.gid;
        attributes.grh.sgid_index = GID_ROW;
        attributes.grh.hop_limit = 64;
        attributes
    }

    fn ops(&self) -> ibv_context_ops {
        // SAFETY: the context is open.
        unsafe { (*self.context.as_ptr()).ops }
    }

    /// Polls for `count` completions.
    fn wait(&self, count: usize) -> Vec<ibv_wc> {
        let poll = self.ops().poll_cq.unwrap();
        let (start, mut all) = (Instant::now(), Vec::new());
        while all.len() < count && start.elapsed() < Duration::from_secs(60) {
            let mut wc = ibv_wc::default();
            // SAFETY: the queue is alive, and `wc` has room for one completion.
            if unsafe { poll(self.cq.as_ptr(), 1, &mut wc) } == 1 {
                all.push(wc);
            }
        }
        assert_eq!(all.len(), count);
        all
    }

    /// Waits for an asynchronous event.
    fn event(&self) -> ibv_async_event {
        let start = Instant::now();
        loop {
            // SAFETY: the context is open.
            if let Some(event) = unsafe { RdmaCore.take_async_event(self.context) }.unwrap() {
                return event;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "no event");
            std::thread::yield_now();
        }
    }

    fn close(self) {
        // SAFETY: the queue is alive, and nobody uses it any more.
        unsafe { RdmaCore.destroy_cq(self.cq) }.unwrap();
        // SAFETY: the channel is alive, and nobody uses it any more.
        unsafe { RdmaCore.destroy_comp_channel(self.channel) }.unwrap();
        // SAFETY: the domain is alive, and nobody uses it any more.
        unsafe { RdmaCore.dealloc_pd(self.domain) }.unwrap();
        // SAFETY: the context is open, and nobody uses it any more.
        unsafe { RdmaCore.close_device(self.context) }.unwrap();
    }
}

fn modify(qp: NonNull<ibv_qp>, mut attributes: ibv_qp_attr, mask: ibv_qp_attr_mask) {
    let mask = mask | ibv_qp_attr_mask::IBV_QP_STATE;
    // SAFETY: the pair is alive.
    unsafe { RdmaCore.modify_qp(qp, &mut attributes, mask) }.unwrap();
}

/// Brings up a datagram pair, or a reliable pair connected to itself.
fn bring_up(device: &Device, qp: NonNull<ibv_qp>) {
    bring_up_to(device, qp, qp);
}

/// Brings up a datagram pair, or a reliable pair connected to `peer`.
fn bring_up_to(device: &Device, qp: NonNull<ibv_qp>, peer: NonNull<ibv_qp>) {
    use ibv_qp_attr_mask as M;
    // SAFETY: the pair is alive.
    let ibv_qp { qp_type, .. } = unsafe { qp.read() };
    // SAFETY: the peer is alive.
    let ibv_qp { qp_num, .. } = unsafe { peer.read() };
    let datagram = qp_type == ibv_qp_type::IBV_QPT_UD;
    let mut attributes = ibv_qp_attr {
        port_num: 1,
        qkey: QKEY,
        qp_access_flags: 0xf,
        path_mtu: ibv_mtu::IBV_MTU_1024,
        dest_qp_num: qp_num,
        max_dest_rd_atomic: 1,
        max_rd_atomic: 1,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 3,
        rnr_retry: 3,
        ah_attr: device.address(),
        ..ibv_qp_attr::default()
    };
    let rights = if datagram { M::IBV_QP_QKEY } else { M::IBV_QP_ACCESS_FLAGS };
    let path = M::IBV_QP_AV
        | M::IBV_QP_PATH_MTU
        | M::IBV_QP_DEST_QPN
        | M::IBV_QP_RQ_PSN
        | M::IBV_QP_MAX_DEST_RD_ATOMIC
        | M::IBV_QP_MIN_RNR_TIMER;
    let retries = M::IBV_QP_TIMEOUT | M::IBV_QP_RETRY_CNT | M::IBV_QP_RNR_RETRY | M::IBV_QP_MAX_QP_RD_ATOMIC;
    let none = M(0);
    attributes.qp_state = ibv_qp_state::IBV_QPS_INIT;
    modify(qp, attributes, M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | rights);
    attributes.qp_state = ibv_qp_state::IBV_QPS_RTR;
    modify(qp, attributes, if datagram { none } else { path });
    attributes.qp_state = ibv_qp_state::IBV_QPS_RTS;
    modify(qp, attributes, M::IBV_QP_SQ_PSN | if datagram { none } else { retries });
}

fn post_send(qp: NonNull<ibv_qp>, wr: &mut ibv_send_wr) -> i32 {
    // SAFETY: the pair is alive.
    let context = unsafe { (*qp.as_ptr()).context };
    // SAFETY: the pair is alive, so its context is open.
    let post = unsafe { (*context).ops }.post_send.unwrap();
    // SAFETY: the pair is alive. `wr` is one request, and the memory that it names outlives its completion.
    unsafe { post(qp.as_ptr(), wr, &mut ptr::null_mut()) }
}

#[test]
#[ignore = "needs a device"]
fn objects_come_and_go() {
    let device = Device::open();
    // SAFETY: the context is open.
    assert_eq!(unsafe { RdmaCore.query_pkey(device.context, 1, 0) }.unwrap(), 0xffff);
    // SAFETY: the context is open.
    assert!(unsafe { RdmaCore.query_pkey(device.context, 99, 0) }.is_err());
    // SAFETY: the context is open.
    assert!(unsafe { (*device.context.as_ptr()).async_fd } >= 0);
    // SAFETY: the context is open.
    assert!(unsafe { RdmaCore.take_async_event(device.context) }.unwrap().is_none());
    // SAFETY: the channel is alive.
    assert!(unsafe { RdmaCore.take_cq_event_of(device.channel) }.unwrap().is_none());
    // SAFETY: the queue is alive, and nobody else uses it.
    unsafe { RdmaCore.resize_cq(device.cq, 100) }.unwrap();
    // SAFETY: the queue is alive, and nobody else uses it.
    assert!(unsafe { (*device.cq.as_ptr()).cqe } >= 100);
    let mut memory = vec![0_u64; 1024];
    let (start, access) = (memory.as_mut_ptr().cast::<u8>(), ibv_access_flags(1));
    let iova = 0x7000_0000_0000 + (start.addr() % 4096) as u64;
    // SAFETY: the domain is alive, and the memory outlives the region.
    let region = unsafe { RdmaCore.reg_mr_iova(device.domain, start, 8192, iova, access) }.unwrap();
    // SAFETY: the region is alive, and nobody uses it any more.
    unsafe { RdmaCore.dereg_mr(region) }.unwrap();
    // SAFETY: the domain is alive. The descriptor -1 is never open, so nothing is registered.
    assert!(unsafe { RdmaCore.reg_dmabuf_mr(device.domain, 0, 4096, 0, -1, access) }.is_err());
    // SAFETY: the domain is alive.
    let ah = unsafe { RdmaCore.create_ah(device.domain, &mut device.address()) }.unwrap();
    // SAFETY: the address handle is alive, and nobody uses it any more.
    unsafe { RdmaCore.destroy_ah(ah) }.unwrap();
    let group = ibv_gid { raw: [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1] };
    let pair = device.pair(ibv_qp_type::IBV_QPT_UD, ptr::null_mut());
    // SAFETY: the pair is alive.
    unsafe { RdmaCore.attach_mcast(pair, &group, 0) }.unwrap();
    // SAFETY: the pair is alive. The pair is still in a group, so the kernel refuses to destroy it.
    assert_eq!(unsafe { RdmaCore.destroy_qp(pair) }.unwrap_err().errno(), libc::EBUSY);
    // SAFETY: the pair is alive.
    unsafe { RdmaCore.detach_mcast(pair, &group, 0) }.unwrap();
    // SAFETY: the pair is alive, and nobody uses it any more.
    unsafe { RdmaCore.destroy_qp(pair) }.unwrap();
    device.close();
}

/// Whether the kernel is Linux 6.12 or newer.
fn is_linux_6_12() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

#[test]
#[ignore = "needs a device"]
fn shared_queues_tell_of_their_limit_and_their_last_receive() {
    let device = Device::open();
    let attr = ibv_srq_attr { max_wr: 7, max_sge: 1, srq_limit: 0 };
    let mut init = ibv_srq_init_attr { attr, ..ibv_srq_init_attr::default() };
    // SAFETY: the domain is alive.
    let srq = unsafe { RdmaCore.create_srq(device.domain, &mut init) }.unwrap();
    assert!(init.attr.max_wr >= 7);
    let pair = device.pair(ibv_qp_type::IBV_QPT_RC, srq.as_ptr());
    bring_up(&device, pair);
    for wr_id in [1, 2] {
        let mut wr = ibv_recv_wr { wr_id, ..ibv_recv_wr::default() };
        let post = device.ops().post_srq_recv.unwrap();
        // SAFETY: the shared queue is alive, and `wr` is one request.
        assert_eq!(unsafe { post(srq.as_ptr(), &mut wr, &mut ptr::null_mut()) }, 0);
    }
    let mut limit = ibv_srq_attr { srq_limit: 2, ..ibv_srq_attr::default() };
    // SAFETY: the shared queue is alive.
    unsafe { RdmaCore.modify_srq(srq, &mut limit, ibv_srq_attr_mask::IBV_SRQ_LIMIT) }.unwrap();
    // SAFETY: the shared queue is alive.
    assert_eq!(unsafe { RdmaCore.query_srq(srq) }.unwrap().srq_limit, 2);
    let opcode = ibv_wr_opcode::IBV_WR_SEND;
    let mut wr = ibv_send_wr { wr_id: 3, opcode, send_flags: 2, ..ibv_send_wr::default() };
    assert_eq!(post_send(pair, &mut wr), 0);
    assert!(device.wait(2).iter().all(|wc| wc.status == ibv_wc_status::IBV_WC_SUCCESS));
    let event = device.event();
    assert_eq!(event.event_type, ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED);
    // SAFETY: an `IBV_EVENT_SRQ_LIMIT_REACHED` sets the member `srq` of the union.
    assert_eq!(unsafe { event.element.srq }, srq.as_ptr());
    modify(pair, ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..ibv_qp_attr::default() }, ibv_qp_attr_mask(0));
    // Soft-RoCE raises `IBV_EVENT_QP_LAST_WQE_REACHED` in Linux 6.12, but not in Linux 6.1. No kernel in between was
    // tested.
    if is_linux_6_12() {
        let event = device.event();
        assert_eq!(event.event_type, ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED);
        // SAFETY: an `IBV_EVENT_QP_LAST_WQE_REACHED` sets the member `qp` of the union.
        assert_eq!(unsafe { event.element.qp }, pair.as_ptr());
    }
    // SAFETY: the pair is alive, and nobody uses it any more.
    unsafe { RdmaCore.destroy_qp(pair) }.unwrap();
    // SAFETY: the shared queue is alive, and nobody uses it any more.
    unsafe { RdmaCore.destroy_srq(srq) }.unwrap();
    device.close();
}

#[test]
#[ignore = "needs a device"]
fn datagrams_arrive_and_the_channel_names_the_queue() {
    let device = Device::open();
    let pair = device.pair(ibv_qp_type::IBV_QPT_UD, ptr::null_mut());
    bring_up(&device, pair);
    let mut memory = vec![0_u64; 512];
    let start = memory.as_mut_ptr().cast::<u8>();
    // SAFETY: the domain is alive, and the memory outlives the region.
    let region = unsafe { RdmaCore.reg_mr(device.domain, start, 4096, ibv_access_flags(1)) }.unwrap();
    // SAFETY: the domain is alive.
    let ah = unsafe { RdmaCore.create_ah(device.domain, &mut device.address()) }.unwrap();
    // SAFETY: the region is alive.
    let lkey = unsafe { (*region.as_ptr()).lkey };
    // SAFETY: the context is open.
    let ops = unsafe { (*device.context.as_ptr()).ops };
    let mut sge = ibv_sge { addr: start.expose_provenance() as u64, length: 104, lkey };
    let mut receive = ibv_recv_wr { wr_id: 1, sg_list: &mut sge, num_sge: 1, ..ibv_recv_wr::default() };
    // SAFETY: the pair is alive, and `receive` is one request, whose memory outlives its completion.
    assert_eq!(unsafe { ops.post_recv.unwrap()(pair.as_ptr(), &mut receive, &mut ptr::null_mut()) }, 0);
    // SAFETY: the queue is alive, and nobody else uses it.
    assert_eq!(unsafe { ops.req_notify_cq.unwrap()(device.cq.as_ptr(), 0) }, 0);
    let mut data = ibv_sge { addr: sge.addr + 1024, length: 64, lkey };
    let opcode = ibv_wr_opcode::IBV_WR_SEND;
    let mut wr =
        ibv_send_wr { wr_id: 2, sg_list: &mut data, num_sge: 1, opcode, send_flags: 2, ..ibv_send_wr::default() };
    // SAFETY: the pair is alive.
    let remote_qpn = unsafe { (*pair.as_ptr()).qp_num };
    wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah: ah.as_ptr(), remote_qpn, remote_qkey: QKEY };
    assert_eq!(post_send(pair, &mut wr), 0);
    let received = device.wait(2).into_iter().find(|wc| wc.wr_id == 1).unwrap();
    assert_eq!((received.status, received.byte_len), (ibv_wc_status::IBV_WC_SUCCESS, 104));
    assert_eq!((received.src_qp, received.wc_flags & 1), (remote_qpn, 1));
    // SAFETY: the channel is alive.
    let named = unsafe { RdmaCore.take_cq_event_of(device.channel) }.unwrap();
    assert_eq!(named, Some(device.cq));
    // SAFETY: the address handle is alive, and nobody uses it any more.
    unsafe { RdmaCore.destroy_ah(ah) }.unwrap();
    // SAFETY: the pair is alive, and nobody uses it any more.
    unsafe { RdmaCore.destroy_qp(pair) }.unwrap();
    // SAFETY: the region is alive, and nobody uses it any more.
    unsafe { RdmaCore.dereg_mr(region) }.unwrap();
    device.close();
}

#[test]
#[ignore = "needs a device"]
fn windows_of_both_types_are_bound() {
    let device = Device::open();
    let pair = device.pair(ibv_qp_type::IBV_QPT_RC, ptr::null_mut());
    bring_up(&device, pair);
    let mut memory = vec![0_u64; 512];
    let start = memory.as_mut_ptr().cast::<u8>();
    // SAFETY: the domain is alive, and the memory outlives the region.
    let region = unsafe { RdmaCore.reg_mr(device.domain, start, 4096, ibv_access_flags(1 | 16)) }.unwrap();
    let addr = start.expose_provenance() as u64;
    let bind_info = ibv_mw_bind_info { mr: region.as_ptr(), addr, length: 4096, mw_access_flags: 2 };
    for kind in [ibv_mw_type::IBV_MW_TYPE_1, ibv_mw_type::IBV_MW_TYPE_2] {
        // SAFETY: the domain is alive.
        let window = unsafe { RdmaCore.alloc_mw(device.domain, kind) }.unwrap();
        // SAFETY: the window is alive, and nobody else uses it.
        let before = unsafe { (*window.as_ptr()).rkey };
        let rkey = inline::ibv_inc_rkey(before);
        if kind == ibv_mw_type::IBV_MW_TYPE_1 {
            let mut bind = ibv_mw_bind { wr_id: 1, send_flags: 2, bind_info };
            // SAFETY: the window is alive, and nobody else uses it.
            let context = unsafe { (*window.as_ptr()).context };
            // SAFETY: the window is alive, so its context is open.
            let bind_mw = unsafe { (*context).ops.bind_mw }.unwrap();
            // SAFETY: the pair, the window and its region are alive, and nobody else uses the window.
            assert_eq!(unsafe { bind_mw(pair.as_ptr(), window.as_ptr(), &mut bind) }, 0);
            // SAFETY: the window is alive, and nobody else uses it.
            assert_eq!(unsafe { (*window.as_ptr()).rkey }, rkey);
        } else {
            let opcode = ibv_wr_opcode::IBV_WR_BIND_MW;
            let mut wr = ibv_send_wr { wr_id: 1, opcode, send_flags: 2, ..ibv_send_wr::default() };
            wr.__bindgen_anon_2.bind_mw =
                ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw: window.as_ptr(), rkey, bind_info };
            assert_eq!(post_send(pair, &mut wr), 0);
        }
        assert_eq!(device.wait(1)[0].status, ibv_wc_status::IBV_WC_SUCCESS, "{kind:?}");
        // On soft-RoCE, a window of type 2 must be freed before the pair that bound it is destroyed.
        // SAFETY: the window is alive, and nobody uses it any more.
        unsafe { RdmaCore.dealloc_mw(window) }.unwrap();
    }
    // SAFETY: the pair is alive, and nobody uses it any more.
    unsafe { RdmaCore.destroy_qp(pair) }.unwrap();
    // SAFETY: the region is alive, and nobody uses it any more.
    unsafe { RdmaCore.dereg_mr(region) }.unwrap();
    device.close();
}
