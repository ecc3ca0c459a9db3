//! The handles of an open device and of the objects that are made on it, each with the verbs that create it, use it
//! and end it.
#![allow(unsafe_code, reason = "calls verbs on the objects that the handles own")]

use super::rights::{Kept, Rights};
use super::{Handle, Object, ObjectPtr, RawEvent};
use crate::provider::environment;
use crate::provider::reviewed::Promises;
use crate::provider::{Opened, Provider};
use crate::sys::{self, ibv_qp_attr_mask, ibv_srq_attr_mask};
use crate::verb_error::{VerbError, note_leak};
use std::{ffi::c_void, os::fd::BorrowedFd, ptr, ptr::NonNull, sync::Arc, time::Duration};

/// Methods of a handle that call the provider's verb of the same name on the handle's object.
macro_rules! safe_verbs {
    ($($(#[$doc:meta])* fn $method:ident = $verb:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $method(&self, $($argument: $type),*) -> Result<$result, VerbError> {
            let object = self.alive(concat!("ibv_", stringify!($verb)))?;
            // SAFETY: the object is alive, and of this provider (0). Ending the object needs `&mut` of its handle, so
            // nobody ends it during this call.
            unsafe { self.provider().$verb(object, $($argument),*) }
        }
    )*};
}

/// Methods that read a field which providers write only when they make the object.
macro_rules! fields_of_new {
    ($($(#[$doc:meta])* fn $method:ident = $field:ident -> $type:ty;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $method(&self) -> $type {
            // SAFETY: only `OpenContext` uses this macro. Its context is open as long as the handle lives (0), and
            // providers write this field only when they make the context.
            unsafe { (*self.raw.0.as_ptr()).$field }
        }
    )*};
}

/// The type of `ibv_context_ops::bind_mw`.
pub(crate) type BindMw = unsafe extern "C" fn(*mut sys::ibv_qp, *mut sys::ibv_mw, *mut sys::ibv_mw_bind) -> i32;

/// An open device context. Dropping it closes the device, so whatever is made from it keeps it alive.
///
/// ASSUMPTION: verbs may be called from any thread, except a destroy that races with a use of the same object.
/// libibverbs allows verbs on one context from any thread (`ibv_open_device(3)` and the kernel's
/// `Documentation/infiniband/user_verbs`); ownership rules out the race. The soft device takes a lock.
pub(crate) struct OpenContext {
    /// # Invariants
    ///
    /// 0. The context came from `provider` and is open. Nobody else closes it.
    raw: ObjectPtr<sys::ibv_context>,
    pub(crate) provider: &'static dyn Provider,
}

impl OpenContext {
    /// Takes over a context that was opened just now.
    pub(crate) fn new(opened: Opened) -> Self {
        Self { raw: ObjectPtr(opened.context), provider: opened.provider }
    }

    /// The pointer, to make objects of this context.
    pub(super) fn raw(&self) -> NonNull<sys::ibv_context> {
        self.raw.0
    }

    /// The context. It is open as long as the handle lives, so this never fails.
    #[allow(clippy::unnecessary_wraps, reason = "as for handles that may outlive their object")]
    fn alive(&self, _: &'static str) -> Result<NonNull<sys::ibv_context>, VerbError> {
        Ok(self.raw.0)
    }

    fn provider(&self) -> &'static dyn Provider {
        self.provider
    }

    fields_of_new! {
        fn async_fd_number = async_fd -> i32;
        /// How many completion vectors the device says that it has.
        fn completion_vectors = num_comp_vectors -> i32;
        fn device = device -> *mut sys::ibv_device;
        /// The provider's functions for the data path, and for binding windows of type 1.
        fn functions = ops -> sys::ibv_context_ops;
    }

    safe_verbs! {
        /// `ibv_query_device`.
        fn query_device = query_device() -> sys::ibv_device_attr;
        /// `ibv_query_device_ex`.
        fn query_device_ex = query_device_ex() -> sys::ibv_device_attr_ex;
        /// `ibv_query_port`. Ports count from 1.
        fn query_port = query_port(port: u8) -> sys::ibv_port_attr;
        /// `ibv_query_gid_table`: the filled entries of all ports.
        fn query_gid_table = query_gid_table() -> Vec<sys::ibv_gid_entry>;
        /// `ibv_query_pkey`: the entry at `index` of the table of partition keys, in host byte order.
        fn query_pkey = query_pkey(port: u8, index: u16) -> u16;
        /// `ibv_get_async_event`.
        fn take_any_event = take_async_event() -> Option<sys::ibv_async_event>;
    }

    /// Takes and acknowledges one asynchronous event, if there is one.
    pub(crate) fn take_async_event(&self) -> Result<Option<RawEvent>, VerbError> {
        Ok(self.take_any_event()?.map(|event| RawEvent::of(&event)))
    }

    /// The promises that the device itself reports; `None` for hardware.
    pub(crate) fn own_promises(&self) -> Option<&'static Promises> {
        // SAFETY: the context is open, and of this provider (0).
        unsafe { self.provider.promises(self.raw.0) }
    }

    /// The descriptor that is readable while asynchronous events wait.
    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context. Only the drop of this handle closes the context (0),
        // and the result borrows the handle.
        unsafe { BorrowedFd::borrow_raw(self.async_fd_number()) }
    }

    /// Whether the device speaks iWARP.
    pub(crate) fn is_iwarp(&self) -> bool {
        // SAFETY: the pointer is null, or points to the device of the context. The context is open (0). An open context
        // keeps its device alive, and nobody writes to the struct of that device.
        let device = unsafe { self.device().as_ref() };
        let iwarp = sys::ibv_transport_type::IBV_TRANSPORT_IWARP;
        device.is_some_and(|device| device.transport_type == iwarp)
    }

    /// The provider's function that binds windows of type 1, if it has one.
    pub(crate) fn bind_mw(&self) -> Option<BindMw> {
        self.functions().bind_mw
    }

    /// Opens a channel of rdma_cm for this device.
    #[cfg(feature = "cm")]
    pub(crate) fn open_cm(&self) -> Result<Arc<dyn crate::provider::cm::RawChannel>, crate::provider::cm::OpenFailure> {
        // SAFETY: the context is open, and of this provider (0).
        unsafe { self.provider.open_cm(self.raw.0) }
    }

    /// The time until the device must be polled even if nothing has happened; `None` if it runs by itself.
    pub(crate) fn next_timer(&self) -> Option<Duration> {
        // SAFETY: the context is open, and of this provider (0).
        unsafe { self.provider.next_timer(self.raw.0) }
    }
}

impl Drop for OpenContext {
    fn drop(&mut self) {
        // SAFETY: the context is open, and nobody else closes it (0). Each object that was made from the context keeps
        // this handle alive, so no such object is left.
        if let Err(error) = unsafe { self.provider.close_device(self.raw.0) } {
            note_leak("a device context", error);
        }
    }
}

pub(crate) type Domain = Handle<sys::ibv_pd>;
pub(crate) type Channel = Handle<sys::ibv_comp_channel>;
pub(crate) type CompletionQueue = Handle<sys::ibv_cq>;
pub(crate) type SharedQueue = Handle<sys::ibv_srq>;
pub(crate) type Address = Handle<sys::ibv_ah>;
pub(crate) type Pair = Handle<sys::ibv_qp>;

/// Defines for each kind of object what it needs, how to find the context from there, and the verb that ends the
/// object.
macro_rules! objects {
    ($($object:ident needs $needs:ty, keeps $kept:ty, on $context:expr, ends by $verb:ident;)*) => {$(
        impl Object for sys::$object {
            type Needs = $needs;
            type Kept = $kept;
            fn provider(needs: &$needs) -> &'static dyn Provider {
                let context: fn(&$needs) -> &Arc<OpenContext> = $context;
                context(needs).provider
            }
            fn end(handle: &mut Handle<Self>) -> Result<(), VerbError> {
                let verb = concat!("ibv_", stringify!($verb));
                let object = handle.alive(verb)?;
                if !handle.kept.is_unused() {
                    return Err(VerbError::new(verb, libc::EBUSY));
                }
                // SAFETY: the object is alive, and nobody else ends it (0). No other object needs it any more
                // (`Handle::end`), and nobody has a right to post to it (checked above).
                unsafe { handle.provider().$verb(object) }
            }
        }
    )*};
}
objects! {
    ibv_pd needs Arc<OpenContext>, keeps (), on |context| context, ends by dealloc_pd;
    ibv_comp_channel needs Arc<OpenContext>, keeps (), on |context| context, ends by destroy_comp_channel;
    ibv_cq needs Arc<Channel>, keeps (), on |channel| channel.needs(), ends by destroy_cq;
    ibv_srq needs Arc<Domain>, keeps Rights, on |domain| domain.needs(), ends by destroy_srq;
    ibv_ah needs Arc<Domain>, keeps (), on |domain| domain.needs(), ends by destroy_ah;
    ibv_qp needs PairNeeds, keeps Rights, on |needs| needs.domain.needs(), ends by destroy_qp;
}

impl<T: Object> Handle<T> {
    /// Takes over an object that the provider of `needs` has just made from the objects in `needs`.
    fn of_new(raw: NonNull<T>, needs: T::Needs) -> Self {
        Self { raw: ObjectPtr(raw), is_alive: true, needs, kept: T::Kept::default() }
    }
}

impl Domain {
    /// `ibv_alloc_pd`.
    pub(crate) fn alloc(context: &Arc<OpenContext>) -> Result<Self, VerbError> {
        // SAFETY: the context is open while we borrow its handle.
        let raw = unsafe { context.provider.alloc_pd(context.raw()) }?;
        Ok(Self::of_new(raw, Arc::clone(context)))
    }
}

impl Address {
    /// `ibv_create_ah`.
    pub(crate) fn create(domain: &Arc<Domain>, attributes: &mut sys::ibv_ah_attr) -> Result<Self, VerbError> {
        let pd = domain.alive("ibv_create_ah")?;
        // SAFETY: the domain is alive (checked above), and nobody ends it while we borrow its handle.
        let raw = unsafe { domain.provider().create_ah(pd, attributes) }?;
        Ok(Self::of_new(raw, Arc::clone(domain)))
    }
}

impl Channel {
    /// `ibv_create_comp_channel`.
    pub(crate) fn create(context: &Arc<OpenContext>) -> Result<Self, VerbError> {
        // SAFETY: the context is open while we borrow its handle.
        let raw = unsafe { context.provider.create_comp_channel(context.raw()) }?;
        Ok(Self::of_new(raw, Arc::clone(context)))
    }

    /// The descriptor that is readable while events wait. It does not block.
    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>, VerbError> {
        let channel = self.alive("ibv_get_cq_event")?;
        // SAFETY: the channel is alive; providers write the field only when they create the channel.
        let fd = unsafe { (*channel.as_ptr()).fd };
        // SAFETY: the descriptor lives as long as the channel. Only this handle destroys the channel (0), and that
        // takes `&mut`, so it cannot happen while the descriptor is borrowed.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    safe_verbs! {
        /// `ibv_get_cq_event` and `ibv_ack_cq_events`: takes and acknowledges one event, if there is one, and returns
        /// its completion queue, which may be gone by now.
        fn take_event = take_cq_event_of() -> Option<NonNull<sys::ibv_cq>>;
    }
}

impl CompletionQueue {
    /// `ibv_create_cq` for at least `entries` completions, with its events on `channel`. Returns the queue, with the
    /// number of completions that it has room for.
    pub(crate) fn create(channel: &Arc<Channel>, entries: u32, vector: u32) -> Result<(Self, u32), VerbError> {
        environment::check("ibv_create_cq")?;
        let (context, on) = (channel.needs(), channel.alive("ibv_create_cq")?);
        // SAFETY: the channel is alive (checked above), and nobody ends it while we borrow its handle. The channel
        // holds its context, so the context is open.
        let raw = unsafe { context.provider.create_cq(context.raw(), entries, on, vector) }?;
        Ok(Self::of_new_queue(raw, channel))
    }

    /// `ibv_create_cq_ex`: the same for an extended queue, whose completions have `fields` (of
    /// `ibv_create_cq_wc_flags`). `look` inspects the queue before it is used.
    pub(crate) fn create_extended<R>(
        channel: &Arc<Channel>,
        entries: u32,
        vector: u32,
        fields: u64,
        cq_context: *mut c_void,
        look: impl FnOnce(&sys::ibv_cq_ex) -> R,
    ) -> Result<(Self, u32, R), VerbError> {
        environment::check("ibv_create_cq_ex")?;
        let context = channel.needs();
        let mut attributes = sys::ibv_cq_init_attr_ex {
            cqe: entries,
            cq_context,
            channel: channel.alive("ibv_create_cq_ex")?.as_ptr(),
            comp_vector: vector,
            wc_flags: fields,
            ..Default::default()
        };
        // SAFETY: the channel is alive (checked above), and nobody ends it while we borrow its handle. The channel
        // holds its context, so the context is open.
        let raw = unsafe { context.provider.create_cq_ex(context.raw(), &mut attributes) }?;
        // SAFETY: the queue was created just now, and nobody else uses it yet.
        let seen = look(unsafe { raw.as_ref() });
        // This cast is `ibv_cq_ex_to_cq`: both structs begin with the same members.
        let (queue, room) = Self::of_new_queue(raw.cast(), channel);
        Ok((queue, room, seen))
    }

    fn of_new_queue(raw: NonNull<sys::ibv_cq>, channel: &Arc<Channel>) -> (Self, u32) {
        // SAFETY: the queue was created just now, and nobody resizes it yet.
        let room = unsafe { (*raw.as_ptr()).cqe };
        (Self::of_new(raw, Arc::clone(channel)), u32::try_from(room).unwrap_or(0))
    }

    /// `ibv_resize_cq` to at least `entries` completions.
    ///
    /// # Safety
    ///
    /// Nobody else polls or resizes the queue meanwhile.
    pub(crate) unsafe fn resize(&self, entries: u32) -> Result<(), VerbError> {
        let cq = self.alive("ibv_resize_cq")?;
        // SAFETY: the queue is alive, and of this provider (0). Nobody else polls or resizes it (caller). The verb
        // writes the queue's `cqe`. After the creation of the queue, only polls and resizes read that member.
        unsafe { self.provider().resize_cq(cq, entries) }
    }
}

impl SharedQueue {
    /// `ibv_create_srq`, with the sizes that were granted. It does not set the limit.
    pub(crate) fn create(
        domain: &Arc<Domain>,
        asked: sys::ibv_srq_attr,
    ) -> Result<(Self, sys::ibv_srq_attr), VerbError> {
        environment::check("ibv_create_srq")?;
        let pd = domain.alive("ibv_create_srq")?;
        let mut attributes = sys::ibv_srq_init_attr { attr: asked, ..Default::default() };
        // SAFETY: the domain is alive (checked above), and nobody ends it while we borrow its handle.
        let raw = unsafe { domain.provider().create_srq(pd, &mut attributes) }?;
        Ok((Self::of_new(raw, Arc::clone(domain)), attributes.attr))
    }

    safe_verbs! {
        /// `ibv_modify_srq`: the size, the limit, or both.
        fn modify = modify_srq(attributes: &mut sys::ibv_srq_attr, mask: ibv_srq_attr_mask) -> ();
        /// `ibv_query_srq`. A limit of 0 means that no limit is armed, or that its event was raised.
        fn query = query_srq() -> sys::ibv_srq_attr;
    }
}

/// The objects that a queue pair is made from.
#[derive(Clone)]
pub(crate) struct PairNeeds {
    pub(crate) domain: Arc<Domain>,
    pub(crate) send_queue: Arc<CompletionQueue>,
    pub(crate) receive_queue: Arc<CompletionQueue>,
    /// `None`: the pair has receives of its own.
    pub(crate) shared: Option<Arc<SharedQueue>>,
}

impl PairNeeds {
    /// Checks that all objects are alive and of one device, and that no variable of the environment forbids them.
    /// Returns the pointers to the domain and the queues.
    fn check(
        &self,
        verb: &'static str,
    ) -> Result<(NonNull<sys::ibv_pd>, [*mut sys::ibv_cq; 2], *mut sys::ibv_srq), VerbError> {
        environment::check(verb)?;
        let Self { domain, send_queue, receive_queue, shared } = self;
        let on = |context| Arc::ptr_eq(domain.needs(), context);
        let is_shared_on = shared.as_ref().is_none_or(|shared| on(shared.needs().needs()));
        if !is_shared_on || ![send_queue, receive_queue].into_iter().all(|queue| on(queue.needs().needs())) {
            return Err(VerbError::new(verb, libc::EINVAL));
        }
        let srq = shared.as_ref().map(|shared| shared.alive(verb)).transpose()?;
        let queues = [send_queue.alive(verb)?.as_ptr(), receive_queue.alive(verb)?.as_ptr()];
        Ok((domain.alive(verb)?, queues, srq.map_or(ptr::null_mut(), NonNull::as_ptr)))
    }
}

impl Pair {
    /// `ibv_create_qp`. This function fills in the queues of `asked` from `needs`. Returns the pair, with the sizes
    /// that were granted.
    pub(crate) fn create(
        needs: PairNeeds,
        mut asked: sys::ibv_qp_init_attr,
    ) -> Result<(Self, sys::ibv_qp_cap), VerbError> {
        let (pd, queues, srq) = needs.check("ibv_create_qp")?;
        [asked.send_cq, asked.recv_cq] = queues;
        asked.srq = srq;
        // SAFETY: the domain and the queues are alive and of one device (`PairNeeds::check`). Nobody ends them: that
        // needs `&mut` of their handles, and `needs` holds an `Arc` of each handle.
        let raw = unsafe { needs.domain.provider().create_qp(pd, &mut asked) }?;
        Ok((Self::of_new(raw, needs), asked.cap))
    }

    /// `ibv_create_qp_ex` for a pair that posts the operations `sends` through `ibv_wr_*`. `has_sessions` inspects the
    /// pair before it is used, and says whether the provider has filled all functions that its requests call. The last
    /// result is false if `has_sessions` says no, or if the provider made a pair without `ibv_wr_*`.
    pub(crate) fn create_extended(
        needs: PairNeeds,
        asked: sys::ibv_qp_init_attr,
        sends: sys::ibv_qp_create_send_ops_flags,
        has_sessions: impl FnOnce(&sys::ibv_qp_ex) -> bool,
    ) -> Result<(Self, sys::ibv_qp_cap, bool), VerbError> {
        use sys::ibv_qp_init_attr_mask as InitMask;
        let (pd, [send_cq, recv_cq], srq) = needs.check("ibv_create_qp_ex")?;
        let sys::ibv_qp_init_attr { cap, qp_type, sq_sig_all, .. } = asked;
        let mut attributes = sys::ibv_qp_init_attr_ex {
            send_cq,
            recv_cq,
            srq,
            cap,
            qp_type,
            sq_sig_all,
            comp_mask: InitMask::IBV_QP_INIT_ATTR_PD.0 | InitMask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0,
            pd: pd.as_ptr(),
            send_ops_flags: u64::from(sends.0),
            ..Default::default()
        };
        let context = needs.domain.needs();
        // SAFETY: the domain and the queues are alive and of one device (`PairNeeds::check`). Nobody ends them: that
        // needs `&mut` of their handles, and `needs` holds an `Arc` of each handle. The domain's handle keeps the
        // context open.
        let (raw, extended) = unsafe { context.provider.create_qp_ex(context.raw(), &mut attributes) }?;
        // An `ibv_qp_ex` begins with its `ibv_qp`, so both must have the same address. If they do not, treat the pair
        // as one without `ibv_wr_*`.
        let extended = extended.filter(|extended| extended.cast() == raw);
        // SAFETY: the provider returned `extended` for the pair that it made just now. Nobody else uses the pair yet.
        let has_sessions = extended.is_some_and(|extended| has_sessions(unsafe { extended.as_ref() }));
        let mut pair = Self::of_new(raw, needs);
        pair.kept.has_sessions = has_sessions;
        Ok((pair, attributes.cap, has_sessions))
    }

    /// The number of the pair.
    pub(crate) fn number(&self) -> u32 {
        if !self.is_alive {
            return 0;
        }
        // SAFETY: the pair is alive (0); providers write the number only when they create the pair.
        unsafe { (*self.raw.0.as_ptr()).qp_num }
    }

    safe_verbs! {
        /// `ibv_modify_qp`. After `Err`, neither state nor attributes have changed.
        fn modify = modify_qp(attributes: &mut sys::ibv_qp_attr, mask: ibv_qp_attr_mask) -> ();
        /// `ibv_query_qp`, for the fields of `mask`.
        fn query = query_qp(mask: ibv_qp_attr_mask) -> sys::ibv_qp_attr;
        /// `ibv_attach_mcast`: a datagram pair joins the group. `lid` is 0 on Ethernet.
        fn attach = attach_mcast(group: &sys::ibv_gid, lid: u16) -> ();
        /// `ibv_detach_mcast`.
        fn detach = detach_mcast(group: &sys::ibv_gid, lid: u16) -> ();
    }
}
