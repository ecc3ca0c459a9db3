//! Random and hostile private data: the bytes that one side sends reach the other unchanged, and each parser
//! understands them or returns an error.

use crate::model::arrived;
use interlock::attributes::DatagramInitAttributes;
use interlock::cm::{
    AcceptData, AnswerData, Cause, Channel, ConnectData, Idle, LookupData, Parameters, PeerData, PrivateData,
    RejectData, RejectReason,
};
use interlock::number::Qkey;
use interlock::window::RemoteWindow;
use interlock::{AnyQueuePair, Checked, Context, Endpoint, Init, Limits, QueuePair, RemoteAll, RemoteRegion};
use std::net::SocketAddr;
use support::random::fresh_seed;
use support::{PATIENCE, Random, Side, address, context, on_hardware};

/// The seed of a test: a new one in each run, unless `INTERLOCK_SEED` sets it.
fn seed() -> u64 {
    let seed = std::env::var("INTERLOCK_SEED").map_or_else(|_| fresh_seed(), |seed| seed.parse().expect("a number"));
    println!("INTERLOCK_SEED={seed}");
    seed
}

/// Up to `most` random bytes, some of which begin like framed data or like a record.
fn hostile(random: &mut Random, most: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..random.below(most + 1)).map(|_| random.next() as u8).collect();
    let head: &[u8] = match random.below(4) {
        0 => b"IP",
        1 => b"IR",
        2 => b"IE",
        _ => b"",
    };
    bytes.iter_mut().zip(head).for_each(|(byte, head)| *byte = *head);
    // A parser is most likely to accept a wrong length that is close to the true one.
    let rest = bytes.len().saturating_sub(3);
    if random.one_in(2)
        && let Some(len) = bytes.get_mut(2)
    {
        *len = (rest + random.below(3)).saturating_sub(1) as u8;
    }
    bytes
}

/// The content of framed data, parsed without the library: two letters, the length, and that many bytes.
fn unframed(bytes: &[u8]) -> Option<&[u8]> {
    match bytes {
        [b'I', b'P', len, rest @ ..] if rest.len() >= usize::from(*len) => Some(&rest[..usize::from(*len)]),
        _ => None,
    }
}

/// Checks that the data that arrived, `got`, are what was `sent`, and that the parsers handle them.
fn check(sent: &[u8], got: &PeerData, limit: usize, is_iwarp: bool) {
    assert!(arrived(sent, got, limit, is_iwarp), "{sent:?} arrives as {got:?}");
    assert_eq!(got.framed(), unframed(got.padded()), "{got:?}");
    for bytes in [got.padded(), got.framed().unwrap_or_default()] {
        check_parsers(bytes);
    }
}

/// Checks that each parser refuses the bytes, or has understood every one of them.
fn check_parsers(bytes: &[u8]) {
    for len in [24, 32, bytes.len()] {
        let Some(record) = bytes.get(..len) else { continue };
        if let Ok(region) = RemoteRegion::<RemoteAll>::from_bytes(record) {
            assert_eq!(region.to_bytes(), record);
        }
        if let Ok(window) = RemoteWindow::<RemoteAll>::from_bytes(record) {
            assert_eq!(window.to_bytes(), record);
        }
        if let Ok(endpoint) = Endpoint::from_bytes(record) {
            assert_eq!(endpoint.to_bytes(), record);
        }
    }
}

fn data<const MAX: usize>(random: &mut Random) -> (Vec<u8>, PrivateData<MAX>) {
    let bytes = hostile(random, MAX);
    let data = PrivateData::raw(&bytes).unwrap();
    (bytes, data)
}

/// The side's pair in Init. If the side has none, it is replaced by a new side.
fn pair_of(side: &mut Side<Checked>, context: &Context) -> QueuePair<Checked, Init> {
    if side.pair.is_none() {
        *side = Side::new(context.checked_domain().unwrap());
    }
    side.take()
}

#[test]
fn whatever_two_sides_say_while_they_connect_arrives() {
    let (context, random) = (context(), &mut Random::new(seed()));
    let rounds = if cfg!(miri) {
        2
    } else if on_hardware() {
        30
    } else {
        500
    };
    let is_iwarp = context.is_iwarp();
    let channel = Channel::open(&context).unwrap();
    let bound = Idle::new(&channel).unwrap().bind(SocketAddr::new(address(&context), 0)).unwrap();
    let at = bound.local_address().unwrap();
    let mut listener = bound.listen(0).unwrap();
    let new = || Side::new(context.checked_domain().unwrap());
    let [mut client, mut server] = [new(), new()];
    for _ in 0..rounds {
        let (asked, said) = data::<56>(random);
        let resolved = Idle::new(&channel).unwrap().resolve(at, PATIENCE).unwrap().wait(PATIENCE).unwrap();
        let asking = resolved.connect(pair_of(&mut client, &context), &Parameters::default(), &said as &ConnectData);
        let asking = asking.unwrap();
        let request = listener.next(PATIENCE).unwrap();
        check(&asked, request.data(), 56, is_iwarp);
        if random.one_in(3) {
            let (answered, said) = data::<196>(random);
            let pair = pair_of(&mut server, &context);
            let accepting = request.accept(pair, &Parameters::default(), &said as &AcceptData).unwrap();
            let of_client = asking.wait(PATIENCE).unwrap();
            check(&answered, &of_client.data, 196, is_iwarp);
            check(&asked, &accepting.wait(PATIENCE).unwrap().data, 56, is_iwarp);
        } else {
            let (answered, said) = data::<148>(random);
            request.reject(&said as &RejectData).unwrap();
            let failed = asking.wait(PATIENCE).unwrap_err();
            let Cause::Rejected { reason, data } = &failed.cause else { panic!("{failed:?}") };
            assert!(*reason == RejectReason::CONSUMER || is_iwarp, "{failed:?}");
            check(&answered, data, 148, is_iwarp);
            if let AnyQueuePair::Init(pair) = failed.value {
                client.pair = Some(pair);
            }
        }
    }
}

#[test]
fn whatever_two_sides_say_in_a_lookup_arrives() {
    let (context, random) = (context(), &mut Random::new(seed()));
    let rounds = if cfg!(miri) {
        2
    } else if on_hardware() {
        30
    } else {
        500
    };
    let domain = context.checked_domain().unwrap();
    let (queue, _poller) = domain.completion_queue(Limits::DEFAULT.completions()).unwrap();
    let attributes = DatagramInitAttributes {
        qkey: Qkey::CONNECTION_MANAGER,
        ..DatagramInitAttributes::from(&context.active_port().unwrap())
    };
    let pair = domain.datagram(&queue, &Limits::DEFAULT).unwrap().into_init(attributes).unwrap().open().unwrap();
    let channel = Channel::open(&context).unwrap();
    let bound = Idle::for_datagrams(&channel).unwrap().bind(SocketAddr::new(address(&context), 0)).unwrap();
    let at = bound.local_address().unwrap();
    let mut listener = bound.listen(0).unwrap();
    for _ in 0..rounds {
        let (asked, said) = data::<180>(random);
        let idle = Idle::for_datagrams(&channel).unwrap();
        let resolved = idle.resolve(at, PATIENCE).unwrap().wait(PATIENCE).unwrap();
        let asking = resolved.look_up(&said as &LookupData).unwrap();
        let request = listener.next(PATIENCE).unwrap();
        check(&asked, request.data(), 180, false);
        let (answered, said) = data::<136>(random);
        let said: &AnswerData = &said;
        if random.one_in(2) {
            request.answer(&pair, said).unwrap();
            let service = asking.wait(PATIENCE).unwrap();
            assert_eq!(service.queue_pair, pair.number());
            check(&answered, &service.data, 136, false);
        } else {
            request.refuse(said).unwrap();
            let failed = asking.wait(PATIENCE).unwrap_err();
            let Cause::NotServed { data, .. } = &failed else { panic!("{failed:?}") };
            check(&answered, data, 136, false);
        }
    }
}

/// Records with a few bytes changed, and of any length.
#[test]
fn a_record_that_was_tampered_with_is_refused_or_understood() {
    let (context, random) = (context(), &mut Random::new(seed()));
    let domain = context.checked_domain().unwrap();
    let region = domain.register::<RemoteAll, _>(vec![0_u64; 8]);
    let side = Side::new(domain);
    let mut records = vec![side.pair.as_ref().unwrap().endpoint().to_bytes().to_vec()];
    // `RemoteAll` needs atomics, which not every device has.
    records.extend(region.ok().map(|region| region.remote().to_bytes().to_vec()));
    for record in &records {
        check_parsers(record);
        for _ in 0..if cfg!(miri) { 20 } else { 20_000 } {
            let mut changed = record.clone();
            for _ in 0..=random.below(3) {
                let index = random.below(changed.len());
                changed[index] = random.next() as u8;
            }
            if random.one_in(4) {
                changed.resize(random.below(2 * record.len()), random.next() as u8);
            }
            check_parsers(&changed);
        }
    }
}
