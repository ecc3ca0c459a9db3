//! Tests of the rules of the device, through the raw verbs. This file has the helpers.
#![allow(unsafe_code, reason = "raw verbs")]

mod asynchronous;
mod datagram;
mod errors;
mod events;
mod extended;
mod faults;
mod manual;
mod queues;
mod random;
mod regions;
mod requests;
mod shared;
mod states;
mod support;
mod transfer;
mod transports;
mod unreliable;
mod windows;

use super::{Fabric, Soft};
use crate::{
    provider::Provider,
    sys::{inline, *},
};
use std::{
    cell::{Cell, RefCell},
    ptr::{self, NonNull},
    time::{Duration, Instant},
};
use support::Request;

type Errno = i32;

const LOCAL: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
const READ: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
const WRITE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
const ATOMIC: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
const ALL: u32 = LOCAL | READ | WRITE | ATOMIC;

const SUCCESS: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;
const FLUSHED: ibv_wc_status = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;

const RESET: ibv_qp_state = ibv_qp_state::IBV_QPS_RESET;
const INIT: ibv_qp_state = ibv_qp_state::IBV_QPS_INIT;
const RTR: ibv_qp_state = ibv_qp_state::IBV_QPS_RTR;
const RTS: ibv_qp_state = ibv_qp_state::IBV_QPS_RTS;
const SQD: ibv_qp_state = ibv_qp_state::IBV_QPS_SQD;
const SQE: ibv_qp_state = ibv_qp_state::IBV_QPS_SQE;
const ERR: ibv_qp_state = ibv_qp_state::IBV_QPS_ERR;
const RC: ibv_qp_type = ibv_qp_type::IBV_QPT_RC;
const UC: ibv_qp_type = ibv_qp_type::IBV_QPT_UC;
const UD: ibv_qp_type = ibv_qp_type::IBV_QPT_UD;

/// A context with a protection domain, a channel and a completion queue. Dropping it destroys everything that it made.
struct Node {
    context: NonNull<ibv_context>,
    domain: NonNull<ibv_pd>,
    channel: NonNull<ibv_comp_channel>,
    cq: NonNull<ibv_cq>,
    pairs: RefCell<Vec<NonNull<ibv_qp>>>,
    regions: RefCell<Vec<Region>>,
    queues: RefCell<Vec<NonNull<ibv_srq>>>,
    windows: RefCell<Vec<NonNull<ibv_mw>>>,
    addresses: RefCell<Vec<NonNull<ibv_ah>>>,
}

/// A pair of a node, and the settings for its transitions.
#[derive(Clone, Copy)]
struct Pair {
    qp: NonNull<ibv_qp>,
    gid: [u8; 16],
    settings: Settings,
}

#[derive(Clone, Copy)]
struct Settings {
    transport: ibv_qp_type,
    qkey: u32,
    access: u32,
    mtu: ibv_mtu,
    rq_psn: u32,
    sq_psn: u32,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
}

const SETTINGS: Settings = Settings {
    transport: RC,
    qkey: 0x1234,
    access: ALL,
    mtu: ibv_mtu::IBV_MTU_1024,
    rq_psn: 0xff_fffe,
    sq_psn: 0xff_fffe,
    max_rd_atomic: 4,
    max_dest_rd_atomic: 4,
    min_rnr_timer: 1,
    timeout: 8,
    retry_cnt: 3,
    rnr_retry: 3,
};

const CAP: ibv_qp_cap =
    ibv_qp_cap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 6, max_recv_sge: 6, max_inline_data: 64 };

/// Registered memory, as words.
#[derive(Clone, Copy)]
struct Region {
    mr: NonNull<ibv_mr>,
    words: *mut [u64],
    live: bool,
}

impl Region {
    fn addr(&self) -> u64 {
        self.words.cast::<u8>().expose_provenance() as u64
    }

    fn lkey(&self) -> u32 {
        // SAFETY: the region is registered: no test asks for a key of a region that has ended.
        unsafe { (*self.mr.as_ptr()).lkey }
    }

    fn rkey(&self) -> u32 {
        // SAFETY: the region is registered: no test asks for a key of a region that has ended.
        unsafe { (*self.mr.as_ptr()).rkey }
    }

    fn sge(&self, offset: u64, length: u32) -> ibv_sge {
        ibv_sge { addr: self.addr().wrapping_add(offset), length, lkey: self.lkey() }
    }

    fn set(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.words.len() * 8);
        // SAFETY: the node of the region keeps the memory. The bytes are inside the memory (checked above), and the
        // device does not access them now.
        unsafe { ptr::copy(bytes.as_ptr(), self.words.cast(), bytes.len()) };
    }

    fn get(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(len <= self.words.len() * 8);
        // SAFETY: the node of the region keeps the memory. The bytes are inside the memory (checked above), and the
        // device does not access them now.
        unsafe { ptr::copy(self.words.cast(), bytes.as_mut_ptr(), len) };
        bytes
    }
}

impl Node {
    fn new(fabric: &Fabric, name: &str) -> Self {
        Self::with_depth(fabric, name, 64)
    }

    fn with_depth(fabric: &Fabric, name: &str, depth: u32) -> Self {
        let context = fabric.open(name).unwrap();
        // SAFETY: the context is open.
        let domain = unsafe { Soft.alloc_pd(context) }.unwrap();
        // SAFETY: the context is open.
        let channel = unsafe { Soft.create_comp_channel(context) }.unwrap();
        // SAFETY: the context is open, and the channel belongs to it.
        let cq = unsafe { Soft.create_cq(context, depth, channel, 0) }.unwrap();
        Self {
            context,
            domain,
            channel,
            cq,
            pairs: RefCell::default(),
            regions: RefCell::default(),
            queues: RefCell::default(),
            windows: RefCell::default(),
            addresses: RefCell::default(),
        }
    }

    fn init_attributes(&self) -> ibv_qp_init_attr {
        ibv_qp_init_attr {
            send_cq: self.cq.as_ptr(),
            recv_cq: self.cq.as_ptr(),
            cap: CAP,
            qp_type: ibv_qp_type::IBV_QPT_RC,
            ..ibv_qp_init_attr::default()
        }
    }

    fn create(&self, mut attributes: ibv_qp_init_attr) -> Result<NonNull<ibv_qp>, Errno> {
        // SAFETY: the domain and the queues in the attributes are alive.
        let qp = unsafe { Soft.create_qp(self.domain, &mut attributes) }.map_err(|error| error.errno())?;
        self.pairs.borrow_mut().push(qp);
        Ok(qp)
    }

    fn pair_with(&self, settings: Settings) -> Pair {
        let qp = self.create(ibv_qp_init_attr { qp_type: settings.transport, ..self.init_attributes() }).unwrap();
        Pair { qp, gid: self.gid(1), settings }
    }

    /// The GID at an index of the table.
    fn gid(&self, row: usize) -> [u8; 16] {
        // SAFETY: the context is open.
        let table = unsafe { Soft.query_gid_table(self.context) }.unwrap();
        // SAFETY: all bytes of the union are set.
        unsafe { table[row].gid.raw }
    }

    fn pair(&self) -> Pair {
        self.pair_with(SETTINGS)
    }

    fn try_register(&self, words: usize, access: u32) -> Result<Region, Errno> {
        self.register_in(self.domain, words, access)
    }

    fn register_in(&self, domain: NonNull<ibv_pd>, words: usize, access: u32) -> Result<Region, Errno> {
        let words = Box::into_raw(vec![0_u64; words].into_boxed_slice());
        // SAFETY: the domain is alive. The memory stays allocated until the region has ended: the drop of the node
        // first ends the region, and then frees the memory.
        match unsafe { Soft.reg_mr(domain, words.cast(), words.len() * 8, ibv_access_flags(access)) } {
            Ok(mr) => {
                let region = Region { mr, words, live: true };
                self.regions.borrow_mut().push(region);
                Ok(region)
            }
            Err(error) => {
                // SAFETY: the registration failed, so the device does not have the memory.
                drop(unsafe { Box::from_raw(words) });
                Err(error.errno())
            }
        }
    }

    fn memory(&self, words: usize, access: u32) -> Region {
        self.try_register(words, access).unwrap()
    }

    fn deregister(&self, region: &Region) -> Result<(), Errno> {
        // SAFETY: the region is registered: no test deregisters a region twice.
        unsafe { Soft.dereg_mr(region.mr) }.map_err(|error| error.errno())?;
        self.regions.borrow_mut().iter_mut().filter(|other| other.mr == region.mr).for_each(|other| other.live = false);
        Ok(())
    }

    fn destroy(&self, pair: Pair) -> Result<(), Errno> {
        // SAFETY: the pair is alive: no test destroys a pair twice.
        unsafe { Soft.destroy_qp(pair.qp) }.map_err(|error| error.errno())?;
        self.pairs.borrow_mut().retain(|qp| *qp != pair.qp);
        Ok(())
    }

    fn poll_raw(&self, room: usize) -> Result<Vec<ibv_wc>, Errno> {
        let mut wcs = vec![ibv_wc::default(); room];
        let poll = self.ops().poll_cq.unwrap();
        // SAFETY: the queue is alive, and the array has room for `room` completions.
        let found = unsafe { poll(self.cq.as_ptr(), room as i32, wcs.as_mut_ptr()) };
        if found < 0 {
            return Err(-found);
        }
        wcs.truncate(found as usize);
        Ok(wcs)
    }

    fn poll(&self) -> Vec<ibv_wc> {
        self.poll_raw(64).unwrap()
    }

    /// The id and the status of each completion.
    fn completed(&self) -> Vec<(u64, ibv_wc_status)> {
        self.poll().iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Polls until something has completed.
    fn wait(&self) -> Vec<(u64, ibv_wc_status)> {
        let start = Instant::now();
        loop {
            let completed = self.completed();
            if !completed.is_empty() || start.elapsed() > Duration::from_secs(20) {
                return completed;
            }
            std::thread::yield_now();
        }
    }

    fn arm(&self, solicited_only: bool) {
        let arm = self.ops().req_notify_cq.unwrap();
        // SAFETY: the queue is alive.
        assert_eq!(unsafe { arm(self.cq.as_ptr(), i32::from(solicited_only)) }, 0);
    }

    fn next_timer(&self) -> Option<Duration> {
        // SAFETY: the context is open.
        unsafe { Soft.next_timer(self.context) }
    }

    fn take_event(&self) -> bool {
        // SAFETY: the channel is alive.
        unsafe { Soft.take_cq_event_of(self.channel) }.unwrap().is_some()
    }

    fn ops(&self) -> ibv_context_ops {
        // SAFETY: the context is open.
        unsafe { (*self.context.as_ptr()).ops }
    }

    /// Posts sends. Returns the result of `ibv_post_send`, and the id of the request that it refuses.
    fn post_send(&self, pair: Pair, wrs: &mut [ibv_send_wr]) -> (Errno, Option<u64>) {
        let mut next = ptr::null_mut();
        for wr in wrs.iter_mut().rev() {
            wr.next = next;
            next = wr;
        }
        let mut bad = ptr::null_mut::<ibv_send_wr>();
        let post = self.ops().post_send.unwrap();
        // SAFETY: the pair is alive, and `next` is a list of requests. Inline data live until the post returns. All
        // other memory that the device accesses is registered, and a node keeps the memory of its regions until the
        // node is dropped.
        let errno = unsafe { post(pair.qp.as_ptr(), next, &mut bad) };
        // SAFETY: `bad` is null, or points to a request of the list.
        (errno, unsafe { bad.as_ref() }.map(|bad| bad.wr_id))
    }

    fn post_receives(&self, pair: Pair, wrs: &mut [ibv_recv_wr]) -> (Errno, Option<u64>) {
        let mut next = ptr::null_mut();
        for wr in wrs.iter_mut().rev() {
            wr.next = next;
            next = wr;
        }
        let mut bad = ptr::null_mut::<ibv_recv_wr>();
        let post = self.ops().post_recv.unwrap();
        // SAFETY: the pair is alive, and `next` is a list of requests. The device writes only to registered memory, and
        // a node keeps the memory of its regions until the node is dropped.
        let errno = unsafe { post(pair.qp.as_ptr(), next, &mut bad) };
        // SAFETY: `bad` is null, or points to a request of the list.
        (errno, unsafe { bad.as_ref() }.map(|bad| bad.wr_id))
    }

    /// Posts one request.
    fn send(&self, pair: Pair, wr: Request) {
        assert_eq!(self.try_send(pair, wr), 0);
    }

    fn try_send(&self, pair: Pair, wr: Request) -> Errno {
        let mut sges = wr.sges.clone();
        self.post_send(pair, &mut [wr.raw(&mut sges)]).0
    }

    /// Posts one receive.
    fn receive(&self, pair: Pair, id: u64, sges: &[ibv_sge]) {
        assert_eq!(self.try_receive(pair, id, sges), 0);
    }

    fn try_receive(&self, pair: Pair, id: u64, sges: &[ibv_sge]) -> Errno {
        let mut sges = sges.to_vec();
        let wr = receive_wr(id, &mut sges);
        self.post_receives(pair, &mut [wr]).0
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for qp in self.pairs.take() {
            // SAFETY: the pair is alive: `destroy` removes ended pairs from the list.
            unsafe { Soft.destroy_qp(qp) }.unwrap();
        }
        for queue in self.queues.take() {
            // SAFETY: the queue is alive: a test that destroys a shared queue removes it from the list.
            unsafe { Soft.destroy_srq(queue) }.unwrap();
        }
        for window in self.windows.take() {
            // SAFETY: the window is alive: a test that frees a window removes it from the list.
            unsafe { Soft.dealloc_mw(window) }.unwrap();
        }
        for address in self.addresses.take() {
            // SAFETY: the address handle is alive: a test that destroys a handle removes it from the list.
            unsafe { Soft.destroy_ah(address) }.unwrap();
        }
        for region in self.regions.take() {
            if region.live {
                // SAFETY: the region is registered (`live`).
                unsafe { Soft.dereg_mr(region.mr) }.unwrap();
            }
            // SAFETY: the memory is no longer registered.
            drop(unsafe { Box::from_raw(region.words) });
        }
        // SAFETY: the queue is alive, and nobody uses it any more.
        unsafe { Soft.destroy_cq(self.cq) }.unwrap();
        // SAFETY: the channel is alive, and nobody uses it any more.
        unsafe { Soft.destroy_comp_channel(self.channel) }.unwrap();
        // SAFETY: the domain is alive, and nobody uses it any more.
        unsafe { Soft.dealloc_pd(self.domain) }.unwrap();
        // SAFETY: the context is open, and nobody uses it any more.
        unsafe { Soft.close_device(self.context) }.unwrap();
    }
}

fn receive_wr(id: u64, sges: &mut [ibv_sge]) -> ibv_recv_wr {
    ibv_recv_wr { wr_id: id, sg_list: sges.as_mut_ptr(), num_sge: sges.len() as i32, ..ibv_recv_wr::default() }
}

impl Pair {
    fn qpn(self) -> u32 {
        // SAFETY: the pair is alive: no test uses a pair that it has destroyed.
        unsafe { (*self.qp.as_ptr()).qp_num }
    }

    fn modify(self, mut attributes: ibv_qp_attr, mask: u32) -> Result<(), Errno> {
        // SAFETY: the pair is alive: no test uses a pair that it has destroyed.
        unsafe { Soft.modify_qp(self.qp, &mut attributes, ibv_qp_attr_mask(mask)) }.map_err(|error| error.errno())
    }

    /// Makes a transition that needs no attribute except the state.
    fn enter(self, state: ibv_qp_state) -> Result<(), Errno> {
        let attributes = ibv_qp_attr { qp_state: state, ..ibv_qp_attr::default() };
        self.modify(attributes, ibv_qp_attr_mask::IBV_QP_STATE.0)
    }

    fn query(self) -> ibv_qp_attr {
        // SAFETY: the pair is alive: no test uses a pair that it has destroyed.
        unsafe { Soft.query_qp(self.qp, ibv_qp_attr_mask(0x1f_ffff)) }.unwrap()
    }

    fn state(self) -> ibv_qp_state {
        self.query().qp_state
    }

    fn init(self) -> Result<(), Errno> {
        let (attributes, mask) = self.init_with();
        self.modify(attributes, mask)
    }

    fn init_with(self) -> (ibv_qp_attr, u32) {
        use ibv_qp_attr_mask as M;
        let attributes = ibv_qp_attr {
            qp_state: INIT,
            port_num: 1,
            qp_access_flags: self.settings.access,
            qkey: self.settings.qkey,
            ..ibv_qp_attr::default()
        };
        let rights = if self.settings.transport == UD { M::IBV_QP_QKEY } else { M::IBV_QP_ACCESS_FLAGS };
        (attributes, (M::IBV_QP_STATE | M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | rights).0)
    }

    fn rtr_with(self, peer: Pair) -> (ibv_qp_attr, u32) {
        use ibv_qp_attr_mask as M;
        let mut attributes = ibv_qp_attr {
            qp_state: RTR,
            path_mtu: self.settings.mtu,
            dest_qp_num: peer.qpn(),
            rq_psn: self.settings.rq_psn,
            max_dest_rd_atomic: self.settings.max_dest_rd_atomic,
            min_rnr_timer: self.settings.min_rnr_timer,
            ..ibv_qp_attr::default()
        };
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.port_num = 1;
        attributes.ah_attr.grh.sgid_index = 1;
        attributes.ah_attr.grh.hop_limit = 64;
        attributes.ah_attr.grh.dgid = ibv_gid { raw: peer.gid };
        let path = M::IBV_QP_AV | M::IBV_QP_PATH_MTU | M::IBV_QP_DEST_QPN | M::IBV_QP_RQ_PSN;
        let mask = match self.settings.transport {
            UD => M(0),
            UC => path,
            _ => path | M::IBV_QP_MAX_DEST_RD_ATOMIC | M::IBV_QP_MIN_RNR_TIMER,
        };
        (attributes, (M::IBV_QP_STATE | mask).0)
    }

    fn rtr(self, peer: Pair) -> Result<(), Errno> {
        let (attributes, mask) = self.rtr_with(peer);
        self.modify(attributes, mask)
    }

    fn rts_with(self) -> (ibv_qp_attr, u32) {
        use ibv_qp_attr_mask as M;
        let attributes = ibv_qp_attr {
            qp_state: RTS,
            sq_psn: self.settings.sq_psn,
            timeout: self.settings.timeout,
            retry_cnt: self.settings.retry_cnt,
            rnr_retry: self.settings.rnr_retry,
            max_rd_atomic: self.settings.max_rd_atomic,
            ..ibv_qp_attr::default()
        };
        let reliable = M::IBV_QP_TIMEOUT | M::IBV_QP_RETRY_CNT | M::IBV_QP_RNR_RETRY | M::IBV_QP_MAX_QP_RD_ATOMIC;
        let mask = if self.settings.transport == RC { reliable } else { M(0) };
        (attributes, (M::IBV_QP_STATE | M::IBV_QP_SQ_PSN | mask).0)
    }

    fn rts(self) -> Result<(), Errno> {
        let (attributes, mask) = self.rts_with();
        self.modify(attributes, mask)
    }

    fn connect(self, peer: Pair) {
        self.init().unwrap();
        self.rtr(peer).unwrap();
        self.rts().unwrap();
    }
}

/// Two nodes, each with a pair. The pairs are connected to each other.
struct Link {
    fabric: Fabric,
    left: Node,
    right: Node,
    a: Pair,
    b: Pair,
    /// The id of the next request of `works`.
    next: Cell<u64>,
}

impl Link {
    fn new(fabric: Fabric) -> Self {
        Self::with(fabric, SETTINGS, SETTINGS)
    }

    fn automatic() -> Self {
        Self::new(Fabric::new())
    }

    fn manual() -> Self {
        Self::new(Fabric::manual())
    }

    fn with(fabric: Fabric, a: Settings, b: Settings) -> Self {
        let (left, right) = (Node::new(&fabric, "left"), Node::new(&fabric, "right"));
        let (a, b) = (left.pair_with(a), right.pair_with(b));
        a.connect(b);
        b.connect(a);
        Self { fabric, left, right, a, b, next: Cell::new(100) }
    }

    /// Posts `request` on the left and returns its status, after all its timers have fired.
    fn status(&self, request: Request) -> ibv_wc_status {
        let id = request.id;
        self.left.send(self.a, request);
        let completed = self.left.wait();
        assert_eq!(completed.first().map(|(first, _)| *first), Some(id));
        completed[0].1
    }

    /// Whether a message still arrives from left to right.
    fn works(&self) -> bool {
        let id = self.next.replace(self.next.get() + 1);
        self.right.try_receive(self.b, id, &[]) == 0 && self.left.try_send(self.a, Request::send(id, &[])) == 0 && {
            self.fabric.run();
            self.left.wait().contains(&(id, SUCCESS)) && self.right.completed().contains(&(id, SUCCESS))
        }
    }
}
