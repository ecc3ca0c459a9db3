//! The verbs that make and end what a protection domain gives access by: regions, windows, address handles.
#![allow(unsafe_code, reason = "verbs on raw objects")]

use super::{
    fabric::State,
    fault::Verb,
    handles::{control, give, handle, take_back},
    regions::Registration,
};
use crate::{
    error::VerbError,
    sys::{ibv_access_flags, ibv_ah, ibv_ah_attr, ibv_mr, ibv_mw, ibv_mw_type, ibv_pd},
};
use std::ptr::NonNull;

/// `ibv_reg_mr` and `ibv_reg_mr_iova`.
///
/// # Safety
///
/// As for [`Provider::reg_mr`](crate::provider::Provider::reg_mr).
pub(super) unsafe fn register(
    verb: Verb,
    pd: NonNull<ibv_pd>,
    addr: *mut u8,
    len: usize,
    iova: Option<u64>,
    access: ibv_access_flags,
) -> Result<NonNull<ibv_mr>, VerbError> {
    // SAFETY: alive (caller).
    let ibv_pd { context, handle: domain, .. } = unsafe { pd.read() };
    // The device goes by the number alone.
    let memory = Registration { addr: addr.expose_provenance(), len, iova, access: access.0 };
    let register = |state: &mut State, _| {
        let index = state.reg_mr(domain as usize, memory)?;
        let region = state.regions.get(index).ok_or(libc::EINVAL)?;
        Ok((handle(index)?, region.lkey, region.rkey))
    };
    // SAFETY: its context is open.
    let (handle, lkey, rkey) = unsafe { control(context, verb, register) }?;
    Ok(give(ibv_mr { context, pd: pd.as_ptr(), addr: addr.cast(), length: len, handle, lkey, rkey }))
}

/// `ibv_dereg_mr`.
///
/// # Safety
///
/// Alive, and not used any more if this succeeds.
pub(super) unsafe fn deregister(mr: NonNull<ibv_mr>) -> Result<(), VerbError> {
    // SAFETY: alive (caller).
    let ibv_mr { context, handle, .. } = unsafe { mr.read() };
    // SAFETY: its context is open.
    unsafe { control(context, Verb::DeregMr, |state, _| state.dereg_mr(handle as usize)) }?;
    // SAFETY: the caller does not use it any more.
    unsafe { take_back(mr) };
    Ok(())
}

/// `ibv_alloc_mw`.
///
/// # Safety
///
/// The protection domain is alive.
pub(super) unsafe fn alloc_window(pd: NonNull<ibv_pd>, kind: ibv_mw_type) -> Result<NonNull<ibv_mw>, VerbError> {
    // SAFETY: alive (caller).
    let ibv_pd { context, handle: domain, .. } = unsafe { pd.read() };
    let alloc = |state: &mut State, _| {
        let (index, rkey) = state.alloc_mw(domain as usize, kind)?;
        Ok((handle(index)?, rkey))
    };
    // SAFETY: its context is open.
    let (handle, rkey) = unsafe { control(context, Verb::AllocMw, alloc) }?;
    Ok(give(ibv_mw { context, pd: pd.as_ptr(), rkey, handle, type_: kind }))
}

/// `ibv_dealloc_mw`.
///
/// # Safety
///
/// Alive, and not used any more if this succeeds.
pub(super) unsafe fn dealloc_window(mw: NonNull<ibv_mw>) -> Result<(), VerbError> {
    // SAFETY: alive (caller).
    let ibv_mw { context, handle, .. } = unsafe { mw.read() };
    // SAFETY: its context is open.
    unsafe { control(context, Verb::DeallocMw, |state, _| state.dealloc_mw(handle as usize)) }?;
    // SAFETY: the caller does not use it any more.
    unsafe { take_back(mw) };
    Ok(())
}

/// `ibv_create_ah`.
///
/// # Safety
///
/// The protection domain is alive.
pub(super) unsafe fn create_address(
    pd: NonNull<ibv_pd>,
    attributes: &ibv_ah_attr,
) -> Result<NonNull<ibv_ah>, VerbError> {
    // SAFETY: alive (caller).
    let ibv_pd { context, handle: domain, .. } = unsafe { pd.read() };
    let create = |state: &mut State, _| state.create_ah(domain as usize, attributes);
    // SAFETY: its context is open.
    let handle = unsafe { control(context, Verb::CreateAh, create) }?;
    Ok(give(ibv_ah { context, pd: pd.as_ptr(), handle }))
}

/// `ibv_destroy_ah`.
///
/// # Safety
///
/// Alive, and not used any more if this succeeds.
pub(super) unsafe fn destroy_address(ah: NonNull<ibv_ah>) -> Result<(), VerbError> {
    // SAFETY: alive (caller).
    let ibv_ah { context, handle, .. } = unsafe { ah.read() };
    // SAFETY: its context is open.
    unsafe { control(context, Verb::DestroyAh, |state, _| state.destroy_ah(handle)) }?;
    // SAFETY: the caller does not use it any more.
    unsafe { take_back(ah) };
    Ok(())
}
