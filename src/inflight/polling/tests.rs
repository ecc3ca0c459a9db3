//! The calls that a poll makes to a provider, and their order. The provider of these tests records its calls.

use super::*;
use crate::inflight::QueueKey;
use std::cell::{Cell, RefCell};
use std::ffi::c_uint;
use std::ptr;

thread_local! {
    static CALLS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    /// The results of the next start and next calls. A result of 0 comes with the completion that becomes current.
    static STOCK: RefCell<Vec<(c_int, ibv_wc)>> = const { RefCell::new(Vec::new()) };
    static CURRENT: Cell<ibv_wc> = Cell::new(ibv_wc::default());
}
type Cq = *mut ibv_cq_ex;

fn note(call: &'static str) {
    CALLS.with_borrow_mut(|calls| calls.push(call));
}

fn advance(cq: Cq) -> c_int {
    let (answer, wc) = STOCK
        .with_borrow_mut(|stock| if stock.is_empty() { (libc::ENOENT, ibv_wc::default()) } else { stock.remove(0) });
    CURRENT.set(wc);
    // SAFETY: `cq` is the struct of this test.
    unsafe { (*cq).wr_id = wc.wr_id };
    // SAFETY: `cq` is the struct of this test.
    unsafe { (*cq).status = wc.status };
    answer
}

extern "C" fn start(cq: Cq, _: *mut ibv_poll_cq_attr) -> c_int {
    note("start");
    advance(cq)
}
extern "C" fn next(cq: Cq) -> c_int {
    note("next");
    advance(cq)
}
extern "C" fn end(_: Cq) {
    note("end");
}
extern "C" fn opcode(_: Cq) -> ibv_wc_opcode {
    note("opcode");
    CURRENT.get().opcode
}
extern "C" fn vendor_err(_: Cq) -> u32 {
    note("vendor_err");
    CURRENT.get().vendor_err
}
extern "C" fn byte_len(_: Cq) -> u32 {
    note("byte_len");
    CURRENT.get().byte_len
}
extern "C" fn imm_data(_: Cq) -> u32 {
    note("imm_data");
    // SAFETY: both members of the union are numbers.
    unsafe { CURRENT.get().__bindgen_anon_1.imm_data }
}
extern "C" fn qp_num(_: Cq) -> u32 {
    note("qp_num");
    CURRENT.get().qp_num
}
extern "C" fn src_qp(_: Cq) -> u32 {
    note("src_qp");
    CURRENT.get().src_qp
}
extern "C" fn wc_flags(_: Cq) -> c_uint {
    note("wc_flags");
    CURRENT.get().wc_flags
}
extern "C" fn slid(_: Cq) -> u32 {
    note("slid");
    u32::from(CURRENT.get().slid)
}
extern "C" fn sl(_: Cq) -> u8 {
    note("sl");
    CURRENT.get().sl
}

fn provider(context: &Arc<ExtendedContext>) -> ibv_cq_ex {
    ibv_cq_ex {
        cq_context: Arc::as_ptr(context).cast_mut().cast(),
        start_poll: Some(start),
        next_poll: Some(next),
        end_poll: Some(end),
        read_opcode: Some(opcode),
        read_vendor_err: Some(vendor_err),
        read_byte_len: Some(byte_len),
        read_imm_data: Some(imm_data),
        read_qp_num: Some(qp_num),
        read_src_qp: Some(src_qp),
        read_wc_flags: Some(wc_flags),
        read_slid: Some(slid),
        read_sl: Some(sl),
        ..ibv_cq_ex::default()
    }
}

fn id(kind: QueueKind) -> u64 {
    QueueKey::new(kind, 3).first(5).raw()
}

/// A completion in which every field has another value.
fn wc(kind: QueueKind, status: ibv_wc_status, flags: u32) -> ibv_wc {
    let mut wc = ibv_wc {
        wr_id: id(kind),
        status,
        opcode: ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
        vendor_err: 11,
        byte_len: 12,
        qp_num: 14,
        src_qp: 15,
        wc_flags: flags,
        slid: 16,
        sl: 17,
        ..ibv_wc::default()
    };
    wc.__bindgen_anon_1.imm_data = 13;
    wc
}

const OK: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;
const FAILED: ibv_wc_status = ibv_wc_status::IBV_WC_RETRY_EXC_ERR;

/// Polls a provider that has this `stock`. Returns the result, the completions, and the calls that were made.
fn poll_once(cq: &mut ibv_cq_ex, stock: Vec<(c_int, ibv_wc)>) -> (c_int, Vec<ibv_wc>, Vec<&'static str>) {
    poll_once_by(poll, cq, stock)
}

fn poll_once_by(
    poll: PollCq,
    cq: &mut ibv_cq_ex,
    stock: Vec<(c_int, ibv_wc)>,
) -> (c_int, Vec<ibv_wc>, Vec<&'static str>) {
    STOCK.set(stock);
    let mut room = [ibv_wc::default(); BATCH];
    // SAFETY: `cq` is complete, with a context that is alive; `room` has `BATCH` completions.
    let count = unsafe { poll(ptr::from_mut(cq).cast(), BATCH as c_int, room.as_mut_ptr()) };
    (count, room[..usize::try_from(count).unwrap_or(0)].to_vec(), CALLS.take())
}

#[test]
fn a_look_that_finds_nothing_is_not_ended() {
    let context = Arc::default();
    let mut cq = provider(&context);
    let (count, _, calls) = poll_once(&mut cq, vec![]);
    assert_eq!((count, &calls[..]), (0, &["start"][..]));
    for errno in [libc::EIO, libc::EINVAL, -1, -libc::ENOENT] {
        let (count, _, calls) = poll_once(&mut cq, vec![(errno, wc(QueueKind::Send, OK, 0))]);
        assert_eq!((count, &calls[..]), (-1, &["start"][..]), "{errno}");
    }
}

#[test]
fn of_what_was_sent_nothing_more_is_read() {
    let context = Arc::default();
    let mut cq = provider(&context);
    let (count, taken, calls) = poll_once(&mut cq, vec![(0, wc(QueueKind::Send, OK, 0))]);
    assert_eq!((count, &calls[..]), (1, &["start", "next", "end"][..]));
    assert_eq!((taken[0].wr_id, taken[0].status), (id(QueueKind::Send), OK));
}

#[test]
fn of_what_was_received_all_is_read_that_is_used() {
    let context = Arc::<ExtendedContext>::default();
    let mut cq = provider(&context);
    let (_, taken, calls) = poll_once(&mut cq, vec![(0, wc(QueueKind::Receive, OK, 0))]);
    assert_eq!(calls, ["start", "byte_len", "wc_flags", "next", "end"]);
    assert_eq!((taken[0].opcode, taken[0].byte_len), (ibv_wc_opcode::IBV_WC_RECV, 12));

    let immediate = ibv_wc_flags::IBV_WC_WITH_IMM.0;
    let (_, taken, calls) = poll_once(&mut cq, vec![(0, wc(QueueKind::Shared, OK, immediate))]);
    assert_eq!(calls, ["start", "byte_len", "wc_flags", "opcode", "imm_data", "qp_num", "next", "end"]);
    assert_eq!((taken[0].opcode, taken[0].qp_num), (ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, 14));
    // SAFETY: both members of the union are numbers.
    assert_eq!(unsafe { taken[0].__bindgen_anon_1.imm_data }, 13);

    context.datagrams.store(true, Ordering::Relaxed);
    let (_, taken, calls) = poll_once(&mut cq, vec![(0, wc(QueueKind::Receive, OK, ibv_wc_flags::IBV_WC_GRH.0))]);
    assert_eq!(calls, ["start", "byte_len", "wc_flags", "src_qp", "slid", "sl", "next", "end"]);
    assert_eq!((taken[0].src_qp, taken[0].slid, taken[0].sl, taken[0].wc_flags), (15, 16, 17, 1));
}

#[test]
fn of_a_failure_its_cause_and_its_pair_are_read() {
    let context = Arc::default();
    let mut cq = provider(&context);
    for kind in [QueueKind::Send, QueueKind::Receive, QueueKind::Shared] {
        let (_, taken, calls) = poll_once(&mut cq, vec![(0, wc(kind, FAILED, 0))]);
        assert_eq!(calls, ["start", "vendor_err", "qp_num", "next", "end"]);
        assert_eq!((taken[0].status, taken[0].vendor_err, taken[0].qp_num), (FAILED, 11, 14));
    }
}

#[test]
fn a_look_takes_no_more_than_there_is_room_for() {
    let context = Arc::default();
    let mut cq = provider(&context);
    let (count, taken, calls) = poll_once(&mut cq, vec![(0, wc(QueueKind::Send, OK, 0)); BATCH + 1]);
    assert_eq!((count, taken.len()), (BATCH as c_int, BATCH));
    // The poll does not move on to a completion for which it has no room: that completion would be lost.
    assert_eq!(calls.iter().filter(|call| **call == "next").count(), BATCH - 1);
    assert_eq!((STOCK.with_borrow(Vec::len), calls.last()), (1, Some(&"end")));
}

#[test]
fn a_failure_between_two_completions_is_told_after_the_first() {
    let context = Arc::default();
    let mut cq = provider(&context);
    let some = wc(QueueKind::Send, OK, 0);
    let (count, _, calls) = poll_once(&mut cq, vec![(0, some), (0, some), (-2, some)]);
    assert_eq!((count, &calls[..]), (2, &["start", "next", "next", "end"][..]));
    for _ in 0..2 {
        let (count, _, calls) = poll_once(&mut cq, vec![(0, some)]);
        assert_eq!((count, calls.len()), (-1, 0), "the provider is not asked again");
    }
}

#[test]
fn a_queue_that_lacks_a_function_is_not_complete() {
    let context = Arc::default();
    type Lose = fn(&mut ibv_cq_ex);
    let losses: [Lose; 13] = [
        |cq| cq.cq_context = ptr::null_mut(),
        |cq| cq.start_poll = None,
        |cq| cq.next_poll = None,
        |cq| cq.end_poll = None,
        |cq| cq.read_opcode = None,
        |cq| cq.read_vendor_err = None,
        |cq| cq.read_byte_len = None,
        |cq| cq.read_imm_data = None,
        |cq| cq.read_qp_num = None,
        |cq| cq.read_src_qp = None,
        |cq| cq.read_wc_flags = None,
        |cq| cq.read_slid = None,
        |cq| cq.read_sl = None,
    ];
    assert!(is_complete(&provider(&context), &context));
    for (at, lose) in losses.into_iter().enumerate() {
        let mut cq = provider(&context);
        lose(&mut cq);
        assert!(!is_complete(&cq, &context), "{at}");
    }
}

#[test]
fn where_there_is_no_going_on_each_completion_has_a_look() {
    let context = Arc::default();
    let mut cq = provider(&context);
    let some = wc(QueueKind::Send, OK, 0);
    let (count, _, calls) = poll_once_by(poll_singly, &mut cq, vec![]);
    assert_eq!((count, &calls[..]), (0, &["start"][..]));
    let (count, taken, calls) = poll_once_by(poll_singly, &mut cq, vec![(0, some), (0, wc(QueueKind::Receive, OK, 0))]);
    assert_eq!((count, taken[1].byte_len), (2, 12));
    assert_eq!(calls, ["start", "end", "start", "byte_len", "wc_flags", "end", "start"]);
    let (count, _, calls) = poll_once_by(poll_singly, &mut cq, vec![(0, some); BATCH + 1]);
    assert_eq!((count, calls.len(), STOCK.with_borrow(Vec::len)), (BATCH as c_int, 2 * BATCH, 1));
    let (count, ..) = poll_once_by(poll_singly, &mut cq, vec![(-2, some)]);
    assert_eq!(count, -1);
    CALLS.take();
    let (count, _, calls) = poll_once_by(poll_singly, &mut cq, vec![(0, some), (libc::EIO, some)]);
    assert_eq!((count, &calls[..]), (1, &["start", "end", "start"][..]));
    let (count, _, calls) = poll_once_by(poll_singly, &mut cq, vec![(0, some)]);
    assert_eq!((count, calls.len()), (-1, 0), "the provider is not asked again");
}

#[test]
fn a_device_is_polled_as_its_provider_bears_it() {
    let context = Arc::default();
    for (walk, goes_on) in [(Walk::Yes, true), (Walk::Singly, false)] {
        let poll = poll_of(walk).unwrap();
        let (_, _, calls) = poll_once_by(poll, &mut provider(&context), vec![(0, wc(QueueKind::Send, OK, 0))]);
        assert_eq!(calls.contains(&"next"), goes_on, "{walk:?}");
    }
    assert!(poll_of(Walk::No).is_none());
}
