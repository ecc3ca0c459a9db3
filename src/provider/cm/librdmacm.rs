//! rdma_cm through librdmacm.
//!
//! librdmacm has tables that all channels and identifiers of the process share, with a lock around insertion and none
//! around removal. When the last event of an identifier is acknowledged, a destroy that waited for it continues, but
//! librdmacm touches the identifier once more after that. So one lock of ours ([`LIBRARY`]) is held in five cases:
//! while an identifier is made, while one is destroyed, while an event is taken, while members are read that are
//! written when an event is taken, and in calls that write these members.
//!
//! Nothing may block for long under that lock. One call would: on iWARP, `rdma_destroy_id` waits until the peer has
//! answered the connect or accept of the identifier, which may take ten seconds or as long as the peer likes. So such
//! an identifier becomes a [departing](Departing) one: whoever takes its next event destroys it. If the program has
//! dropped the channel, a [thread](reap) of this library takes the event. The thread ends with the last such
//! identifier.
#![allow(unsafe_code, reason = "calls librdmacm")]

use super::{
    BoundDevice, IdOption, MAX_PRIVATE_DATA, NewId, OpenFailure, Parameters, PortSpace, RawChannel, RawEvent,
    RawEventKind, RawId, Said,
};
use crate::provider::Listed;
use crate::provider::handles::ObjectPtr;
use crate::provider::rdma_core::{self, unblock};
use crate::sync::lock;
use crate::sys::rdmacm::{self as sys, rdma_cm_event, rdma_cm_id, rdma_event_channel, rdma_port_space};
use crate::sys::{
    ibv_event_type, ibv_get_device_name, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, ibv_transport_type,
};
use crate::verb_error::{VerbError, note_leak};
use libc::{sockaddr_in, sockaddr_in6, sockaddr_storage};
use std::ffi::{CStr, c_void};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;
use std::{fmt, fs, io, mem, ptr, ptr::NonNull, slice, thread};

/// Serialises calls of librdmacm; the documentation of this module says which.
static LIBRARY: Mutex<()> = Mutex::new(());

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

/// The rdma-core release that this process uses. It is read from the name of the mapped file, since librdmacm has no
/// call that returns it. If the name does not contain it, this is the release that the program was built with.
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
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: alive (0). No identifier is left, since each keeps its channel.
        unsafe { sys::rdma_destroy_event_channel(self.raw.0.as_ptr()) };
    }
}

impl Handle {
    /// Takes an event, if there is one, passes it to `read`, and acknowledges it. Then destroys the identifier of the
    /// event if it is a departing one.
    fn take<R>(
        &self,
        departing: &Mutex<Vec<Departing>>,
        read: impl FnOnce(&rdma_cm_event) -> R,
    ) -> Result<Option<R>, VerbError> {
        let mut taken = ptr::null_mut();
        let library = lock(&LIBRARY);
        // SAFETY: the channel is alive (0), and the pointer may be written.
        if unsafe { sys::rdma_get_cm_event(self.raw.0.as_ptr(), &mut taken) } != 0 {
            let error = last_error("rdma_get_cm_event");
            return if matches!(error.errno(), libc::EAGAIN | libc::EINTR) { Ok(None) } else { Err(error) };
        }
        // SAFETY: the event is not acknowledged yet, so the event and the identifiers that it names are alive.
        let event = unsafe { *taken };
        let seen = read(&event);
        // SAFETY: the event was taken just now, and is not used afterwards.
        let acknowledged = checked("rdma_ack_cm_event", unsafe { sys::rdma_ack_cm_event(taken) });
        let mut departing = lock(departing);
        if let Some(at) = departing.iter().position(|Departing(id)| id.0.as_ptr() == event.id) {
            // SAFETY: the identifier is alive, and only its entry of the list, removed just now, owned it (1 of
            // `Departing`). The lock is held.
            unsafe { destroy(departing.swap_remove(at).0) };
        }
        drop(departing);
        // The lock must be released before `seen` may be dropped: a new identifier in `seen` takes the lock when it is
        // dropped.
        drop(library);
        acknowledged.map(|()| Some(seen))
    }
}

/// An identifier that the program has dropped, and that is destroyed after its next event.
///
/// # Invariants
///
/// 1. Alive, and owned by this.
struct Departing(ObjectPtr<rdma_cm_id>);

/// An event channel of the program. Each identifier keeps it alive.
struct Channel {
    handle: Arc<Handle>,
    fd: RawFd,
    departing: Mutex<Vec<Departing>>,
}

/// `rdma_create_event_channel`, with a descriptor that does not block.
pub(super) fn open() -> Result<Arc<dyn RawChannel>, OpenFailure> {
    check_devices(release(), || rdma_core::devices().unwrap_or_default())?;
    look_after_orphans();
    let verb = "rdma_create_event_channel";
    // SAFETY: the function takes no arguments.
    let raw = NonNull::new(unsafe { sys::rdma_create_event_channel() }).ok_or_else(|| last_error(verb))?;
    // SAFETY: the channel was created just now, and nobody writes this member afterwards.
    let fd = unsafe { raw.as_ref() }.fd;
    let handle = Arc::new(Handle { raw: ObjectPtr(raw) });
    let channel = Channel { handle, fd, departing: Mutex::default() };
    unblock(fd, "ioctl on the events of rdma_cm")?;
    Ok(Arc::new(channel))
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let departing = mem::take(&mut *lock(&self.departing));
        if !departing.is_empty() {
            let handle = Arc::clone(&self.handle);
            lock(&ORPHANS).channels.push(Orphan { handle, departing: Mutex::new(departing) });
            look_after_orphans();
        }
    }
}

/// A channel that the program has dropped, with its departing identifiers.
struct Orphan {
    handle: Arc<Handle>,
    departing: Mutex<Vec<Departing>>,
}

impl Orphan {
    /// Destroys the identifiers that have had an event. Returns whether none is left.
    fn settle(&self) -> bool {
        while let Ok(Some(())) = self.handle.take(&self.departing, |_| ()) {}
        lock(&self.departing).is_empty()
    }
}

/// Channels that the program has dropped while they had departing identifiers. Lock order: this before [`LIBRARY`].
static ORPHANS: Mutex<Orphans> = Mutex::new(Orphans { channels: Vec::new(), are_looked_after: false });

struct Orphans {
    channels: Vec<Orphan>,
    /// The thread is running.
    are_looked_after: bool,
}

/// Starts the thread that looks after orphans, if there are orphans and the thread is not running. If the system has no
/// thread left, the next open or drop of a channel tries again.
fn look_after_orphans() {
    let mut orphans = lock(&ORPHANS);
    if !orphans.channels.is_empty() && !orphans.are_looked_after {
        let name = "interlock-cm".to_owned();
        orphans.are_looked_after = thread::Builder::new().name(name).spawn(reap).is_ok();
    }
}

/// How long the thread sleeps between two checks of the channels: the shortest and the longest time.
const NAPS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// Destroys the identifiers of orphans that have had their event, until no orphan is left.
fn reap() {
    let [shortest, longest] = NAPS;
    let mut nap = shortest;
    loop {
        thread::sleep(nap);
        let mut orphans = lock(&ORPHANS);
        let before = orphans.channels.len();
        orphans.channels.retain(|orphan| !orphan.settle());
        if orphans.channels.is_empty() {
            orphans.are_looked_after = false;
            return;
        }
        nap = if orphans.channels.len() < before { shortest } else { longest.min(2 * nap) };
    }
}

/// `rdma_destroy_id`. The caller holds the lock of the library.
///
/// # Safety
///
/// The identifier is alive, and is not used after this call.
unsafe fn destroy(id: ObjectPtr<rdma_cm_id>) {
    // SAFETY: the identifier is alive and not used any more (caller). Each of its events that was taken is
    // acknowledged, because taking and acknowledging happen under one hold of the lock.
    let result = unsafe { sys::rdma_destroy_id(id.0.as_ptr()) };
    if let Err(error) = checked("rdma_destroy_id", result) {
        note_leak("an identifier of rdma_cm", error);
    }
}

/// A bit in the context of an identifier, next to its key: the peer has answered the connect.
const ANSWERED: u64 = 1 << 63;

impl RawChannel for Channel {
    fn fd(&self) -> RawFd {
        self.fd
    }

    fn create_id(self: Arc<Self>, space: PortSpace, key: u64) -> Result<Box<dyn RawId>, VerbError> {
        let space = match space {
            PortSpace::Tcp => rdma_port_space::RDMA_PS_TCP,
            PortSpace::Udp => rdma_port_space::RDMA_PS_UDP,
        };
        let mut raw = ptr::null_mut();
        let _library = lock(&LIBRARY);
        // SAFETY: the channel is alive (0 of `Handle`), and the pointer may be written. The key is a number, never a
        // pointer.
        let result = unsafe { sys::rdma_create_id(self.handle.raw.0.as_ptr(), &mut raw, of_key(key), space) };
        checked("rdma_create_id", result)?;
        match NonNull::new(raw) {
            Some(raw) => Ok(Box::new(Id::new(raw, self))),
            None => Err(VerbError::new("rdma_create_id", libc::ENOMEM)),
        }
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
    fn copy(self: Arc<Self>, event: &rdma_cm_event, fresh_key: u64) -> RawEvent {
        let kind = RawEventKind(event.event.0);
        let is_request = kind == RawEventKind::CONNECT_REQUEST;
        let named = if is_request { event.listen_id } else { event.id };
        // SAFETY: the event is not acknowledged, so the identifier that it names is alive; the lock is held.
        let rdma_cm_id { context, ps: space, .. } = unsafe { *named };
        let key = context.addr() as u64 & !ANSWERED;
        if kind.0 >= RawEventKind::CONNECT_RESPONSE.0 && !is_request {
            // SAFETY: the identifier is alive, as above; the lock is held.
            unsafe { (*named).context = of_key(key | ANSWERED) };
        }
        let said = if space == rdma_port_space::RDMA_PS_UDP {
            // SAFETY: events of a datagram identifier have this member of the union, and librdmacm zeroes an event
            // before it fills it.
            let said = unsafe { event.param.ud };
            Said {
                private_data: copied(said.private_data, said.private_data_len),
                queue_pair: said.qp_num,
                qkey: said.qkey,
                path: Some(said.ah_attr),
                ..Said::default()
            }
        } else {
            // SAFETY: events of a connection identifier have this member of the union, and librdmacm zeroes an event
            // before it fills it.
            let said = unsafe { event.param.conn };
            Said {
                private_data: copied(said.private_data, said.private_data_len),
                responder_resources: said.responder_resources,
                initiator_depth: said.initiator_depth,
                rnr_retry_count: said.rnr_retry_count,
                queue_pair: said.qp_num,
                ..Said::default()
            }
        };
        let request = NonNull::new(event.id).filter(|_| is_request).map(|raw| {
            // SAFETY: librdmacm created this identifier for the event, so nobody else uses it.
            unsafe { (*raw.as_ptr()).context = of_key(fresh_key) };
            NewId { raw: Box::new(Id::new(raw, self)), key: fresh_key }
        });
        RawEvent { key, kind, status: event.status, said, request }
    }
}

/// Copies the private data of an event.
fn copied(data: *const c_void, len: u8) -> Vec<u8> {
    const { assert!(MAX_PRIVATE_DATA > u8::MAX as usize) };
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: `data` points into the event, which has 256 bytes for private data, and the event is not acknowledged
    // yet.
    unsafe { slice::from_raw_parts(data.cast(), len.into()) }.to_vec()
}

/// The key as the context of an identifier.
fn of_key(key: u64) -> *mut c_void {
    ptr::without_provenance_mut(key as usize)
}

/// An owned identifier.
struct Id {
    /// # Invariants
    ///
    /// 0. Came from librdmacm, and is alive until this is dropped. It never has a queue pair of librdmacm's own.
    raw: ObjectPtr<rdma_cm_id>,
    channel: Arc<Channel>,
    /// On iWARP: the identifier has sent a connect or an accept, and its destroy would wait until the peer answers.
    waits_by_iwarp: bool,
    /// The groups that it is a member of. librdmacm does not free its memory of a group that was not left.
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
        let library = lock(&LIBRARY);
        // Both under one hold of the lock: if another thread took the answer in between, no event might come any more,
        // and nobody would destroy the identifier.
        if self.awaits_answer(&library) {
            lock(&self.channel.departing).push(Departing(self.raw));
            return;
        }
        for group in mem::take(&mut self.groups) {
            // If `leave` fails, the device was removed, and the identifier has left all groups.
            let _ = self.leave(group);
        }
        // SAFETY: the identifier is alive, and nobody else destroys it (0).
        unsafe { destroy(self.raw) };
    }
}

impl Id {
    fn new(raw: NonNull<rdma_cm_id>, channel: Arc<Channel>) -> Self {
        Self { raw: ObjectPtr(raw), channel, waits_by_iwarp: false, groups: Vec::new() }
    }

    fn as_ptr(&self) -> *mut rdma_cm_id {
        self.raw.0.as_ptr()
    }

    /// Copies the members of the identifier.
    fn members(&self) -> rdma_cm_id {
        self.members_under(&lock(&LIBRARY))
    }

    /// As [`members`](Self::members). The caller holds the lock of the library.
    fn members_under(&self, _: &MutexGuard<'_, ()>) -> rdma_cm_id {
        // SAFETY: the identifier is alive (0). librdmacm writes its members only while an event is taken, which happens
        // under the lock, and in calls that take `&mut self`.
        unsafe { *self.as_ptr() }
    }

    /// Whether its destroy waits for an answer that nobody has taken. The caller holds the lock of the library.
    fn awaits_answer(&self, library: &MutexGuard<'_, ()>) -> bool {
        self.waits_by_iwarp && self.members_under(library).context.addr() as u64 & ANSWERED == 0
    }

    /// Checks that the identifier is bound to a device. Several functions of librdmacm use the device without a check.
    fn is_bound(&self, call: &'static str) -> Result<(), VerbError> {
        if self.members().verbs.is_null() { Err(VerbError::new(call, libc::EINVAL)) } else { Ok(()) }
    }

    /// `rdma_leave_multicast`. The caller holds the lock of the library.
    fn leave(&self, group: SocketAddr) -> Result<(), VerbError> {
        let mut group = Address::new(group);
        // SAFETY: the identifier is alive (0); the address is as long as its family says.
        let result = unsafe { sys::rdma_leave_multicast(self.as_ptr(), group.as_ptr()) };
        checked("rdma_leave_multicast", result)
    }

    fn option<T>(&self, option: i32, mut value: T) -> Result<(), VerbError> {
        // SAFETY: the identifier is alive (0); the pointer and the length are those of `value`.
        let result =
            unsafe { sys::rdma_set_option(self.as_ptr(), 0, option, (&raw mut value).cast(), mem::size_of::<T>()) };
        checked("rdma_set_option", result)
    }
}

impl RawId for Id {
    fn bind(&mut self, address: SocketAddr) -> Result<(), VerbError> {
        let mut address = Address::new(address);
        // The call writes members that are also written when an event is taken.
        let _library = lock(&LIBRARY);
        // SAFETY: alive (0); the address is as long as its family says.
        checked("rdma_bind_addr", unsafe { sys::rdma_bind_addr(self.as_ptr(), address.as_ptr()) })
    }

    fn resolve_addr(&mut self, source: Option<SocketAddr>, to: SocketAddr, timeout: Duration) -> Result<(), VerbError> {
        let mut source = source.map(Address::new);
        let source = source.as_mut().map_or(ptr::null_mut(), Address::as_ptr);
        let mut to = Address::new(to);
        // The call writes members after it has asked the kernel, while another thread may take the event that answers
        // it.
        let _library = lock(&LIBRARY);
        // SAFETY: alive (0); both addresses are as long as their families say, and a null source means any.
        let result = unsafe { sys::rdma_resolve_addr(self.as_ptr(), source, to.as_ptr(), millis(timeout)) };
        checked("rdma_resolve_addr", result)
    }

    fn resolve_route(&mut self, timeout: Duration) -> Result<(), VerbError> {
        self.is_bound("rdma_resolve_route")?;
        // SAFETY: the identifier is alive (0), and bound to a device.
        checked("rdma_resolve_route", unsafe { sys::rdma_resolve_route(self.as_ptr(), millis(timeout)) })
    }

    fn listen(&mut self, backlog: u32) -> Result<(), VerbError> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // The call reads the address again, into members that are also written when an event is taken.
        let _library = lock(&LIBRARY);
        // SAFETY: alive (0).
        checked("rdma_listen", unsafe { sys::rdma_listen(self.as_ptr(), backlog) })
    }

    fn connect(&mut self, parameters: &Parameters<'_>) -> Result<(), VerbError> {
        self.is_bound("rdma_connect")?;
        let mut raw = parameters.to_sys("rdma_connect")?;
        // SAFETY: the identifier is alive (0), and bound to a device; the parameters and their data live until the call
        // returns.
        checked("rdma_connect", unsafe { sys::rdma_connect(self.as_ptr(), &mut raw) })?;
        self.waits_by_iwarp = self.device().is_some_and(|device| device.is_iwarp);
        Ok(())
    }

    fn accept(&mut self, parameters: &Parameters<'_>) -> Result<(), VerbError> {
        self.is_bound("rdma_accept")?;
        let mut raw = parameters.to_sys("rdma_accept")?;
        // SAFETY: alive (0), and bound to a device; the parameters and their data live until the call returns.
        checked("rdma_accept", unsafe { sys::rdma_accept(self.as_ptr(), &mut raw) })?;
        self.waits_by_iwarp = self.device().is_some_and(|device| device.is_iwarp);
        Ok(())
    }

    fn reject(&mut self, private_data: &[u8]) -> Result<(), VerbError> {
        let len = length(private_data, "rdma_reject")?;
        // SAFETY: the identifier is alive (0); `len` is the length of the data.
        checked("rdma_reject", unsafe { sys::rdma_reject(self.as_ptr(), private_data.as_ptr().cast(), len) })
    }

    fn establish(&mut self) -> Result<(), VerbError> {
        // SAFETY: the identifier is alive (0).
        checked("rdma_establish", unsafe { sys::rdma_establish(self.as_ptr()) })
    }

    fn notify_established(&mut self) -> Result<(), VerbError> {
        // SAFETY: the identifier is alive (0).
        let result = unsafe { sys::rdma_notify(self.as_ptr(), ibv_event_type::IBV_EVENT_COMM_EST) };
        checked("rdma_notify", result)
    }

    fn disconnect(&mut self) -> Result<(), VerbError> {
        // SAFETY: the identifier is alive (0).
        checked("rdma_disconnect", unsafe { sys::rdma_disconnect(self.as_ptr()) })
    }

    fn pair_attributes(&self, to: ibv_qp_state) -> Result<(ibv_qp_attr, ibv_qp_attr_mask), VerbError> {
        let mut attributes = ibv_qp_attr { qp_state: to, ..Default::default() };
        let mut mask = 0;
        // SAFETY: the identifier is alive (0); both may be written.
        let result = unsafe { sys::rdma_init_qp_attr(self.as_ptr(), &mut attributes, &mut mask) };
        checked("rdma_init_qp_attr", result)?;
        Ok((attributes, ibv_qp_attr_mask(mask.cast_unsigned())))
    }

    fn set_option(&mut self, option: IdOption) -> Result<(), VerbError> {
        match option {
            IdOption::TypeOfService(value) => self.option(0, value),
            IdOption::ReuseAddress(is_on) => self.option(1, i32::from(is_on)),
            IdOption::AckTimeout(value) => self.option(3, value),
        }
    }

    fn join_multicast(&mut self, group: SocketAddr) -> Result<(), VerbError> {
        self.is_bound("rdma_join_multicast")?;
        let mut address = Address::new(group);
        // SAFETY: the identifier is alive (0), and bound to a device; the address is as long as its family says.
        let result = unsafe { sys::rdma_join_multicast(self.as_ptr(), address.as_ptr(), ptr::null_mut()) };
        checked("rdma_join_multicast", result)?;
        self.groups.push(group);
        Ok(())
    }

    fn leave_multicast(&mut self, group: SocketAddr) -> Result<(), VerbError> {
        // `rdma_leave_multicast` waits for events that are taken and not acknowledged. Under the lock there are none.
        let _library = lock(&LIBRARY);
        self.groups.retain(|joined| *joined != group);
        self.leave(group)
    }

    fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: each member of the union is an address, and any bytes are a valid value of it.
        read(&unsafe { self.members().route.addr.__bindgen_anon_1.src_storage })
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: each member of the union is an address, and any bytes are a valid value of it.
        read(&unsafe { self.members().route.addr.__bindgen_anon_2.dst_storage })
    }

    fn ends_with_event(&self) -> bool {
        self.awaits_answer(&lock(&LIBRARY))
    }

    fn device(&self) -> Option<BoundDevice> {
        let members = self.members();
        let verbs = NonNull::new(members.verbs)?;
        // SAFETY: librdmacm keeps the context of an identifier open; nobody writes the member.
        let device = unsafe { verbs.as_ref() }.device;
        // SAFETY: the context is open, so its device is alive; nobody writes the member.
        let transport = unsafe { (*device).transport_type };
        // SAFETY: the context is open, so its device is alive.
        let name = unsafe { ibv_get_device_name(device) };
        // SAFETY: the name is a C string that lives as long as the device.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let is_iwarp = transport == ibv_transport_type::IBV_TRANSPORT_IWARP;
        Some(BoundDevice { name, port: members.port_num, fabric: 0, is_iwarp })
    }
}

/// The length of private data, which the C interface counts in a byte.
fn length(private_data: &[u8], call: &'static str) -> Result<u8, VerbError> {
    u8::try_from(private_data.len()).map_err(|_| VerbError::new(call, libc::EINVAL))
}

impl Parameters<'_> {
    /// The C struct, which points to the private data of `self`.
    fn to_sys(self, call: &'static str) -> Result<sys::rdma_conn_param, VerbError> {
        Ok(sys::rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: length(self.private_data, call)?,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: u8::from(self.has_shared_receives),
            qp_num: self.queue_pair,
        })
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

/// Reads an address that C wrote; `None` if it is empty or not an IP address.
fn read(storage: &sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the storage is aligned and long enough for each kind of address, and the family says which kind
            // it holds.
            let address = unsafe { &*ptr::from_ref(storage).cast::<sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(address.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the storage is aligned and long enough for each kind of address, and the family says which kind
            // it holds.
            let address = unsafe { &*ptr::from_ref(storage).cast::<sockaddr_in6>() };
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            let port = u16::from_be(address.sin6_port);
            Some(SocketAddrV6::new(ip, port, address.sin6_flowinfo, address.sin6_scope_id).into())
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
