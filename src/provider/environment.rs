//! Environment variables with which the library could not rely on a provider.
#![forbid(unsafe_code)]

use crate::verb_error::VerbError;
use std::env;
use std::sync::OnceLock;

/// Environment variables that make libibverbs or a provider report a failed destroy as a success, skip its locks, or
/// misplace data.
const FORBIDDEN: [&str; 5] = [
    "RDMAV_ALLOW_DISASSOC_DESTROY",
    "MLX4_DEVICE_FATAL_CLEANUP",
    "MLX5_SINGLE_THREADED",
    "MLX4_SINGLE_THREADED",
    "MLX5_CQE_SIZE",
];

/// The forbidden variable that is set now, or was set at an earlier call.
///
/// The earlier call counts because a variable is read at one time and has its effect later: libibverbs reads its
/// environment at its first use, and a provider reads more when a device is opened, which librdmacm does in many of its
/// calls. mlx5 reads the size of completions for each completion queue. A program of an edition before 2024 can set
/// variables without `unsafe`. So this is called before each call that may read them.
pub(crate) fn forbidden_variable() -> Option<&'static str> {
    static SEEN: OnceLock<&str> = OnceLock::new();
    if let Some(variable) = FORBIDDEN.into_iter().find(|name| env::var_os(name).is_some()) {
        let _ = SEEN.set(variable);
    }
    SEEN.get().copied()
}

/// Refuses to create an object with `verb` if there is a [`forbidden_variable`].
pub(crate) fn check(verb: &'static str) -> Result<(), VerbError> {
    forbidden_variable().map_or(Ok(()), |_| Err(VerbError::new(verb, libc::EPERM)))
}
