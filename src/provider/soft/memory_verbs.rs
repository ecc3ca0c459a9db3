//! The verbs that create regions, windows and address handles in a protection domain.
#![forbid(unsafe_code)]

use super::{
    fault::Verb,
    handles::{Object, give, handle},
    memory::Registration,
};
use crate::{
    error::VerbError,
    sys::{ibv_ah, ibv_ah_attr, ibv_mr, ibv_mw, ibv_mw_type, ibv_pd},
};
use std::ptr::NonNull;

/// `ibv_reg_mr` and `ibv_reg_mr_iova`.
pub(super) fn register(
    verb: Verb,
    domain: &Object<'_, ibv_pd>,
    memory: Registration,
) -> Result<NonNull<ibv_mr>, VerbError> {
    let (addr, length) = (memory.pointer().cast(), memory.len());
    let (handle, lkey, rkey) = domain.control(verb, |state, pd| {
        let index = state.reg_mr(pd, memory)?;
        let region = state.regions.get(index).ok_or(libc::EINVAL)?;
        Ok((handle(index)?, region.lkey, region.rkey))
    })?;
    Ok(give(ibv_mr { context: domain.context.raw, pd: domain.raw, addr, length, handle, lkey, rkey }))
}

/// `ibv_alloc_mw`.
pub(super) fn alloc_window(domain: &Object<'_, ibv_pd>, kind: ibv_mw_type) -> Result<NonNull<ibv_mw>, VerbError> {
    let (handle, rkey) = domain.control(Verb::AllocMw, |state, pd| {
        let (index, rkey) = state.alloc_mw(pd, kind)?;
        Ok((handle(index)?, rkey))
    })?;
    Ok(give(ibv_mw { context: domain.context.raw, pd: domain.raw, rkey, handle, type_: kind }))
}

/// `ibv_create_ah`.
pub(super) fn create_address(
    domain: &Object<'_, ibv_pd>,
    attributes: &ibv_ah_attr,
) -> Result<NonNull<ibv_ah>, VerbError> {
    let handle = domain.control(Verb::CreateAh, |state, pd| state.create_ah(pd, attributes))?;
    Ok(give(ibv_ah { context: domain.context.raw, pd: domain.raw, handle }))
}
