//! The error of a verb that failed. Errors that give a queue pair or a request back are declared next to those types.

use crate::trace;
use std::io;

/// A verb that failed: which one, and the `errno` that it gave.
///
/// The text names both; [`errno`](Self::errno) is the number for programs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[error("{verb} failed: {}{}", describe(*.errno), hint(.verb, *.errno))]
pub struct VerbError {
    verb: &'static str,
    errno: i32,
}

impl VerbError {
    /// A failure of `verb` with a positive `errno`.
    pub(crate) fn new(verb: &'static str, errno: i32) -> Self {
        Self { verb, errno }
    }

    /// A failure of a `verb` of the data path. `result` is an errno or a negative errno. It tells nothing if it is -1,
    /// which some providers return for any failure, or 0, which siw returns for a list that it has not queued as a
    /// whole. Then the errno of the error is `EIO`.
    #[cold]
    #[inline(never)]
    pub(crate) fn of_data_path(verb: &'static str, result: i32) -> Self {
        Self::new(verb, if matches!(result, 0 | -1) { libc::EIO } else { result.saturating_abs() })
    }

    /// A failure of `verb` because the device does not have it.
    pub(crate) fn unsupported(verb: &'static str) -> Self {
        Self::new(verb, libc::EOPNOTSUPP)
    }

    /// Whether the device does not have the verb.
    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(self.errno, libc::EOPNOTSUPP | libc::ENOSYS)
    }

    /// The C name of the verb, such as `ibv_modify_qp`.
    pub fn verb(&self) -> &'static str {
        self.verb
    }

    /// The positive `errno` that it gave, such as `EINVAL` (22).
    pub fn errno(&self) -> i32 {
        self.errno
    }
}

impl From<VerbError> for io::Error {
    fn from(error: VerbError) -> Self {
        Self::new(io::Error::from_raw_os_error(error.errno).kind(), error)
    }
}

/// The usual cause, where the number alone does not say it.
fn hint(verb: &str, errno: i32) -> &'static str {
    match (verb, errno) {
        ("ibv_create_qp" | "ibv_create_qp_ex", libc::EINVAL | libc::ENOMEM) => {
            " (more requests, elements or inline bytes than the device supports? See `DeviceAttributes`)"
        }
        ("ibv_create_cq" | "ibv_create_cq_ex", libc::EINVAL) => {
            " (0 entries, more than the device supports, or no such completion vector?)"
        }
        (
            "ibv_create_cq" | "ibv_create_cq_ex" | "ibv_create_qp" | "ibv_create_qp_ex" | "ibv_create_srq",
            libc::EPERM,
        ) => " (is a forbidden environment variable set? See docs/failures.md#forbidden-environment)",
        ("ibv_create_qp", libc::EOPNOTSUPP) => " (does the device support this transport?)",
        ("ibv_dereg_mr", libc::EOPNOTSUPP) => {
            " (on this device, a peer may go on with a read after the end of the registration, so memory that peers \
             may read never comes back: see siw in docs/providers.md)"
        }
        ("membarrier", _) => {
            " (the kernel must run without `nohz_full`, and must permit this system call: see siw in docs/providers.md)"
        }
        ("ibv_alloc_mw", libc::EOPNOTSUPP) => {
            " (the device has no windows: register that part of the memory by itself)"
        }
        ("ibv_query_port", libc::EINVAL) => " (no such port? `Context::ports` lists them)",
        ("ibv_attach_mcast", libc::EINVAL) => " (not a multicast address?)",
        ("ibv_destroy_srq", libc::EBUSY) => " (queue pairs still receive from it: destroy them first)",
        (
            "ibv_post_send" | "ibv_post_recv" | "ibv_post_srq_recv" | "ibv_wr_complete" | "ibv_bind_mw"
            | "ibv_req_notify_cq",
            libc::EIO,
        ) => " (the device is gone, or the provider did not say why)",
        (_, libc::EIO) => " (is the device gone?)",
        _ => "",
    }
}

fn describe(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// Reports on standard error that an object leaks because the device refused to destroy it.
///
/// Leaking is the only sound answer: the device may still use the object. But nobody would find a silent leak.
pub(crate) fn note_leak(what: &'static str, error: VerbError) {
    use io::Write;
    trace::leaked(what, &error);
    // `eprintln!` panics if it cannot write. Drops call this function, and a drop must not panic.
    let _ = writeln!(io::stderr(), "interlock: {what} stays allocated for the life of the process: {error}");
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_code_of_the_data_path_is_an_errno() {
        let errno = |result| VerbError::of_data_path("ibv_post_send", result).errno();
        assert_eq!([12, -12, 0, -1, i32::MIN].map(errno), [12, 12, libc::EIO, libc::EIO, i32::MAX]);
        let text = VerbError::of_data_path("ibv_post_send", -1).to_string();
        assert!(text.ends_with(" (the device is gone, or the provider did not say why)"), "{text}");
    }
}
