//! Memory that other processes map too.
//!
//! Another process may write it at any moment, so nothing is ever borrowed: see `exposed`, whose words serve here too.
//!
//! ASSUMPTION: another process's access to a shared map interferes with relaxed atomic loads and stores of aligned words no
//! more than another thread's relaxed atomic ones would.
#![allow(unsafe_code, reason = "maps a file")]

use super::backing::RawMemory;
use super::opaque::{OpaqueMemory, sealed::Sealed};
use crate::seal::Key;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::{fmt, fs::File, io, ptr, ptr::NonNull};

/// Memory that other processes may have mapped too: a shared map of a memory file, or of any other regular file.
///
/// Registered by [`register_opaque`](crate::ProtectionDomain::register_opaque) for peers; it comes back from
/// [`deregister`](super::OpaqueRegion::deregister). It gives no slice, for other processes may write it while one looks; the
/// region copies and loads words of it.
///
/// [`new`](Self::new) makes a memory file that cannot shrink. A file that does shrink under a map makes the system end the
/// process (`SIGBUS`) at the next access beyond its new end: take [`of_file`](Self::of_file) only of those who would not do
/// that, or see [`cannot_shrink`](Self::cannot_shrink).
///
/// The pages of a file that is not in memory may not be registered for writing: since Linux 6.5 the kernel refuses that
/// (`EFAULT`), but for memory files, tmpfs and hugetlbfs.
///
/// # References
///
/// `memfd_create(2)`, `mmap(2)`, `fcntl(2)` (file seals).
#[doc(alias = "memfd_create")]
#[doc(alias = "MAP_SHARED")]
pub struct SharedMap {
    /// # Invariants
    ///
    /// 0. The start of a shared map of `len` bytes of `file`, readable and writable, in whole pages; `len` is not 0.
    addr: NonNull<u8>,
    len: usize,
    file: OwnedFd,
}

// SAFETY: an address and a file; nobody borrows the bytes.
unsafe impl Send for SharedMap {}
// SAFETY: as above.
unsafe impl Sync for SharedMap {}

/// Why a file was not mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoSharedMap {
    /// There is nothing to map: no bytes.
    #[error("a shared map has at least one byte")]
    Empty,
    /// What is mapped must be memory: a device's would not be.
    #[error("only regular files and memory files are mapped")]
    NotAFile,
    /// The file is shorter. Touching what is beyond its end would end the process.
    #[error("the file has {file_bytes} bytes; {len_bytes} at {offset} are not inside")]
    TooShort {
        /// Where the map was to start.
        offset: u64,
        /// How long it was to be.
        len_bytes: usize,
        /// How long the file is.
        file_bytes: u64,
    },
    /// The system answered with an error.
    #[error("{call} failed")]
    System {
        /// What was called.
        call: &'static str,
        /// What it answered. `mmap` says `EINVAL` where the offset is not a multiple of the page length, and `EACCES` or
        /// `EPERM` where the file is not open for reading and writing, or is sealed.
        source: io::Error,
    },
}

fn failed(call: &'static str) -> NoSharedMap {
    NoSharedMap::System { call, source: io::Error::last_os_error() }
}

impl SharedMap {
    /// `len_bytes` zeroed bytes of a new memory file, which cannot shrink. `name` shows in `/proc/PID/maps`.
    ///
    /// `memfd_create(2)`. The file is closed where the process executes another program; to hand it on, send
    /// [`as_fd`](AsFd::as_fd) by a Unix socket, or clear `FD_CLOEXEC` of a clone.
    ///
    /// # Errors
    ///
    /// [`NoSharedMap`]: no bytes, or what the system answered.
    pub fn new(name: &str, len_bytes: usize) -> Result<Self, NoSharedMap> {
        if len_bytes == 0 {
            return Err(NoSharedMap::Empty);
        }
        // A C string ends with the first zero.
        let name = CString::new(name.split('\0').next().unwrap_or_default()).unwrap_or_default();
        // SAFETY: a C string; new files are closed by their owner below.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(failed("memfd_create"));
        }
        // SAFETY: a new descriptor, which nobody else owns.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(len_bytes as u64).map_err(|source| NoSharedMap::System { call: "ftruncate", source })?;
        // SAFETY: takes numbers; our own descriptor.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) } < 0 {
            return Err(failed("fcntl(F_ADD_SEALS)"));
        }
        Self::of_file(file.into(), 0, len_bytes)
    }

    /// Maps `len_bytes` from `offset` of a file that is open for reading and writing, such as a memory file that another
    /// process made. `offset` is a multiple of the page length.
    ///
    /// Peers that may write the region write the file.
    ///
    /// # Errors
    ///
    /// [`NoSharedMap`]; the file is closed.
    pub fn of_file(file: OwnedFd, offset: u64, len_bytes: usize) -> Result<Self, NoSharedMap> {
        if len_bytes == 0 {
            return Err(NoSharedMap::Empty);
        }
        let file = File::from(file);
        let about = file.metadata().map_err(|source| NoSharedMap::System { call: "fstat", source })?;
        if !about.is_file() {
            return Err(NoSharedMap::NotAFile);
        }
        let too_short = || NoSharedMap::TooShort { offset, len_bytes, file_bytes: about.len() };
        offset.checked_add(len_bytes as u64).filter(|&end| end <= about.len()).ok_or_else(too_short)?;
        let start = libc::off_t::try_from(offset).map_err(|_| too_short())?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new map, which replaces none.
        let addr = unsafe { libc::mmap(ptr::null_mut(), len_bytes, access, libc::MAP_SHARED, file.as_raw_fd(), start) };
        let addr =
            NonNull::new(addr.cast::<u8>()).filter(|_| addr != libc::MAP_FAILED).ok_or_else(|| failed("mmap"))?;
        Ok(Self { addr, len: len_bytes, file: file.into() })
    }

    /// Its length in bytes, at least 1. To be registered it must be a multiple of 8.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody can shrink the file any more: a memory file with the seal `F_SEAL_SHRINK`, as [`new`](Self::new) makes.
    #[doc(alias = "F_SEAL_SHRINK")]
    pub fn cannot_shrink(&self) -> bool {
        // SAFETY: takes numbers; our own descriptor.
        let seals = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_GET_SEALS) };
        seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
    }
}

impl AsFd for SharedMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: our own map (0), which nobody uses any more.
        unsafe { libc::munmap(self.addr.as_ptr().cast(), self.len) };
    }
}

impl fmt::Debug for SharedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMap").field("len", &self.len).field("file", &self.file).finish_non_exhaustive()
    }
}

impl OpaqueMemory for SharedMap {}
impl Sealed for SharedMap {
    fn into_raw(self, _: Key) -> RawMemory {
        RawMemory::keep(ptr::slice_from_raw_parts_mut(self.addr.as_ptr(), self.len), self)
    }

    unsafe fn from_raw(raw: RawMemory) -> Self {
        // SAFETY: kept by `into_raw`; called once (caller).
        unsafe { raw.parts() }
    }

    unsafe fn exported(_: &RawMemory) -> Option<(RawFd, u64)> {
        None
    }
}
