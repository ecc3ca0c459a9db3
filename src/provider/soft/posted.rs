//! Reads the posts of a program: the lists, pointers and unions of the C interface. No other file reads them.
#![allow(unsafe_code, reason = "lists, pointers and unions of the C interface")]

use super::{
    completion::Extra,
    datagram::Destination,
    handles::{Handle, Object, find},
    memory::AtomicOp,
    window::{self, Bind},
    work::{Operation, Remote},
};
use crate::sys::{
    ibv_ah, ibv_mr, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type, ibv_recv_wr, ibv_send_wr, ibv_sge,
    ibv_wr_opcode, inline::ibv_inc_rkey,
};
use libc::c_int;
use std::{ops::Deref, ptr, slice};

/// A request that is a member of a linked list.
pub(super) trait Linked: 'static {
    fn next(&self) -> *mut Self;
    fn elements(&self) -> (*const ibv_sge, c_int);
}

impl Linked for ibv_send_wr {
    fn next(&self) -> *mut Self {
        self.next
    }

    fn elements(&self) -> (*const ibv_sge, c_int) {
        (self.sg_list, self.num_sge)
    }
}

impl Linked for ibv_recv_wr {
    fn next(&self) -> *mut Self {
        self.next
    }

    fn elements(&self) -> (*const ibv_sge, c_int) {
        (self.sg_list, self.num_sge)
    }
}

/// The arguments of a post: an object, a list of requests, and the place for the request that was refused.
pub(super) struct Post<'a, T, W> {
    /// The queue pair or shared receive queue.
    pub(super) object: Object<'a, T>,
    /// # Invariants
    ///
    /// 0. Null, or the first request of a list that stays unchanged for `'a`. Each request is as `ibv_post_send(3)` and
    ///    `ibv_post_recv(3)` demand: its elements, its inline data and the objects that it names can be read, and the
    ///    union members of its operation are set. This device reads more than that. So a bind also sets `imm_data`, and
    ///    a list of no elements is null, or points to one element that can be read.
    first: *mut W,
    /// 1. Null, or points to memory that may be written for `'a`.
    bad: *mut *mut W,
}

/// A request of a [`Post`].
pub(super) struct Request<'a, W> {
    /// The address of the request in the program.
    pub(super) at: *mut W,
    /// # Invariants
    ///
    /// 0. The invariant (0) of the list holds for this request.
    request: &'a W,
}

impl<'a, T: Handle, W: Linked> Post<'a, T, W> {
    /// # Safety
    ///
    /// The object is alive and of this provider. The other arguments are as `ibv_post_send(3)` and `ibv_post_recv(3)`
    /// require (0, 1). The memory that the requests name belongs to the device until they complete.
    pub(super) unsafe fn new(object: *mut T, first: *mut W, bad: *mut *mut W) -> Self {
        // SAFETY: the object is alive (caller).
        Self { object: unsafe { find(object) }, first, bad }
    }

    /// The address of the first request; null if there is none.
    pub(super) fn first(&self) -> *mut W {
        self.first
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Request<'a, W>> + use<'a, T, W> {
        let mut at = self.first;
        std::iter::from_fn(move || {
            // SAFETY: `at` is null, or a request of the list (0).
            let request = unsafe { at.as_ref::<'a>() }?;
            let here = std::mem::replace(&mut at, request.next());
            Some(Request { at: here, request })
        })
    }

    /// Writes `at`, the refused request, to `bad_wr`. Does nothing if either pointer is null.
    pub(super) fn refuse(self, at: *mut W) {
        if !at.is_null() && !self.bad.is_null() {
            // SAFETY: `bad` is not null, so it is writable (1).
            unsafe { self.bad.write(at) };
        }
    }
}

impl<W> Deref for Request<'_, W> {
    type Target = W;

    fn deref(&self) -> &W {
        self.request
    }
}

impl<'a, W: Linked> Request<'a, W> {
    /// The elements of the request. `Err` if there are more than `max`.
    pub(super) fn elements(&self, max: u32) -> Result<&'a [ibv_sge], c_int> {
        let (list, len) = Linked::elements(self.request);
        match u32::try_from(len) {
            Ok(0) => Ok(&[]),
            // SAFETY: the list is not null, so it has `len` elements (0).
            Ok(len) if len <= max && !list.is_null() => Ok(unsafe { slice::from_raw_parts(list, len as usize) }),
            _ => Err(libc::EINVAL),
        }
    }

    /// Reads the first element of the list, even of an empty one, as some providers do. False if the list is null.
    pub(super) fn read_first_element(&self) -> bool {
        let (list, _) = Linked::elements(self.request);
        // SAFETY: the list is not null, so it points to at least one element that can be read (0).
        (!list.is_null()).then(|| unsafe { list.read_volatile() }).is_some()
    }
}

impl Request<'_, ibv_send_wr> {
    /// Immediate data, or the key that the operation invalidates.
    fn number(&self) -> u32 {
        // SAFETY: both members of the union are numbers of 4 bytes. This function is called for operations with
        // immediate data or a key, and for binds. For each of these, the program has set one member (0).
        unsafe { self.__bindgen_anon_1.imm_data }
    }

    fn remote(&self) -> Remote {
        // SAFETY: the request is a read, a write or an atomic write, for which the program has set `wr.rdma` (0).
        let rdma = unsafe { self.wr.rdma };
        Remote { addr: rdma.remote_addr, rkey: rdma.rkey }
    }

    fn atomic(&self) -> (Remote, u64, u64) {
        // SAFETY: the request is an atomic, for which the program has set `wr.atomic` (0).
        let atomic = unsafe { self.wr.atomic };
        (Remote { addr: atomic.remote_addr, rkey: atomic.rkey }, atomic.compare_add, atomic.swap)
    }

    fn bind(&self) -> Result<Bind, c_int> {
        // A bind carries no immediate data. Some providers read `imm_data` nevertheless, so this device demands that
        // `imm_data` is 0.
        if self.number() != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the request is a bind, for which the program has set `bind_mw` (0).
        let bind = unsafe { self.__bindgen_anon_2.bind_mw };
        // SAFETY: the window and the region are each alive, or null (0).
        unsafe { bind_of_type_2(bind.mw, bind.rkey, bind.bind_info) }
    }

    /// The operation of the request, and the data that it carries besides its payload. Reads only those union members
    /// that the operation uses.
    pub(super) fn operation(&self) -> Result<(Operation, Extra), c_int> {
        Ok(match self.opcode {
            ibv_wr_opcode::IBV_WR_SEND => (Operation::Send, Extra::Nothing),
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => (Operation::Send, Extra::Immediate(self.number())),
            ibv_wr_opcode::IBV_WR_SEND_WITH_INV => (Operation::Send, Extra::Invalidated(self.number())),
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => (Operation::Write(self.remote()), Extra::Nothing),
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
                (Operation::Write(self.remote()), Extra::Immediate(self.number()))
            }
            ibv_wr_opcode::IBV_WR_RDMA_READ => (Operation::Read(self.remote()), Extra::Nothing),
            ibv_wr_opcode::IBV_WR_ATOMIC_WRITE => (Operation::AtomicWrite(self.remote()), Extra::Nothing),
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let (remote, add, _) = self.atomic();
                (Operation::Atomic(remote, AtomicOp::Add(add)), Extra::Nothing)
            }
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => {
                let (remote, compare, swap) = self.atomic();
                (Operation::Atomic(remote, AtomicOp::CompareAndSwap { compare, swap }), Extra::Nothing)
            }
            ibv_wr_opcode::IBV_WR_LOCAL_INV => (Operation::Invalidate(self.number()), Extra::Nothing),
            ibv_wr_opcode::IBV_WR_BIND_MW => (Operation::Bind(self.bind()?), Extra::Nothing),
            _ => return Err(libc::EINVAL),
        })
    }

    /// The destination of a datagram.
    pub(super) fn destination(&self) -> Result<Destination, c_int> {
        // SAFETY: the request is a datagram, for which the program has set `wr.ud` (0).
        let ud = unsafe { self.wr.ud };
        // SAFETY: the address handle is alive, or null (0).
        unsafe { destination(ud.ah, ud.remote_qpn, ud.remote_qkey) }
    }

    /// Appends the inline data of this request, which `elements` name.
    pub(super) fn copy_inline(&self, elements: &[ibv_sge], to: &mut Vec<u8>) -> Result<(), c_int> {
        for element in elements.iter().filter(|element| element.length > 0) {
            let addr = usize::try_from(element.addr).ok().filter(|&addr| addr != 0).ok_or(libc::EFAULT)?;
            let from = ptr::with_exposed_provenance::<u8>(addr);
            // SAFETY: the element names inline data, which can be read (0).
            to.extend_from_slice(unsafe { slice::from_raw_parts(from, element.length as usize) });
        }
        Ok(())
    }
}

/// The destination of a datagram, from an address handle and a queue pair number.
///
/// # Safety
///
/// The handle is alive, or null.
pub(super) unsafe fn destination(ah: *mut ibv_ah, qpn: u32, qkey: u32) -> Result<Destination, c_int> {
    // SAFETY: the address handle is alive, or null (caller).
    let address = unsafe { ah.as_ref() }.ok_or(libc::EINVAL)?.handle;
    Ok(Destination { address, qpn, qkey })
}

/// A bind of a window of type 2.
///
/// # Safety
///
/// The window and the region are each alive, or null.
pub(super) unsafe fn bind_of_type_2(mw: *mut ibv_mw, rkey: u32, info: ibv_mw_bind_info) -> Result<Bind, c_int> {
    // SAFETY: the window is alive, or null (caller).
    let window = unsafe { mw.as_ref() }.filter(|window| window.type_ == ibv_mw_type::IBV_MW_TYPE_2);
    // SAFETY: the region is alive, or null (caller).
    bind(window.ok_or(libc::EINVAL)?, unsafe { info.mr.as_ref() }, rkey, info)
}

/// A bind of a window over a region. Without a region, it unbinds the window.
fn bind(window: &ibv_mw, region: Option<&ibv_mr>, rkey: u32, info: ibv_mw_bind_info) -> Result<Bind, c_int> {
    if !window::rights_known(info.mw_access_flags) {
        return Err(libc::EINVAL);
    }
    let (region, lkey) = region.map_or((0, 0), |region| (region.handle, region.lkey));
    let (addr, len, access) = (info.addr, info.length, info.mw_access_flags);
    let one = window.type_ == ibv_mw_type::IBV_MW_TYPE_1;
    Ok(Bind { window: window.handle, rkey, region, lkey, addr, len, access, one })
}

/// The arguments of `ibv_bind_mw`, which binds a window of type 1.
pub(super) struct BindRequest<'a> {
    window: &'a mut ibv_mw,
    /// # Invariants
    ///
    /// 0. The region of the request is alive, or null.
    request: &'a ibv_mw_bind,
}

impl<'a> BindRequest<'a> {
    /// # Safety
    ///
    /// The caller does as `ibv_bind_mw(3)` requires: the window is alive, and nobody else uses it during the call; the
    /// region is alive, or null (0).
    pub(super) unsafe fn new(mw: *mut ibv_mw, request: *const ibv_mw_bind) -> Self {
        // SAFETY: the window is alive, and nobody else uses it (caller).
        let window = unsafe { &mut *mw };
        // SAFETY: `request` points to a readable request (caller).
        let request = unsafe { &*request };
        Self { window, request }
    }

    pub(super) fn id(&self) -> u64 {
        self.request.wr_id
    }

    pub(super) fn flags(&self) -> u32 {
        self.request.send_flags
    }

    /// The requested bind. Its key is the next key of the window.
    pub(super) fn bind(&self) -> Result<Bind, c_int> {
        if self.window.type_ != ibv_mw_type::IBV_MW_TYPE_1 {
            return Err(libc::EINVAL);
        }
        let info = self.request.bind_info;
        // SAFETY: the region is alive, or null (0).
        let region = unsafe { info.mr.as_ref() };
        bind(self.window, region, ibv_inc_rkey(self.window.rkey), info)
    }

    /// Writes the new key to the window, where the program reads it.
    pub(super) fn grant(&mut self, bind: &Bind) {
        self.window.rkey = bind.rkey;
    }
}
