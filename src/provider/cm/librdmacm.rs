//! rdma_cm through librdmacm.
//!
//! librdmacm has tables that all channels and identifiers of the process share. It locks them for an insertion, but not
//! for a removal. And a destroy of an identifier waits until the last event of the identifier is acknowledged, but the
//! acknowledgement uses the identifier once more after it has let the destroy continue. So this module holds a lock of
//! its own ([`LIBRARY`]) while it creates or destroys an identifier, and while it takes an event. Taking an event
//! writes members of identifiers. So this module also holds the lock while it reads these members, and in other calls
//! that write them.
//!
//! Nothing may block for long under that lock. One call would: on iWARP, `rdma_destroy_id` waits until the peer has
//! answered the connect or accept of the identifier, which may take ten seconds or as long as the peer likes. So an
//! identifier that is dropped before its answer came is [departing](Departing): the thread that takes the answer
//! destroys it.
#![allow(unsafe_code, reason = "calls librdmacm")]

mod departing;

use super::{
    BoundDevice, EventParameters, IdOption, MAX_PRIVATE_DATA, NewId, OpenFailure, Parameters, PortSpace, RawChannel,
    RawEvent, RawEventKind, RawId,
};
use crate::provider::Listed;
use crate::provider::environment::forbidden_variable;
use crate::provider::handles::ObjectPtr;
use crate::provider::rdma_core::{self, Device, unblock};
use crate::sync::lock;
use crate::sys::rdmacm::{self as sys, rdma_cm_event, rdma_cm_id, rdma_event_channel, rdma_port_space};
use crate::sys::{ibv_event_type, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};
use crate::verb_error::{VerbError, note_leak};
use departing::{Departing, is_answer, look_after_orphans};
use libc::{sockaddr_in, sockaddr_in6};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;
use std::{fmt, fs, io, mem, ptr, ptr::NonNull, slice};

/// Serialises calls of librdmacm; the documentation of this module says which.
static LIBRARY: Mutex<()> = Mutex::new(());

/// Shows that the lock of the library is held.
struct Library {
    _lock: MutexGuard<'static, ()>,
}

impl Library {
    fn lock() -> Self {
        let this = Self { _lock: lock(&LIBRARY) };
        // librdmacm opens devices in many of its calls, and the providers of these devices then read the environment.
        // So look for a forbidden variable before such a call (here) and after it (in the drop of this `Library`).
        // `forbidden_variable` remembers a variable that it has found. After that, no queue or pair can be created.
        let _ = forbidden_variable();
        this
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = forbidden_variable();
    }
}

/// The result of a call that returns 0, or that returns -1 and sets `errno`.
fn checked(call: &'static str, result: i32) -> Result<(), VerbError> {
    if result == 0 { Ok(()) } else { Err(last_error(call)) }
}

fn last_error(call: &'static str) -> VerbError {
    let errno = io::Error::last_os_error().raw_os_error().filter(|&errno| errno > 0);
    VerbError::new(call, errno.unwrap_or(libc::EIO))
}

/// A timeout in milliseconds, rounded up. librdmacm takes an `int`.
fn millis(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
}

/// The first release of rdma-core whose librdmacm does not follow a null pointer when an address resolves to a device
/// that has no node GUID.
const TAKES_NO_GUID: u32 = 56;

/// The rdma-core release that this process uses. It comes from the name of the mapped file, since librdmacm has no call
/// that returns the release. If the name does not contain the release, the result is the release that the program was
/// built with.
fn release() -> u32 {
    static RELEASE: OnceLock<u32> = OnceLock::new();
    *RELEASE.get_or_init(|| {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mapped = maps.lines().find_map(|line| line.rsplit_once("/librdmacm.so."));
        let built = env!("LIBRDMACM_VERSION");
        mapped.and_then(|(_, version)| release_of(version)).or_else(|| release_of(built)).unwrap_or(0)
    })
}

/// The release in a version such as `1.3.44.0`.
fn release_of(version: &str) -> Option<u32> {
    version.split('.').nth(2)?.trim().parse().ok()
}

/// Refuses devices with which librdmacm would end the process.
fn check_devices(release: u32, devices: impl FnOnce() -> Vec<Listed>) -> Result<(), OpenFailure> {
    if release >= TAKES_NO_GUID {
        return Ok(());
    }
    let found = devices().into_iter().find(|device| device.guid_be == 0);
    found.map_or(Ok(()), |Listed { name, .. }| Err(OpenFailure::NoNodeGuid { device: name, release }))
}

/// An owned event channel. Dropping it destroys it.
struct Handle {
    /// # Invariants
    ///
    /// 0. Came from `rdma_create_event_channel`, and is alive until this is dropped.
    raw: ObjectPtr<rdma_event_channel>,
    /// 1. Set, under the lock, if the kernel may have an event for this channel that points to memory that librdmacm
    ///    has freed. Then no event is taken any more.
    is_spoiled: AtomicBool,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the channel is alive, and nobody else destroys it (0). Nobody uses its identifiers any more:
        // each `Id` keeps its channel alive, and so does the holder of each departing identifier.
        unsafe { sys::rdma_destroy_event_channel(self.raw.0.as_ptr()) };
    }
}

impl Handle {
    /// `rdma_create_event_channel`. The first call in a process also makes an identifier, to find out what the kernel
    /// supports, and opens devices.
    fn create(_: &Library) -> Result<Self, VerbError> {
        rdma_core::forbid_fork_init();
        // SAFETY: the function takes no arguments.
        let raw = NonNull::new(unsafe { sys::rdma_create_event_channel() });
        let raw = ObjectPtr(raw.ok_or_else(|| last_error("rdma_create_event_channel"))?);
        Ok(Self { raw, is_spoiled: AtomicBool::new(false) })
    }

    /// The descriptor of the channel.
    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive (0). librdmacm writes this member only when it creates the channel.
        let fd = unsafe { self.raw.0.as_ref() }.fd;
        // SAFETY: the channel keeps its descriptor open, and is alive while `self` is borrowed (0).
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// `rdma_create_id`, with `key` as the context of the identifier.
    fn create_id(&self, _: &Library, space: rdma_port_space, key: u64) -> Result<OwnedId, VerbError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is alive (0), and `raw` is writable. The key becomes the context of the identifier.
        // librdmacm only stores the context and never follows it, so the context can be a number.
        let result = unsafe { sys::rdma_create_id(self.raw.0.as_ptr(), &mut raw, of_key(key), space) };
        checked("rdma_create_id", result)?;
        NonNull::new(raw).map(OwnedId::of_new).ok_or(VerbError::new("rdma_create_id", libc::ENOMEM))
    }

    /// Takes an event, if there is one, passes it to `read`, and acknowledges it. Also destroys the departing
    /// identifiers that no longer wait for a peer.
    fn take<R>(&self, departing: &Departing, read: impl FnOnce(&TakenEvent<'_>) -> R) -> Result<Option<R>, VerbError> {
        let library = Library::lock();
        departing.destroy_answered(&library);
        let Some(event) = TakenEvent::take(self, &library)? else { return Ok(None) };
        let (seen, id, kind) = (read(&event), event.fields().id, event.kind());
        let acknowledged = event.acknowledge();
        departing.see(id, kind, &library);
        // If the acknowledgement has failed, the last line drops `seen`, which can hold a new identifier. The drop of
        // an identifier locks `LIBRARY`. So unlock `LIBRARY` first.
        drop(library);
        acknowledged.map(|()| Some(seen))
    }
}

/// An event that is not acknowledged yet.
struct TakenEvent<'l> {
    /// # Invariants
    ///
    /// 0. Came from `rdma_get_cm_event`, and is not acknowledged. So the event and the identifiers that it names are
    ///    alive.
    raw: NonNull<rdma_cm_event>,
    /// 1. The lock is held for as long as this lives. So nobody else reads or writes the event, or the context of an
    ///    identifier.
    library: PhantomData<&'l Library>,
}

impl<'l> TakenEvent<'l> {
    /// `rdma_get_cm_event`, if there is an event.
    fn take(channel: &Handle, _: &'l Library) -> Result<Option<Self>, VerbError> {
        if channel.is_spoiled.load(Ordering::Relaxed) {
            return Err(VerbError::new("rdma_get_cm_event", libc::EIO));
        }
        let mut taken = ptr::null_mut();
        // SAFETY: the channel is alive (0 of `Handle`), `taken` is writable, and no event points to freed memory (1 of
        // `Handle`). The call also writes members of identifiers; the held lock keeps other threads from these members.
        if unsafe { sys::rdma_get_cm_event(channel.raw.0.as_ptr(), &mut taken) } != 0 {
            let error = last_error("rdma_get_cm_event");
            return if matches!(error.errno(), libc::EAGAIN | libc::EINTR) { Ok(None) } else { Err(error) };
        }
        Ok(NonNull::new(taken).map(|raw| Self { raw, library: PhantomData }))
    }

    fn fields(&self) -> &rdma_cm_event {
        // SAFETY: the event is alive (0), and nobody writes it (1).
        unsafe { self.raw.as_ref() }
    }

    fn kind(&self) -> RawEventKind {
        RawEventKind(self.fields().event.0)
    }

    /// The identifier that the event is about: the listener, if the event brings a new identifier.
    fn named(&self) -> *mut rdma_cm_id {
        let event = self.fields();
        if event.event.0 == RawEventKind::CONNECT_REQUEST.0 { event.listen_id } else { event.id }
    }

    /// The context and the port space of the identifier that the event is [about](Self::named).
    fn context(&self) -> (u64, rdma_port_space) {
        // SAFETY: the identifier is alive (0). Nobody writes its `context` while the lock is held (1), and its `ps`
        // never changes.
        let rdma_cm_id { context, ps, .. } = unsafe { *self.named() };
        (context.addr() as u64, ps)
    }

    /// Sets the context of an identifier that the event names.
    fn set_context(&self, id: *mut rdma_cm_id, context: u64) {
        let event = self.fields();
        if [event.id, event.listen_id].contains(&id) && !id.is_null() {
            // SAFETY: the event names the identifier, so it is alive (0). Nobody else uses its context while the lock
            // is held (1).
            unsafe { (*id).context = of_key(context) };
        }
    }

    /// The new identifier that the event brings, if it brings one. Its events carry `key`.
    fn new_id(&self, key: u64) -> Option<OwnedId> {
        let event = self.fields();
        let raw = NonNull::new(event.id).filter(|_| event.event.0 == RawEventKind::CONNECT_REQUEST.0)?;
        self.set_context(raw.as_ptr(), key);
        Some(OwnedId::of_new(raw))
    }

    /// `rdma_ack_cm_event`.
    fn acknowledge(self) -> Result<(), VerbError> {
        // SAFETY: the event is not acknowledged yet (0), and is not used afterwards.
        checked("rdma_ack_cm_event", unsafe { sys::rdma_ack_cm_event(self.raw.as_ptr()) })
    }
}

/// An event channel of the program. Each identifier keeps it alive.
struct Channel {
    handle: Arc<Handle>,
    /// The identifiers that the program has dropped, and that cannot be destroyed yet.
    departing: Departing,
}

/// `rdma_create_event_channel`, with a descriptor that does not block.
pub(super) fn open() -> Result<Arc<dyn RawChannel>, OpenFailure> {
    check_devices(release(), || rdma_core::devices().unwrap_or_default())?;
    look_after_orphans();
    let channel = Channel { handle: Arc::new(Handle::create(&Library::lock())?), departing: Departing::default() };
    unblock(channel.handle.fd().as_raw_fd(), "ioctl on the events of rdma_cm")?;
    Ok(Arc::new(channel))
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("fd", &self.handle.fd()).finish_non_exhaustive()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.departing.outlive_channel(&self.handle);
    }
}

/// Two bits in the context of an identifier, above its key. `ANSWERED`: this process has taken the answer to the
/// connect or accept. `REMOVED`: this process has taken the event that the device was removed.
const ANSWERED: u64 = 1 << 63;
const REMOVED: u64 = 1 << 62;

impl RawChannel for Channel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.handle.fd()
    }

    fn create_id(self: Arc<Self>, space: PortSpace, key: u64) -> Result<Box<dyn RawId>, VerbError> {
        let space = match space {
            PortSpace::Tcp => rdma_port_space::RDMA_PS_TCP,
            PortSpace::Udp => rdma_port_space::RDMA_PS_UDP,
        };
        let raw = self.handle.create_id(&Library::lock(), space, key)?;
        Ok(Box::new(Id::new(raw, self)))
    }

    fn take_event(self: Arc<Self>, fresh_key: u64) -> Result<Option<RawEvent>, VerbError> {
        let channel = Arc::clone(&self);
        self.handle.take(&self.departing, |event| channel.copy(event, fresh_key))
    }

    fn next_timer(&self) -> Option<Duration> {
        None
    }
}

impl Channel {
    /// A copy of an event that is not acknowledged yet.
    fn copy(self: Arc<Self>, event: &TakenEvent<'_>, fresh_key: u64) -> RawEvent {
        let (fields, (context, space)) = (event.fields(), event.context());
        let (kind, key) = (event.kind(), context & !(ANSWERED | REMOVED));
        let news = match kind {
            RawEventKind::DEVICE_REMOVAL => REMOVED,
            _ if is_answer(kind) => ANSWERED,
            _ => 0,
        };
        event.set_context(event.named(), context | news);
        // `param` is a union. Its member is `ud` in the events of a datagram identifier, and `conn` in other events.
        let parameters = if space == rdma_port_space::RDMA_PS_UDP {
            let parameters = fields.param.of_datagrams();
            EventParameters {
                private_data: copied(event, parameters.private_data, parameters.private_data_len),
                queue_pair: parameters.qp_num,
                qkey: parameters.qkey,
                path: Some(parameters.ah_attr),
                ..EventParameters::default()
            }
        } else {
            let parameters = fields.param.of_connection();
            EventParameters {
                private_data: copied(event, parameters.private_data, parameters.private_data_len),
                responder_resources: parameters.responder_resources,
                initiator_depth: parameters.initiator_depth,
                rnr_retry_count: parameters.rnr_retry_count,
                queue_pair: parameters.qp_num,
                ..EventParameters::default()
            }
        };
        let request = event.new_id(fresh_key);
        let request = request.map(|raw| NewId { raw: Box::new(Id::new(raw, self)), key: fresh_key });
        RawEvent { key, kind, status: fields.status, parameters, request }
    }
}

/// Copies the private data of an event.
fn copied(_: &TakenEvent<'_>, data: *const c_void, len: u8) -> Vec<u8> {
    const { assert!(MAX_PRIVATE_DATA > u8::MAX as usize) };
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: `data` points to the private data in the event, which is not acknowledged yet (0 of `TakenEvent`). The
    // event has 256 bytes for private data, more than `len`.
    unsafe { slice::from_raw_parts(data.cast(), len.into()) }.to_vec()
}

/// The key as the context of an identifier.
fn of_key(key: u64) -> *mut c_void {
    ptr::without_provenance_mut(key as usize)
}

/// An owned identifier. Dropping an `OwnedId` leaks the identifier, since [`destroy`](Self::destroy) needs the lock of
/// the library.
struct OwnedId {
    /// # Invariants
    ///
    /// 0. Came from librdmacm, and is alive while `is_alive`; nobody else destroys it. librdmacm never creates a queue
    ///    pair for it.
    raw: ObjectPtr<rdma_cm_id>,
    is_alive: bool,
}

/// Defines methods that each call one function of librdmacm. In the call, `_` is the identifier. A method has the
/// argument `_library`, the held lock, if its call must not run while another thread takes an event: most such calls
/// write members that taking an event also writes.
macro_rules! calls {
    ($($(#[$doc:meta])* fn $method:ident($($argument:ident: $type:ty),*)
        = $call:ident(_ $(, $passed:expr)*);)*) => {$(
        $(#[$doc])*
        fn $method(&mut self $(, $argument: $type)*) -> Result<(), VerbError> {
            let id = self.alive(stringify!($call))?;
            // SAFETY: the identifier is alive (0 of `OwnedId`). The identifier of a `BoundId` has a device (0 of
            // `BoundId`). Each pointer is valid until the call returns, and an `Address` is as long as its family says.
            checked(stringify!($call), unsafe { sys::$call(id $(, $passed)*) })
        }
    )*};
}

impl OwnedId {
    /// Takes over an identifier that librdmacm created just now.
    fn of_new(raw: NonNull<rdma_cm_id>) -> Self {
        Self { raw: ObjectPtr(raw), is_alive: true }
    }

    /// Moves the identifier out. The value that stays behind refuses all calls.
    fn take(&mut self) -> Self {
        Self { raw: self.raw, is_alive: mem::take(&mut self.is_alive) }
    }

    fn alive(&self, call: &'static str) -> Result<*mut rdma_cm_id, VerbError> {
        if self.is_alive { Ok(self.raw.0.as_ptr()) } else { Err(VerbError::new(call, libc::EINVAL)) }
    }

    /// Copies the members of the identifier.
    fn members(&self, _: &Library) -> Option<rdma_cm_id> {
        // SAFETY: the identifier is alive (0). librdmacm writes the members of an identifier only under the lock, or in
        // calls that take `&mut self`. This function holds the lock and borrows `self`, so nobody writes the members
        // meanwhile.
        self.is_alive.then(|| unsafe { *self.raw.0.as_ptr() })
    }

    /// The identifier, if it is bound to a device. Several functions of librdmacm use the device without a check.
    fn bound(&mut self, call: &'static str) -> Result<BoundId<'_>, VerbError> {
        match self.members(&Library::lock()) {
            Some(members) if !members.verbs.is_null() => Ok(BoundId(self)),
            _ => Err(VerbError::new(call, libc::EINVAL)),
        }
    }

    calls! {
        fn bind(_library: &Library, address: &mut Address) = rdma_bind_addr(_, address.as_ptr());
        /// The call writes members after its request to the kernel. Without the lock, another thread could take the
        /// event that answers the request before those members are written. `source` may be missing.
        fn resolve_addr(_library: &Library, source: Option<&mut Address>, to: &mut Address, timeout: i32)
            = rdma_resolve_addr(_, source.map_or(ptr::null_mut(), Address::as_ptr), to.as_ptr(), timeout);
        /// After the listen, the call asks the kernel for the address, and writes it to members of the identifier.
        /// Taking an event writes the same members, so both hold the lock.
        fn listen(_library: &Library, backlog: i32) = rdma_listen(_, backlog);
        fn reject(data: &[u8]) = rdma_reject(_, data.as_ptr().cast(), length(data, "rdma_reject")?);
        fn establish() = rdma_establish(_);
        fn notify(event: ibv_event_type) = rdma_notify(_, event);
        fn disconnect() = rdma_disconnect(_);
        fn set_byte(option: i32, value: &mut u8)
            = rdma_set_option(_, 0, option, ptr::from_mut(value).cast(), mem::size_of::<u8>());
        fn set_number(option: i32, value: &mut i32)
            = rdma_set_option(_, 0, option, ptr::from_mut(value).cast(), mem::size_of::<i32>());
        /// The call waits until each event that was taken is acknowledged. Under the lock, each one is.
        fn leave(_library: &Library, group: &mut Address) = rdma_leave_multicast(_, group.as_ptr());
    }

    /// `rdma_init_qp_attr`: fills in `attributes`, and returns the mask of the filled members.
    fn pair_attributes(&self, attributes: &mut ibv_qp_attr) -> Result<ibv_qp_attr_mask, VerbError> {
        let (id, mut mask) = (self.alive("rdma_init_qp_attr")?, 0);
        // SAFETY: the identifier is alive (0); `attributes` and `mask` are writable.
        checked("rdma_init_qp_attr", unsafe { sys::rdma_init_qp_attr(id, attributes, &mut mask) })?;
        Ok(ibv_qp_attr_mask(mask.cast_unsigned()))
    }

    /// `rdma_destroy_id`. Returns false if that has failed: the identifier is leaked, and still has its events.
    fn destroy(self, _: &Library) -> bool {
        let Ok(id) = self.alive("rdma_destroy_id") else { return true };
        // SAFETY: the identifier is alive, nobody else destroys it, and this is its last use (0). Each of its events
        // that was taken is acknowledged: between the two, `Handle::take` keeps the lock and destroys nothing, and this
        // function holds the lock.
        let result = unsafe { sys::rdma_destroy_id(id) };
        checked("rdma_destroy_id", result).map_err(|error| note_leak("an identifier of rdma_cm", error)).is_ok()
    }
}

/// An identifier that is bound to a device.
///
/// # Invariants
///
/// 0. The identifier has a device, which librdmacm keeps open as long as the identifier lives.
struct BoundId<'id>(&'id mut OwnedId);

impl BoundId<'_> {
    fn alive(&self, call: &'static str) -> Result<*mut rdma_cm_id, VerbError> {
        self.0.alive(call)
    }

    calls! {
        fn resolve_route(timeout: i32) = rdma_resolve_route(_, timeout);
        fn connect(parameters: &mut ConnectionParameters<'_>) = rdma_connect(_, &mut parameters.raw);
        fn accept(parameters: &mut ConnectionParameters<'_>) = rdma_accept(_, &mut parameters.raw);
        fn join(group: &mut Address) = rdma_join_multicast(_, group.as_ptr(), ptr::null_mut());
    }
}

/// An identifier of the program.
struct Id {
    raw: OwnedId,
    channel: Arc<Channel>,
    /// On iWARP: the identifier has called connect or accept, so its destroy would wait until the peer answers.
    waits_by_iwarp: bool,
    /// The groups that the identifier is a member of. librdmacm frees the memory that it keeps for a group only when
    /// the identifier leaves the group.
    groups: Vec<SocketAddr>,
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, peer) = (self.local_address(), self.peer_address());
        f.debug_struct("Id").field("device", &self.device()).field("local", &local).field("peer", &peer).finish()
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        let library = Library::lock();
        // Keep the lock from the check until after `add`. Otherwise another thread could take the answer between the
        // two. If no further event came, nobody would destroy the identifier.
        if self.awaits_answer(&library) {
            let is_removed = self.raw.members(&library).is_some_and(|id| id.context.addr() as u64 & REMOVED != 0);
            self.channel.departing.add(self.raw.take(), is_removed);
            return;
        }
        for group in mem::take(&mut self.groups) {
            // If `leave` fails, it destroys the identifier, which leaves all groups. So ignore the error.
            let _ = self.leave(&library, group);
        }
        self.raw.take().destroy(&library);
    }
}

impl Id {
    fn new(raw: OwnedId, channel: Arc<Channel>) -> Self {
        Self { raw, channel, waits_by_iwarp: false, groups: Vec::new() }
    }

    /// Copies the members of the identifier.
    fn members(&self) -> Option<rdma_cm_id> {
        self.raw.members(&Library::lock())
    }

    /// Leaves a group. If that fails, the identifier is destroyed, and refuses all calls.
    ///
    /// librdmacm frees what it keeps for the group even if the kernel refuses to leave, for example because the device
    /// was removed. The kernel may then still have an event of the membership, which points to that memory. The destroy
    /// drops such events. If the destroy fails too, no more events of the channel can be taken.
    fn leave(&mut self, library: &Library, group: SocketAddr) -> Result<(), VerbError> {
        let left = self.raw.leave(library, &mut Address::new(group));
        if left.is_err() && !self.raw.take().destroy(library) {
            self.channel.handle.is_spoiled.store(true, Ordering::Relaxed);
        }
        left
    }

    /// Whether a destroy of the identifier would wait, because no thread has taken the peer's answer yet.
    fn awaits_answer(&self, library: &Library) -> bool {
        let is_answered = |id: rdma_cm_id| id.context.addr() as u64 & ANSWERED != 0;
        self.waits_by_iwarp && !self.raw.members(library).is_some_and(is_answered)
    }
}

impl RawId for Id {
    fn bind(&mut self, address: SocketAddr) -> Result<(), VerbError> {
        self.raw.bind(&Library::lock(), &mut Address::new(address))
    }

    fn resolve_addr(&mut self, source: Option<SocketAddr>, to: SocketAddr, timeout: Duration) -> Result<(), VerbError> {
        let (mut source, mut to) = (source.map(Address::new), Address::new(to));
        self.raw.resolve_addr(&Library::lock(), source.as_mut(), &mut to, millis(timeout))
    }

    fn resolve_route(&mut self, timeout: Duration) -> Result<(), VerbError> {
        // Linux refuses a timeout of 0 for a route, although it accepts 0 for an address. So pass at least 1.
        self.raw.bound("rdma_resolve_route")?.resolve_route(millis(timeout).max(1))
    }

    fn listen(&mut self, backlog: u32) -> Result<(), VerbError> {
        self.raw.listen(&Library::lock(), i32::try_from(backlog).unwrap_or(i32::MAX))
    }

    fn connect(&mut self, parameters: &Parameters<'_>) -> Result<(), VerbError> {
        let mut id = self.raw.bound("rdma_connect")?;
        id.connect(&mut ConnectionParameters::of(parameters, "rdma_connect")?)?;
        self.waits_by_iwarp = self.device().is_some_and(|device| device.is_iwarp);
        Ok(())
    }

    fn accept(&mut self, parameters: &Parameters<'_>) -> Result<(), VerbError> {
        let mut id = self.raw.bound("rdma_accept")?;
        id.accept(&mut ConnectionParameters::of(parameters, "rdma_accept")?)?;
        self.waits_by_iwarp = self.device().is_some_and(|device| device.is_iwarp);
        Ok(())
    }

    fn reject(&mut self, private_data: &[u8]) -> Result<(), VerbError> {
        self.raw.reject(private_data)
    }

    fn establish(&mut self) -> Result<(), VerbError> {
        self.raw.establish()
    }

    fn notify_established(&mut self) -> Result<(), VerbError> {
        self.raw.notify(ibv_event_type::IBV_EVENT_COMM_EST)
    }

    fn disconnect(&mut self) -> Result<(), VerbError> {
        self.raw.disconnect()
    }

    fn pair_attributes(&self, to: ibv_qp_state) -> Result<(ibv_qp_attr, ibv_qp_attr_mask), VerbError> {
        let mut attributes = ibv_qp_attr { qp_state: to, ..Default::default() };
        let mask = self.raw.pair_attributes(&mut attributes)?;
        Ok((attributes, mask))
    }

    fn set_option(&mut self, option: IdOption) -> Result<(), VerbError> {
        match option {
            IdOption::TypeOfService(mut value) => self.raw.set_byte(0, &mut value),
            IdOption::ReuseAddress(is_on) => self.raw.set_number(1, &mut i32::from(is_on)),
            IdOption::AckTimeout(mut value) => self.raw.set_byte(3, &mut value),
        }
    }

    fn join_multicast(&mut self, group: SocketAddr) -> Result<(), VerbError> {
        self.raw.bound("rdma_join_multicast")?.join(&mut Address::new(group))?;
        self.groups.push(group);
        Ok(())
    }

    fn leave_multicast(&mut self, group: SocketAddr) -> Result<(), VerbError> {
        let library = Library::lock();
        self.groups.retain(|joined| *joined != group);
        self.leave(&library, group)
    }

    fn local_address(&self) -> Option<SocketAddr> {
        read(&self.members()?.route.addr.__bindgen_anon_1.source())
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        read(&self.members()?.route.addr.__bindgen_anon_2.destination())
    }

    fn ends_with_event(&self) -> bool {
        self.awaits_answer(&Library::lock())
    }

    fn device(&self) -> Option<BoundDevice> {
        let members = self.members()?;
        let verbs = NonNull::new(members.verbs)?;
        // SAFETY: librdmacm keeps the device of an identifier open as long as the identifier lives, and the identifier
        // outlives this call.
        let device = unsafe { Device::of_context(verbs) }?;
        let (name, guid_be, is_iwarp) = (device.name(), device.guid_be(), device.is_iwarp());
        Some(BoundDevice { name, guid_be, port: members.port_num, fabric: 0, is_iwarp })
    }
}

/// The length of private data, which the C interface counts in a byte.
fn length(private_data: &[u8], call: &'static str) -> Result<u8, VerbError> {
    u8::try_from(private_data.len()).map_err(|_| VerbError::new(call, libc::EINVAL))
}

/// The parameters of a connect or an accept as the C struct.
struct ConnectionParameters<'data> {
    /// # Invariants
    ///
    /// 0. `private_data` points to `private_data_len` bytes that are borrowed.
    raw: sys::rdma_conn_param,
    private_data: PhantomData<&'data [u8]>,
}

impl<'data> ConnectionParameters<'data> {
    fn of(parameters: &Parameters<'data>, call: &'static str) -> Result<Self, VerbError> {
        let raw = sys::rdma_conn_param {
            private_data: parameters.private_data.as_ptr().cast(),
            private_data_len: length(parameters.private_data, call)?,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            flow_control: 1,
            retry_count: parameters.retry_count,
            rnr_retry_count: parameters.rnr_retry_count,
            srq: u8::from(parameters.has_shared_receives),
            qp_num: parameters.queue_pair,
        };
        Ok(Self { raw, private_data: PhantomData })
    }
}

/// A C socket address.
enum Address {
    V4(sockaddr_in),
    V6(sockaddr_in6),
}

impl Address {
    fn new(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(address) => Self::V4(sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(address) => Self::V6(sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            }),
        }
    }

    fn as_ptr(&mut self) -> *mut libc::sockaddr {
        match self {
            Self::V4(address) => ptr::from_mut(address).cast(),
            Self::V6(address) => ptr::from_mut(address).cast(),
        }
    }
}

/// Reads an address that C wrote; `None` if it is empty or not an IP address. `storage` may hold a `sockaddr_in`, whose
/// `sin_addr` is at the offset of `sin6_flowinfo`.
fn read(storage: &sockaddr_in6) -> Option<SocketAddr> {
    const {
        assert!(mem::offset_of!(sockaddr_in, sin_family) == mem::offset_of!(sockaddr_in6, sin6_family));
        assert!(mem::offset_of!(sockaddr_in, sin_port) == mem::offset_of!(sockaddr_in6, sin6_port));
        assert!(mem::offset_of!(sockaddr_in, sin_addr) == mem::offset_of!(sockaddr_in6, sin6_flowinfo));
    }
    let port = u16::from_be(storage.sin6_port);
    match i32::from(storage.sin6_family) {
        libc::AF_INET => {
            let ip = Ipv4Addr::from(u32::from_be(storage.sin6_flowinfo));
            Some(SocketAddrV4::new(ip, port).into())
        }
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(storage.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, port, storage.sin6_flowinfo, storage.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_old_library_is_refused_where_a_device_has_no_guid() {
        assert_eq!(["1.3.44.0", "1.3.56.1\n", "1", "x.y.z"].map(release_of), [Some(44), Some(56), None, None]);
        assert!(release() >= 44, "{}", release());
        let device = |name: &str, guid_be| Listed { name: name.into(), guid_be };
        let devices = || vec![device("a", 7), device("b", 0)];
        let refused = check_devices(55, devices).unwrap_err();
        assert!(matches!(refused, OpenFailure::NoNodeGuid { device, release: 55 } if device == "b"));
        check_devices(56, devices).unwrap();
        check_devices(44, || vec![device("a", 7)]).unwrap();
    }

    #[test]
    fn a_short_timeout_is_not_rounded_to_none() {
        let nanos = [0, 1, 999, 1_000_000, 1_000_001];
        assert_eq!(nanos.map(|nanos| millis(Duration::from_nanos(nanos))), [0, 1, 1, 1, 2]);
        assert_eq!(millis(Duration::MAX), i32::MAX);
    }
}
