//! The uses of scopes: messages in the caller's memory, whole and in parts, next to owned buffers and inside scopes of
//! other pairs.

use crate::Wire;
use interlock::error::RequestFlaw;
use interlock::request::Operation;
use interlock::scope::{InScopeError, Lent, LentMut, Scope, Ticket};
use interlock::soft::Fabric;
use interlock::{Brand, PostError, RemoteWrite};
use std::cmp::Reverse;
use std::thread;
use std::time::Instant;
use support::{Need, PATIENCE, Promise, context, lacks, lacks_need, on_hardware};

#[test]
fn borrowed_messages_go_both_ways() {
    // In this test, the peer sends before this side has posted a receive. The message must wait for the receive.
    if lacks_need(Need::Waiting) {
        return;
    }
    let mut wire = wire!();
    wire.peer_posts_receive(64);
    wire.peer_sends(b"from the peer");
    let message = String::from("from a string");
    let mut answer = [0_u8; 64];
    let length = wire
        .exclusive
        .scope(PATIENCE, |scope| {
            let receive = scope.post_receive(scope.lend_mut(&mut answer)?)?;
            let send = scope.post_send(scope.lend(message.as_bytes())?)?;
            assert_eq!(&scope.wait(send)?.memory[..], b"from a string");
            let done = scope.wait(receive)?;
            assert_eq!((&done.memory[..], done.immediate), (&b"from the peer"[..], None));
            Ok::<_, InScopeError>(done.memory.len())
        })
        .unwrap()
        .unwrap();
    assert_eq!(&answer[..length], b"from the peer");
    assert_eq!(wire.peer_received(), b"from a string");
    assert!(wire.exclusive.is_connected());
}

#[test]
fn the_end_of_a_scope_waits_for_what_nobody_waited_for() {
    let mut wire = wire!();
    wire.peer_posts_receive(64);
    let message = vec![7_u8; 64];
    wire.exclusive.scope(PATIENCE, |scope| drop(scope.post_send(scope.lend(&message).unwrap()).unwrap())).unwrap();
    drop(message);
    assert_eq!(wire.peer_received(), [7; 64]);
}

#[test]
fn memory_comes_back_to_the_closure_and_goes_out_again() {
    // In this test, the peer sends before this side has posted a receive.
    if lacks_need(Need::Waiting) {
        return;
    }
    let mut wire = wire!();
    for message in [&b"ping"[..], b"again"] {
        wire.peer_posts_receive(64);
        wire.peer_sends(message);
    }
    let mut buffer = vec![0_u8; 64];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let mut memory = scope.lend_mut(&mut buffer)?;
            for _ in 0..2 {
                memory = scope.wait(scope.post_receive(memory)?)?.memory;
                memory.make_ascii_uppercase();
                memory = scope.wait(scope.post_send(memory)?)?.memory;
            }
            Ok::<_, InScopeError>(())
        })
        .unwrap()
        .unwrap();
    assert_eq!(&buffer[..5], b"AGAIN");
    assert_eq!((wire.peer_received(), wire.peer_received()), (b"PING".to_vec(), b"AGAIN".to_vec()));
}

#[test]
fn one_lend_serves_many_requests_and_overlaps_others() {
    let mut wire = wire!();
    let bytes: Vec<u8> = (0..=255).collect();
    for _ in 0..4 {
        wire.peer_posts_receive(300);
    }
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let all = scope.lend(&bytes)?;
            let odd = scope.lend(&bytes[1..])?;
            let sent = [
                scope.post_send(all.clone())?,
                scope.post_send(all.slice(3..10).unwrap())?,
                scope.post_send(odd.slice(0..1).unwrap().slice(0..1).unwrap())?,
                scope.post_send(all.slice(256..256).unwrap())?,
            ];
            assert!(all.slice(200..257).is_err() && odd.slice(0..256).is_err());
            #[allow(clippy::reversed_empty_ranges, reason = "that is the case")]
            let backwards = all.slice(9..8);
            assert!(backwards.is_err());
            for ticket in sent {
                scope.wait(ticket)?;
            }
            Ok::<_, InScopeError>(())
        })
        .unwrap()
        .unwrap();
    let mut received: Vec<_> = (0..4).map(|_| wire.peer_received()).collect();
    if !matches!(context().promises().provider(), "soft" | "rxe") {
        // On other providers, completions may overtake each other. Restore the order of the sends.
        received.sort_by_key(|message| Reverse(message.len()));
    }
    assert_eq!(received, [bytes.clone(), bytes[3..10].to_vec(), vec![1], vec![]]);
}

#[test]
fn empty_memory_is_sent_and_not_received_into() {
    let mut wire = wire!();
    wire.peer_posts_receive(8);
    wire.peer_posts_receive(8);
    let mut nothing: [u8; 0] = [];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            scope.wait(scope.post_send(scope.lend::<u8>(&[])?)?)?;
            let memory = scope.lend_mut(&mut nothing)?;
            let refused = scope.post_receive(memory).unwrap_err();
            let PostError::Flawed { request, flaw: RequestFlaw::EmptyReceive } = refused else { panic!("{refused:?}") };
            scope.wait(scope.post_send(request)?)?;
            Ok::<_, InScopeError>(())
        })
        .unwrap()
        .unwrap();
    assert_eq!((wire.peer_received(), wire.peer_received()), (Vec::new(), Vec::new()));
}

#[test]
fn memory_of_the_program_itself_is_lent_to_be_read() {
    static CONSTANT: [u32; 3] = [1, 2, 3];
    let mut wire = wire!();
    wire.peer_posts_receive(16);
    wire.peer_posts_receive(16);
    wire.exclusive
        .scope(PATIENCE, |scope| {
            scope.wait(scope.post_send(scope.lend(&CONSTANT)?)?)?;
            scope.wait(scope.post_send(scope.lend(b"literal")?)?)?;
            Ok::<_, InScopeError>(())
        })
        .unwrap()
        .unwrap();
    let words: Vec<u8> = CONSTANT.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut received = vec![wire.peer_received(), wire.peer_received()];
    if lacks(Promise::Order) && received[0] == b"literal" {
        received.reverse();
    }
    assert_eq!(received, [words, b"literal".to_vec()]);
}

#[test]
fn parts_of_one_lend_are_in_flight_apart() {
    // In this test, the peer sends before this side has posted a receive.
    if lacks_need(Need::Waiting) {
        return;
    }
    let mut wire = wire!();
    wire.peer_sends(b"left");
    wire.peer_sends(b"right");
    let mut buffer = [0_u8; 32];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let (mut left, right) = scope.lend_mut(&mut buffer).unwrap().split_at(16).unwrap();
            assert!(left.set_len(17).is_err());
            left.set_len(3).unwrap();
            assert_eq!((left.len(), left.capacity(), right.capacity()), (3, 16, 16));
            let (left, right) = (scope.post_receive(left).unwrap(), scope.post_receive(right).unwrap());
            assert_ne!(left.id(), right.id());
            // Tickets can be waited for in any order.
            let right = scope.wait(right).unwrap().memory;
            let left = scope.wait(left).unwrap().memory;
            assert!(left.split_at(16).is_err());
            assert_eq!(&right[..], b"right");
        })
        .unwrap();
    assert_eq!((&buffer[..4], &buffer[16..21]), (&b"left"[..], &b"right"[..]));
}

#[test]
fn whatever_a_handle_refuses_leaves_the_closure() {
    let mut wire = wire!();
    let (mut buffer, mut words) = ([0_u8; 8], [0_u64; 2]);
    for (which, said) in [
        (0, "9 bytes do not fit in a buffer of 8"),
        (1, "a buffer of 8 bytes cannot be split at 9"),
        (2, "5 bytes at offset 4 do not fit inside 8 bytes"),
        (3, "9 bytes at offset 8 do not fit inside 16 bytes"),
        (4, "a word is 8 bytes at an address that is a multiple of 8"),
    ] {
        let ended = wire.exclusive.scope(PATIENCE, |scope| {
            let (mut lent, target) = (scope.lend_mut(&mut buffer)?, scope.grant::<RemoteWrite>(&mut words)?.remote());
            match which {
                0 => lent.set_len(9)?,
                1 => drop(lent.split_at(9)?),
                2 => drop(scope.lend(b"eight by")?.slice(4..9)?),
                3 => _ = target.slice(8..17)?,
                _ => _ = target.word(4)?,
            }
            Ok::<_, InScopeError>(())
        });
        let error = ended.unwrap().unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}");
    }
}

#[test]
fn owned_buffers_in_flight_across_scopes_come_out_between_them() {
    // In this test, the peer sends two messages, but this side has posted only one receive.
    if lacks_need(Need::Waiting) {
        return;
    }
    let mut wire = wire!();
    wire.exclusive.post_receive(wire.domain.buffer(8).unwrap()).unwrap();
    wire.peer_sends(b"owned");
    wire.peer_sends(b"lent");
    let mut buffer = [0_u8; 8];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let receive = scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap();
            scope.wait(receive).unwrap();
        })
        .unwrap();
    assert_eq!(&buffer[..4], b"lent");
    let owned = wire.exclusive.poll().unwrap().unwrap().check().unwrap().into_received().unwrap();
    assert_eq!(&owned[..], b"owned");
    assert!(wire.exclusive.poll().unwrap().is_none());
    wire.peer_posts_receive(8);
    wire.exclusive.post(interlock::WorkRequest::send(owned)).unwrap();
    assert_eq!(wire.exclusive.wait(PATIENCE).unwrap().check().unwrap().operation(), Operation::Send);
}

#[test]
fn scopes_of_two_pairs_nest() {
    // In this test, the peer sends before this side has posted a receive.
    if lacks_need(Need::Waiting) {
        return;
    }
    interlock::domain! { struct Other; }
    let mut wire = wire!();
    let mut other = Wire::new(context().named_domain(Other).unwrap());
    wire.peer_sends(b"passed on");
    other.peer_posts_receive(16);
    let mut buffer = [0_u8; 16];
    wire.exclusive
        .scope(PATIENCE, |outer| {
            let received = outer.wait(outer.post_receive(outer.lend_mut(&mut buffer)?)?)?.memory;
            // The received bytes are lent to the inner scope while they are still registered by the outer one.
            let sent = other.exclusive.scope(PATIENCE, |inner| {
                inner.wait(inner.post_send(inner.lend(&received[..])?)?)?;
                Ok::<_, InScopeError>(())
            });
            sent.unwrap()
        })
        .unwrap()
        .unwrap();
    assert_eq!(other.peer_received(), b"passed on");
}

#[test]
fn lent_memory_is_filled_by_other_threads() {
    let mut wire = wire!();
    wire.peer_posts_receive(64);
    let mut buffer = [0_u8; 64];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let mut memory = scope.lend_mut(&mut buffer)?;
            thread::scope(|threads| drop(threads.spawn(|| memory.fill(4))));
            scope.wait(scope.post_send(memory)?)?;
            Ok::<_, InScopeError>(())
        })
        .unwrap()
        .unwrap();
    assert_eq!(wire.peer_received(), [4; 64]);
}

/// Signatures that a program may write.
#[allow(dead_code, reason = "needs only compile")]
fn scopes_are_passed_on<'scope, B: Brand>(
    scope: &'scope Scope<'scope, '_, B>,
    bytes: Lent<'scope, B>,
    buffer: LentMut<'scope, B>,
) -> Result<Ticket<'scope, B, LentMut<'scope, B>>, InScopeError> {
    scope.wait(scope.post_send(bytes)?)?;
    Ok(scope.post_receive(buffer)?)
}

#[test]
#[cfg_attr(miri, ignore = "too much memory")]
fn memory_longer_than_a_message_is_sent_in_slices() {
    if on_hardware() {
        return; // this test is of the soft device, and a machine with hardware may lack the memory
    }
    let (_fabric, mut wire) = wire!(Fabric::new());
    wire.peer_posts_receive(8);
    // Nothing writes to this zeroed memory, so the kernel has to provide almost none of it.
    let bytes = vec![0_u8; interlock::memory::MAX_MESSAGE_BYTES + 8];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let error = scope.post_send(scope.lend(&bytes).unwrap()).unwrap_err();
            let PostError::Flawed { request, flaw: RequestFlaw::TooLong { .. } } = error else { panic!("{error:?}") };
            let end =
                request.slice(interlock::memory::MAX_MESSAGE_BYTES..interlock::memory::MAX_MESSAGE_BYTES + 8).unwrap();
            scope.wait(scope.post_send(end).unwrap()).unwrap();
        })
        .unwrap();
    assert_eq!(wire.peer_received(), [0; 8]);
}

/// Prints the numbers in the documentation.
#[test]
#[ignore = "prints what a scope and a lend cost; run it in a release build"]
fn what_lending_costs() {
    const ROUNDS: u32 = 200;
    let mut wire = wire!();
    let time = |what: &str, round: &mut dyn FnMut()| {
        (0..10).for_each(|_| round());
        let begun = Instant::now();
        (0..ROUNDS).for_each(|_| round());
        println!("{what}: {} ns", begun.elapsed().as_nanos() / u128::from(ROUNDS));
    };
    let mut bytes = vec![1_u8; 1 << 20];
    time("an empty scope", &mut || wire.exclusive.scope(PATIENCE, |_| ()).unwrap());
    for len_bytes in [64, 4096, 65_536, 1 << 20] {
        time(&format!("a scope that lends {len_bytes} bytes"), &mut || {
            wire.exclusive.scope(PATIENCE, |scope| drop(scope.lend_mut(&mut bytes[..len_bytes]).unwrap())).unwrap();
        });
        let source = bytes.clone();
        time(&format!("a copy of {len_bytes} bytes"), &mut || {
            bytes[..len_bytes].copy_from_slice(std::hint::black_box(&source[..len_bytes]));
        });
    }
}
