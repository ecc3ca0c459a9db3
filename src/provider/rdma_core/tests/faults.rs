//! How soft-RoCE answers mistakes that this library does not let a program make. The name of each test starts with the
//! number of its case in docs/conformance.md.

use super::*;
use ibv_wc_status as S;

const RTS: ibv_qp_state = ibv_qp_state::IBV_QPS_RTS;
const ERR: ibv_qp_state = ibv_qp_state::IBV_QPS_ERR;
const LOCAL_WRITE: u32 = 1;
const REMOTE_READ: u32 = 4;

/// Two pairs connected to each other, and a region for each of some rights.
struct Two {
    device: Device,
    left: NonNull<ibv_qp>,
    right: NonNull<ibv_qp>,
    regions: Vec<NonNull<ibv_mr>>,
}

impl Two {
    fn new() -> Self {
        let device = Device::open();
        let pair = || device.pair(ibv_qp_type::IBV_QPT_RC, ptr::null_mut());
        let (left, right) = (pair(), pair());
        bring_up_to(&device, left, right);
        bring_up_to(&device, right, left);
        Self { device, left, right, regions: Vec::new() }
    }

    /// Registers a new region of 64 bytes.
    fn region(&mut self, access: u32) -> ibv_sge {
        // Leak the memory. If the test panics, the region stays registered, so its memory must not be freed.
        let memory = Box::leak(Box::new([0_u64; 8]));
        let start = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: the domain is alive. The memory is never freed, and nothing else uses it.
        let region = unsafe { RdmaCore.reg_mr(self.device.domain, start, 64, ibv_access_flags(access)) }.unwrap();
        self.regions.push(region);
        // SAFETY: the region is alive.
        let lkey = unsafe { (*region.as_ptr()).lkey };
        ibv_sge { addr: start.expose_provenance() as u64, length: 64, lkey }
    }

    fn receive(&self, wr_id: u64, mut sge: ibv_sge) {
        let mut wr = ibv_recv_wr { wr_id, sg_list: &mut sge, num_sge: 1, ..ibv_recv_wr::default() };
        // SAFETY: the context is open.
        let post = unsafe { (*self.device.context.as_ptr()).ops }.post_recv.unwrap();
        // SAFETY: the pair is alive. `wr` and `sge` live until the call returns. The memory that `sge` names is never
        // freed.
        assert_eq!(unsafe { post(self.right.as_ptr(), &mut wr, &mut ptr::null_mut()) }, 0);
    }

    /// Waits at most a minute for the expected states of both pairs, and returns their states.
    fn states(&self, expected: (ibv_qp_state, ibv_qp_state)) -> (ibv_qp_state, ibv_qp_state) {
        // SAFETY: the pair is alive.
        let state = |qp| unsafe { RdmaCore.query_qp(qp, ibv_qp_attr_mask::IBV_QP_STATE) }.unwrap().qp_state;
        let start = Instant::now();
        loop {
            let states = (state(self.left), state(self.right));
            if states == expected || start.elapsed() > Duration::from_secs(60) {
                return states;
            }
        }
    }

    fn close(self) {
        for pair in [self.left, self.right] {
            // SAFETY: the pair is alive, and not used any more.
            unsafe { RdmaCore.destroy_qp(pair) }.unwrap();
        }
        for region in self.regions {
            // SAFETY: the region is alive, and nobody uses it any more.
            unsafe { RdmaCore.dereg_mr(region) }.unwrap();
        }
        self.device.close();
    }
}

fn send(wr_id: u64, sge: &mut ibv_sge) -> ibv_send_wr {
    let opcode = ibv_wr_opcode::IBV_WR_SEND;
    ibv_send_wr { wr_id, sg_list: sge, num_sge: 1, opcode, send_flags: 2, ..ibv_send_wr::default() }
}

#[test]
#[ignore = "needs a device"]
fn c022_c160_c161_a_path_names_a_port_and_a_row() {
    use ibv_qp_attr_mask as M;
    let device = Device::open();
    let pair = device.pair(ibv_qp_type::IBV_QPT_RC, ptr::null_mut());
    let init = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_INIT, port_num: 1, ..ibv_qp_attr::default() };
    modify(pair, init, M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_ACCESS_FLAGS);
    let mut no_port = device.address();
    no_port.port_num = 0;
    let mut no_row = device.address();
    no_row.grh.sgid_index = 200;
    let mut no_header = device.address();
    no_header.is_global = 0;
    for (address, errno) in [(no_port, libc::EINVAL), (no_row, libc::ENODATA), (no_header, libc::EINVAL)] {
        let mut attributes = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: ibv_mtu::IBV_MTU_1024,
            ah_attr: address,
            ..ibv_qp_attr::default()
        };
        let mask = M::IBV_QP_STATE
            | M::IBV_QP_AV
            | M::IBV_QP_PATH_MTU
            | M::IBV_QP_DEST_QPN
            | M::IBV_QP_RQ_PSN
            | M::IBV_QP_MAX_DEST_RD_ATOMIC
            | M::IBV_QP_MIN_RNR_TIMER;
        // SAFETY: the pair is alive, and nobody else uses it.
        assert_eq!(unsafe { RdmaCore.modify_qp(pair, &mut attributes, mask) }.unwrap_err().errno(), errno);
        // SAFETY: the domain is alive.
        let error = unsafe { RdmaCore.create_ah(device.domain, &mut { address }) }.unwrap_err();
        assert_eq!(error.errno(), errno);
        // SAFETY: the pair is alive.
        let state = unsafe { RdmaCore.query_qp(pair, M::IBV_QP_STATE) }.unwrap().qp_state;
        assert_eq!(state, ibv_qp_state::IBV_QPS_INIT, "as it was");
    }
    // SAFETY: the pair is alive, and nobody uses it any more.
    unsafe { RdmaCore.destroy_qp(pair) }.unwrap();
    device.close();
}

#[test]
#[ignore = "needs a device"]
fn c066_a_list_stops_at_its_bad_request() {
    let mut two = Two::new();
    let mut source = two.region(0);
    // The second request names these 1000 elements: more than any device takes in one request.
    let mut many = [source; 1000];
    let target = two.region(LOCAL_WRITE);
    for wr_id in [1, 2, 3] {
        two.receive(wr_id, target);
    }
    let mut third = send(13, &mut source);
    let mut second =
        ibv_send_wr { sg_list: many.as_mut_ptr(), num_sge: 1000, next: &mut third, ..send(12, &mut source) };
    let mut first = ibv_send_wr { next: &mut second, ..send(11, &mut source) };
    let mut bad = ptr::null_mut();
    // SAFETY: the context is open.
    let post = unsafe { (*two.device.context.as_ptr()).ops }.post_send.unwrap();
    // SAFETY: the pair is alive. The three requests, `source` and `many` live until the call returns. The memory that
    // `source` and `many` name is never freed.
    let errno = unsafe { post(two.left.as_ptr(), &mut first, &mut bad) };
    assert_eq!((errno, bad), (libc::EINVAL, ptr::from_mut(&mut second)));
    let mut done: Vec<u64> = two.device.wait(2).iter().map(|wc| wc.wr_id).collect();
    done.sort_unstable();
    assert_eq!(done, [1, 11]);
    std::thread::sleep(Duration::from_millis(50));
    assert!(two.device.wait(0).is_empty());
    two.close();
}

#[test]
#[ignore = "needs a device"]
fn c073_c074_memory_must_be_there_and_bear_being_written() {
    let device = Device::open();
    // SAFETY: the call makes a new private mapping, and changes no other memory.
    let page =
        unsafe { libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    let page = page.cast::<u8>();
    // SAFETY: the domain is alive, and the program never accesses the page. The page stays mapped while it is
    // registered. After `munmap`, a registration of the page fails.
    let register = |access| unsafe { RdmaCore.reg_mr(device.domain, page, 4096, ibv_access_flags(access)) };
    assert_eq!(register(LOCAL_WRITE).unwrap_err().errno(), libc::EFAULT);
    let to_read = register(0).unwrap();
    // SAFETY: the region is alive, and nobody uses it any more.
    unsafe { RdmaCore.dereg_mr(to_read) }.unwrap();
    // SAFETY: this test mapped the page, and the page is not registered any more.
    assert_eq!(unsafe { libc::munmap(page.cast(), 4096) }, 0);
    assert_eq!(register(0).unwrap_err().errno(), libc::EFAULT);
    device.close();
}

/// The specification demands a local protection error. soft-RoCE flushes the request; on Linux 6.1 it reports a local
/// queue pair operation error.
#[test]
#[ignore = "needs a device"]
fn c094_a_send_with_a_key_of_nothing_breaks_its_pair() {
    let mut two = Two::new();
    let mut source = two.region(0);
    source.lkey ^= 0x55;
    assert_eq!(post_send(two.left, &mut send(1, &mut source)), 0);
    let done = two.device.wait(1);
    let expected = if is_linux_6_12() { S::IBV_WC_WR_FLUSH_ERR } else { S::IBV_WC_LOC_QP_OP_ERR };
    assert_eq!((done[0].wr_id, done[0].status), (1, expected));
    assert_eq!(two.states((ERR, RTS)), (ERR, RTS));
    two.close();
}

/// The specification demands a local protection error on the receiving side. soft-RoCE reports a local queue pair
/// operation error.
#[test]
#[ignore = "needs a device"]
fn c095_a_receive_into_memory_that_is_not_to_be_written_breaks_both_pairs() {
    let mut two = Two::new();
    let (mut source, target) = (two.region(0), two.region(0));
    two.receive(1, target);
    assert_eq!(post_send(two.left, &mut send(2, &mut source)), 0);
    let mut done: Vec<_> = two.device.wait(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    done.sort_unstable_by_key(|done| done.0);
    assert_eq!(done, [(1, S::IBV_WC_LOC_QP_OP_ERR), (2, S::IBV_WC_REM_OP_ERR)]);
    assert_eq!(two.states((ERR, ERR)), (ERR, ERR));
    two.close();
}

#[test]
#[ignore = "needs a device"]
fn c107_a_read_into_memory_that_is_not_to_be_written_leaves_the_peer_alone() {
    let mut two = Two::new();
    let (mut target, source) = (two.region(0), two.region(REMOTE_READ));
    // SAFETY: the region is alive.
    let rkey = unsafe { (*two.regions[1].as_ptr()).rkey };
    let mut wr = ibv_send_wr { opcode: ibv_wr_opcode::IBV_WR_RDMA_READ, ..send(1, &mut target) };
    wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: source.addr, rkey };
    assert_eq!(post_send(two.left, &mut wr), 0);
    assert_eq!(two.device.wait(1)[0].status, S::IBV_WC_LOC_PROT_ERR);
    assert_eq!(two.states((ERR, RTS)), (ERR, RTS));
    two.close();
}

#[test]
#[ignore = "needs a device"]
fn c156_c170_what_the_device_has_not_it_says() {
    let device = Device::open();
    let attr = ibv_srq_attr { max_wr: 4, max_sge: 28, srq_limit: 0 };
    let mut init = ibv_srq_init_attr { attr, ..ibv_srq_init_attr::default() };
    // SAFETY: the domain is alive.
    let error = unsafe { RdmaCore.create_srq(device.domain, &mut init) }.unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
    for qp_type in [ibv_qp_type::IBV_QPT_RAW_PACKET, ibv_qp_type::IBV_QPT_XRC_SEND] {
        let cap = ibv_qp_cap { max_send_wr: 1, max_send_sge: 1, ..ibv_qp_cap::default() };
        let (send_cq, recv_cq) = (device.cq.as_ptr(), device.cq.as_ptr());
        let mut init = ibv_qp_init_attr { send_cq, recv_cq, cap, qp_type, ..ibv_qp_init_attr::default() };
        // SAFETY: the domain and the queues are alive.
        let error = unsafe { RdmaCore.create_qp(device.domain, &mut init) }.unwrap_err();
        assert_eq!(error.errno(), libc::EOPNOTSUPP, "{qp_type:?}");
    }
    device.close();
}
