//! A device that is removed under its connections. The test makes the device, so it is a program of its own.
#![cfg(feature = "cm")]

use interlock::Context;
use interlock::cm::{AcceptData, Cause, Channel, CmError, ConnectData, Idle, LookupData, Parameters};
use std::process::Command;
use support::{Need, PATIENCE, Side, address, lacks_need};

/// The script that makes devices.
const DEVICES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rxe/devices");
/// The first device that the script makes with the arguments `up spare`.
const SPARE: &str = "rxespare0";

/// CM038
#[test]
fn a_removed_device_tells_each_of_its_identifiers() {
    if lacks_need(Need::SpareDevice) {
        return;
    }
    // A run that was cut off may have left its interfaces.
    drop(Command::new(DEVICES).args(["down", "spare"]).output());
    assert!(Command::new(DEVICES).args(["up", "spare"]).status().unwrap().success());
    let context = Context::open(SPARE).unwrap();
    let side = || Side::new(context.checked_domain().unwrap());
    let channel = Channel::open(&context).unwrap();
    let of_listener = Channel::open(&context).unwrap();
    let bound = Idle::new(&of_listener).unwrap().bind((address(&context), 0).into()).unwrap();
    let mut listener = bound.listen(8).unwrap();
    let at = listener.local_address().unwrap();
    let resolved = || Idle::new(&channel).unwrap().resolve(at, PATIENCE).unwrap().wait(PATIENCE).unwrap();
    let [mut client, mut server, mut waiting] = [side(), side(), side()];
    let asking = resolved().connect(client.take(), &Parameters::default(), &ConnectData::none()).unwrap();
    let request = listener.next(PATIENCE).unwrap();
    let accepting = request.accept(server.take(), &Parameters::default(), &AcceptData::none()).unwrap();
    let mut of_client = asking.wait(PATIENCE).unwrap();
    let mut of_server = accepting.wait(PATIENCE).unwrap();
    let mut late = side();
    let [idle_of_datagrams, other] = [(); 2].map(|()| Idle::for_datagrams(&channel).unwrap());
    let of_datagrams = idle_of_datagrams.resolve(at, PATIENCE).unwrap().wait(PATIENCE).unwrap();
    let (late_resolved, bound) = (resolved(), other.bind((address(&context), 0).into()).unwrap());
    // The kernel reports a removal to the identifiers in the order in which they came to the device. The identifier of
    // `asking` comes after those above. So once it has the report, they have it too.
    let asking = resolved().connect(waiting.take(), &Parameters::default(), &ConnectData::none()).unwrap();
    assert!(of_listener.readiness().unwrap().wait(PATIENCE).unwrap(), "the request arrives");
    // The command ends only after all processes, also this one, have closed the device. So the test does not wait for
    // the command here.
    let mut removal = Command::new("rdma").args(["link", "delete", SPARE]).spawn().unwrap();
    // The kernel ends one side after the other, and the end of the first disconnects the second. So the second may
    // learn that it is disconnected before it learns of the removal. The test drops neither side before both have
    // ended, because a drop would disconnect the other side, too.
    let ends = [&mut of_client, &mut of_server].map(|side| side.wait_end(PATIENCE).unwrap().expect("an end"));
    assert!(ends.iter().any(|end| matches!(end, Cause::DeviceRemoved)), "{ends:?}");
    assert!(ends.iter().all(|end| matches!(end, Cause::DeviceRemoved | Cause::Disconnected)), "{ends:?}");
    let failed = asking.wait(PATIENCE).unwrap_err();
    assert!(matches!(failed.cause, Cause::DeviceRemoved), "{failed:?}");
    drop(failed);
    // If a request came before the removal, the listener returns that request first.
    let end = loop {
        match listener.next(PATIENCE) {
            Ok(request) => drop(request),
            Err(error) => break error,
        }
    };
    assert!(matches!(end, CmError::DeviceRemoved), "{end:?}");
    // An identifier that does not wait for an event reports the removal at its next call.
    let failed = late_resolved.connect(late.take(), &Parameters::default(), &ConnectData::none()).unwrap_err();
    assert!(matches!(failed.cause, Cause::DeviceRemoved), "{failed:?}");
    let failed = of_datagrams.look_up(&LookupData::none()).unwrap_err();
    assert!(matches!(failed.cause, Cause::DeviceRemoved), "{failed:?}");
    let failed = bound.join([239, 7, 7, 9].into()).unwrap_err();
    assert!(matches!(failed.cause, Cause::DeviceRemoved), "{failed:?}");
    drop((of_client, of_server, listener, client, server, waiting, late, channel));
    drop(removal.try_wait());
}
