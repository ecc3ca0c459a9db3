//! The calls that a session makes to a provider, and the state after each failure. The provider of these tests records
//! its calls.
#![allow(unsafe_code, reason = "is a provider")]

use crate::inflight::ledger::{Origin, ledger};
use crate::inflight::{
    PairStatus, PostAllError, PostError, SendQueue, Terms, WorkRequest, has_all_functions, post_all,
};
use crate::provider::handles::PostEnd;
use crate::provider::reviewed::{Sessions, UNREVIEWED};
use crate::queue::Posting;
use crate::queue::batch::batch;
use crate::queue::create::post_limits;
use crate::soft::Fabric;
use crate::sys::{self, ibv_qp_ex, ibv_qp_type, inline::PostSend};
use crate::{
    Brand, Buffer, Context, Inline, Limits, ProtectionDomain, ReliableConnection, RemoteAll, RemoteRegion, Scoped,
};
use std::cell::{Cell, RefCell};
use std::convert::identity;
use std::ffi::c_int;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

thread_local! {
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static ANSWER: Cell<c_int> = const { Cell::new(0) };
}
type Qp = *mut ibv_qp_ex;
const RC: ibv_qp_type = ibv_qp_type::IBV_QPT_RC;

fn note(call: String) {
    CALLS.with_borrow_mut(|calls| calls.push(call));
}

fn calls() -> Vec<String> {
    CALLS.with_borrow_mut(mem::take)
}

/// Records the operation, with the flags that are set for it.
fn begin(qp: Qp, call: String) {
    // SAFETY: `qp` is the pair that `with_queue` made. It lives in `with_queue` until all posts have returned.
    note(format!("{call} {:#x}", unsafe { (*qp).wr_flags }));
}

extern "C" fn start(_: Qp) {
    note("start".into());
}
extern "C" fn complete(_: Qp) -> c_int {
    note("complete".into());
    ANSWER.get()
}
extern "C" fn abort(_: Qp) {
    note("abort".into());
}
extern "C" fn send(qp: Qp) {
    begin(qp, "send".into());
}
extern "C" fn send_imm(qp: Qp, immediate: u32) {
    begin(qp, format!("send_imm {}", u32::from_be(immediate)));
}
extern "C" fn write(qp: Qp, rkey: u32, address: u64) {
    begin(qp, format!("write {rkey} {address:#x}"));
}
extern "C" fn write_imm(qp: Qp, rkey: u32, address: u64, immediate: u32) {
    begin(qp, format!("write_imm {rkey} {address:#x} {}", u32::from_be(immediate)));
}
extern "C" fn read(qp: Qp, rkey: u32, address: u64) {
    begin(qp, format!("read {rkey} {address:#x}"));
}
extern "C" fn cmp_swp(qp: Qp, rkey: u32, address: u64, compare: u64, swap: u64) {
    begin(qp, format!("cmp_swp {rkey} {address:#x} {compare} {swap}"));
}
extern "C" fn fetch_add(qp: Qp, rkey: u32, address: u64, add: u64) {
    begin(qp, format!("fetch_add {rkey} {address:#x} {add}"));
}
extern "C" fn set_sge(_: Qp, _: u32, _: u64, length: u32) {
    note(format!("sge {length}"));
}
extern "C" fn set_sge_list(_: Qp, count: usize, _: *const sys::ibv_sge) {
    note(format!("sge_list {count}"));
}
extern "C" fn set_inline(_: Qp, bytes: *mut std::ffi::c_void, length: usize) {
    // SAFETY: `ibv_wr_set_inline_data` passes `length` bytes, which stay readable during the call.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
    note(format!("inline {bytes:?}"));
}

fn provider() -> ibv_qp_ex {
    // SAFETY: `ibv_qp_ex` is a C struct of numbers and nullable pointers, so all bytes can be zero.
    let mut qp: ibv_qp_ex = unsafe { mem::zeroed() };
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
    qp.wr_send = Some(send);
    qp.wr_send_imm = Some(send_imm);
    qp.wr_rdma_read = Some(read);
    qp.wr_rdma_write = Some(write);
    qp.wr_rdma_write_imm = Some(write_imm);
    qp.wr_atomic_cmp_swp = Some(cmp_swp);
    qp.wr_atomic_fetch_add = Some(fetch_add);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_set_inline_data = Some(set_inline);
    qp
}

extern "C" fn no_list(_: *mut sys::ibv_qp, _: *mut sys::ibv_send_wr, _: *mut *mut sys::ibv_send_wr) -> c_int {
    unreachable!("the queue posts in sessions")
}

/// Runs `f` with a queue of `depth` on the recording provider, and with memory of a peer.
fn with_queue(
    depth: u32,
    f: impl for<'pd> FnOnce(&mut SendQueue, &ProtectionDomain<Scoped<'pd>>, RemoteRegion<RemoteAll>),
) {
    let context = Context::open_on(&Fabric::new(), "soft0").unwrap();
    let mut provider = provider();
    assert!(has_all_functions(&provider, RC, Posting::WorkRequestApi));
    let raw = NonNull::from(&mut provider);
    calls();
    ANSWER.set(0);
    context
        .with_domain(|domain| {
            let posting = Posting::WorkRequestApi;
            let limits = Limits { sends: depth, inline_bytes: 32, elements: 3, posting, ..Limits::default() };
            let (poster, mut retirer) = ledger(&domain.inner.ledgers, depth, 0, Origin::default());
            let status =
                PairStatus::new(&UNREVIEWED, 1, RC, domain.inner.id(), [poster.detour_of(), poster.detour_of()]);
            status.send_in_sessions();
            let terms = Terms { limits: post_limits(&limits, &UNREVIEWED, false), status };
            // `end` points to `provider`, a variable outside this closure, and moves into `queue`, which is dropped at
            // the end of this closure. So `provider` outlives `end`.
            let end = PostEnd::without_handle(raw.cast(), no_list as PostSend, true);
            let mut queue = SendQueue::new(poster, end, terms);
            let region = domain.register::<RemoteAll, _>(vec![0_u64; 8]).unwrap();
            f(&mut queue, &domain, region.remote());
            while retirer.take(&crate::inflight::Quiescent::without_device()).is_some() {}
        })
        .unwrap();
}

#[test]
fn each_operation_is_its_call_with_its_flags() {
    with_queue(16, |queue, domain, remote| {
        let (address, rkey) = (remote.address(), remote.rkey().0);
        let buffer = || domain.buffer(8).unwrap();
        let word = remote.slice(0..8).unwrap();
        queue.post(WorkRequest::send(buffer()), identity).unwrap();
        assert_eq!(calls(), ["start", "send 0x2", "sge 8", "complete"]);
        queue.post(WorkRequest::send(buffer().share()).with_immediate(7).solicited(), identity).unwrap();
        assert_eq!(calls(), ["start", "send_imm 7 0x6", "sge 8", "complete"]);
        queue.post(WorkRequest::write(buffer(), &remote).unsignalled().fenced(), identity).unwrap();
        assert_eq!(calls(), ["start", &format!("write {rkey} {address:#x} 0x1"), "sge 8", "complete"]);
        queue
            .post::<Scoped<'_>, _, _, _>(WorkRequest::write(Inline(&[1, 2]), &remote).with_immediate(9), identity)
            .unwrap();
        assert_eq!(calls(), ["start", &format!("write_imm {rkey} {address:#x} 9 0xa"), "inline [1, 2]", "complete"]);
        queue.post(WorkRequest::read(buffer(), &word), identity).unwrap();
        assert_eq!(calls(), ["start", &format!("read {rkey} {address:#x} 0x2"), "sge 8", "complete"]);
        queue.post(WorkRequest::compare_and_swap(buffer(), &remote, 3, 4), identity).unwrap();
        assert_eq!(calls(), ["start", &format!("cmp_swp {rkey} {address:#x} 3 4 0x2"), "sge 8", "complete"]);
        queue.post(WorkRequest::fetch_and_add(buffer(), &remote, 5), identity).unwrap();
        assert_eq!(calls(), ["start", &format!("fetch_add {rkey} {address:#x} 5 0x2"), "sge 8", "complete"]);
        let list: crate::memory::BufferList<_> = domain.buffers(3, 8).unwrap().into_iter().collect();
        queue.post(WorkRequest::send(list), identity).unwrap();
        assert_eq!(calls(), ["start", "send 0x2", "sge_list 3", "complete"]);
        let mut empty = buffer();
        empty.set_len(0).unwrap();
        queue.post(WorkRequest::send(empty), identity).unwrap();
        assert_eq!(calls(), ["start", "send 0x2", "sge_list 0", "complete"]);
        queue.post::<Scoped<'_>, _, _, _>(WorkRequest::send(Inline(b"")), identity).unwrap();
        assert_eq!(calls(), ["start", "send 0x2", "sge_list 0", "complete"]);
    });
}

#[test]
fn a_batch_is_one_session_and_the_last_slot_is_signalled() {
    with_queue(4, |queue, domain, _| {
        let requests = domain.buffers(3, 8).unwrap().into_iter().map(|buffer| WorkRequest::send(buffer).unsignalled());
        batch::<_, ReliableConnection, _>(queue, |batch| {
            batch.post(WorkRequest::send(domain.buffer(8).unwrap()).unsignalled()).unwrap();
            assert_eq!(batch.post_each(requests).unwrap(), 3);
            assert_eq!(
                batch.post_each(std::iter::empty::<WorkRequest<Inline<'_>, crate::request::Send>>()).unwrap(),
                0
            );
        })
        .unwrap();
        let sends = ["send 0x0", "sge 8"].repeat(3);
        assert_eq!(calls(), [&["start"], &sends[..], &["send 0x2", "sge 8", "complete"]].concat());
        batch::<_, ReliableConnection, _>(queue, |batch| {
            let full = batch.post(WorkRequest::send(domain.buffer(8).unwrap()));
            assert!(matches!(full, Err(PostError::QueueFull(_))));
        })
        .unwrap();
        assert!(calls().is_empty(), "an empty batch has no session");
    });
}

#[test]
fn of_all_items_the_last_is_signalled_in_its_session() {
    with_queue(64, |queue, domain, _| {
        for count in [1, 2, 40] {
            let mut buffers = domain.buffers(count, 8).unwrap();
            // `WorkRequest::send` makes signalled requests, but `post_all` signals only the last of them.
            batch::<_, ReliableConnection, _>(queue, |batch| {
                assert_eq!(batch.post_all(&mut buffers, WorkRequest::send).unwrap(), count);
            })
            .unwrap();
            let calls = calls();
            let flags: Vec<_> = calls.iter().filter_map(|call| call.strip_prefix("send ")).collect();
            assert_eq!(flags, [&vec!["0x0"; count - 1][..], &["0x2"]].concat());
            assert_eq!(calls.iter().filter(|call| *call == "complete").count(), count.div_ceil(32));
        }
    });
    with_queue(4, |queue, domain, _| {
        let mut buffers = domain.buffers(6, 8).unwrap();
        batch::<_, ReliableConnection, _>(queue, |batch| {
            assert_eq!(batch.post_all(&mut buffers, WorkRequest::send).unwrap(), 4);
        })
        .unwrap();
        let sends = ["send 0x0", "sge 8"].repeat(3);
        assert_eq!(calls(), [&["start"], &sends[..], &["send 0x2", "sge 8", "complete"]].concat());
        assert_eq!(buffers.len(), 2);
    });
}

/// How many requests went into how many sessions, and the flags of the last request. All other requests have no flags.
fn sent() -> (usize, usize, u32) {
    let calls = calls();
    let flags: Vec<_> = calls.iter().filter_map(|call| call.strip_prefix("send ")).collect();
    let (last, others) = flags.split_last().map_or(("0x0", &[][..]), |(last, others)| (*last, others));
    assert!(others.iter().all(|&flags| flags == "0x0"), "{flags:?}");
    let sessions = calls.iter().filter(|call| *call == "start").count();
    assert_eq!(calls.iter().filter(|call| *call == "complete").count(), sessions);
    (flags.len(), sessions, u32::from_str_radix(&last[2..], 16).unwrap())
}

#[test]
fn all_items_that_just_fit_are_one_session_whose_last_is_signalled() {
    let counts = if cfg!(miri) { &[1, 2, 33][..] } else { &[1, 2, 15, 16, 17, 18, 31, 32, 33] };
    for &count in counts {
        with_queue(count, |queue, domain, _| {
            let count = count as usize;
            let mut buffers = domain.buffers(count, 8).unwrap();
            batch::<_, ReliableConnection, _>(queue, |batch| {
                assert_eq!(batch.post_all(&mut buffers, WorkRequest::send).unwrap(), count);
                let full = batch.post(WorkRequest::send(domain.buffer(8).unwrap()));
                assert!(matches!(full, Err(PostError::QueueFull(_))));
            })
            .unwrap();
            assert_eq!((sent(), buffers.len()), ((count, count.div_ceil(32), 2), 0));
            assert_eq!((queue.outstanding() as usize, queue.room()), (count, 0));
        });
    }
    // In the first batch below, `post_all` comes after a single request, and goes into the same session.
    with_queue(8, |queue, domain, _| {
        let mut buffers = domain.buffers(4, 8).unwrap();
        batch::<_, ReliableConnection, _>(queue, |batch| {
            batch.post(WorkRequest::send(domain.buffer(8).unwrap()).unsignalled()).unwrap();
            assert_eq!(batch.post_all(&mut buffers, WorkRequest::send).unwrap(), 4);
        })
        .unwrap();
        assert_eq!(sent(), (5, 1, 2));
        batch::<_, ReliableConnection, _>(queue, |batch| {
            assert_eq!(batch.post_all(&mut buffers, WorkRequest::send).unwrap(), 0);
        })
        .unwrap();
        assert!(calls().is_empty(), "of nothing there is no session");
    });
}

#[test]
fn an_item_that_does_not_go_is_refused_wherever_it_is() {
    for &at in if cfg!(miri) { &[16][..] } else { &[0, 15, 16, 31] } {
        with_queue(32, |queue, domain, remote| {
            let short = remote.slice(0..4).unwrap();
            let mut buffers = domain.buffers(32, 8).unwrap();
            let mut made = 0;
            batch::<_, ReliableConnection, _>(queue, |batch| {
                let error = batch
                    .post_all(&mut buffers, |buffer| {
                        made += 1;
                        WorkRequest::write(buffer, if made == at + 1 { &short } else { &remote })
                    })
                    .unwrap_err();
                assert!(matches!(error, PostError::Flawed { .. }), "{error:?}");
            })
            .unwrap();
            let calls = calls();
            let writes: Vec<_> = calls.iter().filter(|call| call.starts_with("write")).collect();
            assert!(writes.len() == at && writes.iter().all(|call| call.ends_with(" 0x0")), "{calls:?}");
            assert_eq!((buffers.len(), queue.outstanding() as usize), (31 - at, at));
            assert_eq!(calls.last().map(String::as_str), Some(if at == 0 { "abort" } else { "complete" }));
        });
        with_queue(32, |queue, domain, _| {
            let mut buffers = domain.buffers(32, 8).unwrap();
            let mut made = 0;
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                batch::<_, ReliableConnection, _>(queue, |batch| {
                    let all = batch.post_all(&mut buffers, |buffer| {
                        made += 1;
                        assert!(made != at + 1, "in the making");
                        WorkRequest::send(buffer)
                    });
                    all.map(drop).unwrap();
                })
                .unwrap();
            }));
            assert!(panicked.is_err());
            let calls = calls();
            assert_eq!(calls.iter().filter(|call| call.starts_with("send")).count(), at);
            assert_eq!(calls.last().map(String::as_str), Some("abort"));
            // The aborted session has posted none of its requests, and their buffers are freed. `buffers` still has the
            // items after the one at which the closure panicked.
            assert_eq!((buffers.len(), queue.outstanding(), queue.room()), (31 - at, 0, 32));
            batch::<_, ReliableConnection, _>(queue, |batch| batch.post_all(&mut buffers, WorkRequest::send).map(drop))
                .unwrap()
                .unwrap();
            assert_eq!(queue.outstanding() as usize, 31 - at);
        });
    }
}

#[test]
fn a_single_post_knows_when_it_must_not_or_must_be_signalled() {
    with_queue(2, |queue, domain, remote| {
        let send = || WorkRequest::send(domain.buffer(8).unwrap()).unsignalled();
        queue.post(send(), identity).unwrap();
        assert_eq!(calls(), ["start", "send 0x0", "sge 8", "complete"]);
        queue.post(send(), identity).unwrap();
        assert_eq!(calls(), ["start", "send 0x2", "sge 8", "complete"], "the last slot is signalled");
        assert!(matches!(queue.post(send(), identity), Err(PostError::QueueFull(_))));
        let write = || WorkRequest::write(domain.buffer(8).unwrap(), &remote);
        assert!(matches!(queue.post(write(), identity), Err(PostError::QueueFull(_))));
        assert!(calls().is_empty());
    });
    with_queue(2, |queue, domain, remote| {
        queue.poison();
        let request = WorkRequest::write(domain.buffer(8).unwrap(), &remote);
        assert!(matches!(queue.post(request, identity), Err(PostError::Broken { .. })));
        let inline = queue.post::<Scoped<'_>, _, _, _>(WorkRequest::send(Inline(&[1])), identity);
        assert!(matches!(inline, Err(PostError::Broken { .. })));
        let mut buffers = domain.buffers(2, 8).unwrap();
        batch::<_, ReliableConnection, _>(queue, |batch| {
            let error = batch.post_all(&mut buffers, WorkRequest::send).unwrap_err();
            assert!(matches!(error, PostError::Broken { .. }), "{error:?}");
        })
        .unwrap();
        assert_eq!((calls().len(), buffers.len(), queue.outstanding()), (0, 1, 0));
    });
}

#[test]
fn a_batch_that_panics_aborts_its_session_and_gives_its_slots_back() {
    with_queue(4, |queue, domain, _| {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            batch::<_, ReliableConnection, _>(queue, |batch| {
                batch.post(WorkRequest::send(domain.buffer(8).unwrap())).unwrap();
                panic!("in the closure");
            })
        }));
        let _: Box<_> = panicked.map(|_: Result<(), _>| ()).unwrap_err();
        assert_eq!(calls(), ["start", "send 0x2", "sge 8", "abort"]);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let requests = (0..3).map(|at| {
                assert!(at < 2, "in the iterator");
                WorkRequest::send(domain.buffer(8).unwrap())
            });
            batch::<_, ReliableConnection, _>(queue, |batch| batch.post_each(requests).map(drop).unwrap()).unwrap();
        }));
        assert!(panicked.is_err());
        assert_eq!(calls(), ["start", "send 0x2", "sge 8", "send 0x2", "sge 8", "abort"]);
        assert_eq!((queue.outstanding(), queue.room()), (0, 4));
    });
}

#[test]
fn a_session_that_fails_keeps_its_memory_and_breaks_the_pair() {
    with_queue(4, |queue, domain, _| {
        ANSWER.set(libc::EINVAL);
        let error = queue.post(WorkRequest::send(domain.buffer(8).unwrap()), identity).unwrap_err();
        assert!(matches!(&error, PostError::Uncertain { source, .. } if source.errno() == libc::EINVAL), "{error:?}");
        assert_eq!(queue.outstanding(), 1);
        let error = queue.post(WorkRequest::send(domain.buffer(8).unwrap()), identity).unwrap_err();
        assert!(matches!(error, PostError::Broken { .. }), "{error:?}");
        assert_eq!(calls(), ["start", "send 0x2", "sge 8", "complete"]);
    });
    with_queue(4, |queue, domain, _| {
        ANSWER.set(libc::ENOMEM);
        let error = batch::<_, ReliableConnection, _>(queue, |batch| {
            for buffer in domain.buffers(2, 8).unwrap() {
                batch.post(WorkRequest::send(buffer)).unwrap();
            }
        })
        .unwrap_err();
        assert_eq!((error.posted, error.refused.len(), error.uncertain), (0, 0, 2));
        assert_eq!((error.source.errno(), queue.outstanding()), (libc::ENOMEM, 2));
    });
    with_queue(4, |queue, domain, _| {
        ANSWER.set(libc::ENOMEM);
        let mut buffers = domain.buffers(3, 8).unwrap();
        let error = post_all(queue, &mut buffers, WorkRequest::send).unwrap_err();
        let PostAllError::Failed(error) = error else { panic!("{error}") };
        assert_eq!((error.posted, error.refused.len(), error.uncertain), (0, 0, 3));
        assert_eq!((error.source.errno(), queue.outstanding(), buffers.len()), (libc::ENOMEM, 3, 0));
        assert!(matches!(error.result, Ok(3)));
        let error = post_all(queue, &mut domain.buffers(3, 8).unwrap(), WorkRequest::send);
        let error = error.unwrap_err();
        assert!(
            matches!(&error, PostAllError::Stopped(error) if matches!(**error, PostError::Broken { .. })),
            "{error:?}"
        );
    });
}

#[test]
fn all_items_go_through_one_session_or_none() {
    /// Posts all of `items` and panics at number `bad`.
    fn all<B: Brand>(queue: &mut SendQueue, items: &mut Vec<Buffer<B>>, bad: usize) -> Option<usize> {
        let mut made = 0;
        let posted = post_all(queue, items, |buffer| {
            made += 1;
            assert_ne!(made, bad, "in the program's code");
            WorkRequest::send(buffer)
        });
        posted.ok()
    }
    with_queue(4, |queue, domain, _| {
        let mut buffers = domain.buffers(4, 8).unwrap();
        assert_eq!(all(queue, &mut buffers, 0).unwrap(), 4);
        let added = ["send 0x0", "sge 8"].repeat(3);
        assert_eq!(calls(), [&["start"], &added[..], &["send 0x2", "sge 8", "complete"]].concat());
        // The queue is full, so no session is opened.
        let mut buffers = domain.buffers(2, 8).unwrap();
        assert_eq!((all(queue, &mut buffers, 0).unwrap(), buffers.len(), calls().len()), (0, 2, 0));
    });
    // The panic comes at the first item, at one in the middle, and at the last.
    for bad in [1, 3, 4] {
        with_queue(4, |queue, domain, _| {
            let mut buffers = domain.buffers(4, 8).unwrap();
            assert!(catch_unwind(AssertUnwindSafe(|| all(queue, &mut buffers, bad))).is_err());
            let added = ["send 0x0", "sge 8"].repeat(bad - 1);
            assert_eq!(calls(), [&["start"], &added[..], &["abort"]].concat());
            assert_eq!((queue.outstanding(), queue.room(), buffers.len()), (0, 4, 4 - bad));
        });
    }
}

#[test]
fn a_device_whose_provider_does_not_bear_batches_is_refused() {
    assert!(Sessions::Yes.bears(30) && Sessions::SingleElement.bears(1));
    assert!(!(Sessions::No.bears(1) || Sessions::No.bears(2) || Sessions::SingleElement.bears(2)));
    let mut partial = provider();
    partial.wr_rdma_read = None;
    let has = |kind| has_all_functions(&partial, kind, Posting::WorkRequestApi);
    assert!(!has(RC) && has(ibv_qp_type::IBV_QPT_UC) && !has(ibv_qp_type::IBV_QPT_UD));
}
