//! The limit of locked memory: the most frequent reason why registration fails.

use crate::os::{self, page_bytes};
use crate::verb_error::VerbError;
use std::fs;

/// Memory was not registered, probably because of the limit of locked memory.
///
/// Registration pins pages in memory. For a process without the capability `CAP_IPC_LOCK`, the kernel pins at most
/// `RLIMIT_MEMLOCK` bytes in all (`getrlimit(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{needed_bytes} bytes were not registered; the limit of locked memory (RLIMIT_MEMLOCK) is {limit_bytes} bytes{}: {} \
     (see docs/failures.md#locked-memory-limit)",
    already(*.pinned_bytes), remedy(self)
)]
#[doc(alias = "RLIMIT_MEMLOCK")]
#[doc(alias = "ENOMEM")]
pub struct LockedMemoryLimit {
    /// How many bytes were to be registered.
    pub needed_bytes: usize,
    /// The soft limit: how much the process may lock.
    pub limit_bytes: u64,
    /// How many bytes the process had pinned when the registration failed, in whole pages; `None` if the system does
    /// not say.
    ///
    /// `VmPin` of `/proc/self/status`, `proc_pid_status(5)`. Memory that other programs of the user have locked is not
    /// included.
    pub pinned_bytes: Option<u64>,
    /// The device's answer: `ENOMEM`.
    pub source: VerbError,
}

fn already(pinned_bytes: Option<u64>) -> String {
    pinned_bytes.map_or_else(String::new, |bytes| format!(", of which {bytes} are in use"))
}

fn remedy(error: &LockedMemoryLimit) -> &'static str {
    if error.would_fit() == Some(true) {
        return "the limit leaves room, so the device or the machine is out of memory";
    }
    "raise the limit (`ulimit -l`, `LimitMEMLOCK=` of a systemd unit, `memlock` in /etc/security/limits.conf, `--ulimit memlock` \
     of a container), or give the process CAP_IPC_LOCK"
}

impl LockedMemoryLimit {
    pub(super) fn of(source: VerbError, needed_bytes: usize) -> Option<Self> {
        let limit_bytes = locked_memory_limit()?;
        Some(Self { needed_bytes, limit_bytes, pinned_bytes: pinned_memory(), source })
    }

    /// Whether the limit leaves room for the memory, so that something else is short; `None` if the system does not say
    /// how much is taken.
    pub fn would_fit(&self) -> Option<bool> {
        let (page_bytes, needed) = (page_bytes() as u64, self.needed_bytes as u64);
        // Count one page more: the memory can begin in the middle of a page and end in the middle of another.
        let pinned = needed.checked_next_multiple_of(page_bytes)?.checked_add(page_bytes)?;
        Some(self.pinned_bytes?.checked_add(pinned)? <= self.limit_bytes)
    }
}

/// How many bytes of memory the process may lock, and so register; `None` if there is no limit.
///
/// `RLIMIT_MEMLOCK` of `getrlimit(2)`. The limit does not bind a process that has `CAP_IPC_LOCK`.
#[doc(alias = "getrlimit")]
pub fn locked_memory_limit() -> Option<u64> {
    os::locked_memory_limit()
}

/// How many bytes the process has pinned, by registration or otherwise; `None` if the system does not say.
///
/// `VmPin` of `/proc/self/status`. The soft device pins nothing.
pub fn pinned_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    pinned_of(&status)
}

fn pinned_of(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(needed_bytes: usize, pinned_bytes: Option<u64>) -> LockedMemoryLimit {
        let source = VerbError::new("ibv_reg_mr", libc::ENOMEM);
        LockedMemoryLimit { needed_bytes, limit_bytes: 8 << 20, pinned_bytes, source }
    }

    #[test]
    fn what_the_system_says_is_read() {
        assert_eq!(pinned_of("Name:\tx\nVmLck:\t  8 kB\nVmPin:\t    1024 kB\n"), Some(1 << 20));
        for strange in ["", "VmPin:", "VmPin: kB", "VmPin: 1 MB", "VmPin: 18446744073709551615 kB", "VmPin: -1 kB"] {
            assert_eq!(pinned_of(strange), None, "{strange}");
        }
    }

    #[test]
    fn the_message_says_what_is_short_and_what_to_do() {
        let text = refused(1 << 20, Some(8 << 20)).to_string();
        for part in ["1048576 bytes", "RLIMIT_MEMLOCK", "of which 8388608 are in use", "ulimit -l", "CAP_IPC_LOCK"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(refused(1 << 20, None).to_string().contains("is 8388608 bytes: raise the limit"));
        assert!(refused(1 << 20, Some(0)).to_string().contains("out of memory"));
    }

    #[test]
    fn whole_pages_count() {
        assert_eq!(refused(1, Some((8 << 20) - page_bytes() as u64)).would_fit(), Some(false));
        assert_eq!(refused(usize::MAX, Some(0)).would_fit(), None);
        assert_eq!(refused(1, Some(0)).would_fit(), Some(true));
    }
}
