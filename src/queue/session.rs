//! Checks and errors for the creation of queue pairs that post through `ibv_wr_*`.

use super::attributes::Limits;
use super::error::CreateError;
use crate::device::ContextInner;
use crate::inflight::Posting;
use crate::sys;
use crate::verb_error::VerbError;

/// Checks that the provider follows `ibv_wr_post(3)` for requests with `limits.elements` elements, and that the device
/// has atomic writes if the limits ask for them.
pub(super) fn check_device(context: &ContextInner, limits: &Limits) -> Result<(), CreateError> {
    if !context.promises().sessions.bears(limits.elements) {
        return Err(unavailable());
    }
    if limits.posting == Posting::AtomicWrites {
        let device = context.query_device_ex()?;
        if device.device_cap_flags_ex & sys::HAS_ATOMIC_WRITE == 0 {
            // This check is not left to the provider: the provider of soft-RoCE (rxe) accepts atomic writes even if the
            // kernel does not support them, and such writes never complete.
            return Err(CreateError::NoAtomicWrites(VerbError::unsupported("ibv_create_qp_ex")));
        }
    }
    Ok(())
}

/// The error of a device without `ibv_wr_*`.
pub(super) fn unavailable() -> CreateError {
    CreateError::NoWorkRequestApi(VerbError::unsupported("ibv_create_qp_ex"))
}

/// The error for a pair that was not created.
pub(super) fn explain(error: VerbError, posting: Posting) -> CreateError {
    match posting {
        _ if posting == Posting::List || !error.is_unsupported() => error.into(),
        Posting::AtomicWrites => CreateError::NoAtomicWrites(error),
        _ => CreateError::NoWorkRequestApi(error),
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
