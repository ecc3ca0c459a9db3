//! The few system calls that `std` does not have, as safe functions and one owned type.
//!
//! They are calls of libc, not of a crate of wrappers: a call is one line here, and one through libc is seen by
//! AddressSanitizer and by whoever interposes libc, which a crate that enters the kernel by itself goes around.
#![allow(unsafe_code, reason = "calls libc")]

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::{io, mem::ManuallyDrop, ptr, ptr::NonNull, slice};

/// The result of a call that returns -1 and sets `errno`.
fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// `epoll_create1(2)`, closed on `exec`.
pub(crate) fn epoll() -> io::Result<OwnedFd> {
    // SAFETY: takes a number.
    let fd = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: made just now, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `epoll_ctl(2)`: makes `epoll` readable while `fd` is, level-triggered.
pub(crate) fn epoll_add(epoll: BorrowedFd<'_>, fd: RawFd) -> io::Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: a number that is no descriptor is answered with an error; the struct may be read.
    checked(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) }).map(drop)
}

/// `poll(2)`: sleeps until one of `fds` is readable, for `millis` milliseconds at most. How many are.
#[cfg(not(miri))]
pub(crate) fn poll_readable<const N: usize>(fds: [RawFd; N], millis: i32) -> io::Result<usize> {
    let mut polls = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: `N` entries, which may be written.
    let ready = checked(unsafe { libc::poll(polls.as_mut_ptr(), N as libc::nfds_t, millis) })?;
    Ok(ready as usize)
}

/// `if_indextoname(3)`: the name of a network interface, if it still exists.
pub(crate) fn interface_name(index: u32) -> Option<String> {
    let mut name = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that `if_indextoname(3)` asks for.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    let end = name.iter().position(|&byte| byte == 0)?;
    (!found.is_null()).then(|| String::from_utf8_lossy(&name[..end]).into_owned())
}

/// The length of a page of this machine.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: takes a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(1)
}

/// `getrlimit(2)`: the soft limit of locked memory in bytes; `None` for no limit.
pub(crate) fn locked_memory_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // Miri does not know the call.
    // SAFETY: the struct may be written.
    let known = !cfg!(miri) && unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// `memfd_create(2)`: a new memory file, which may be sealed and is closed on `exec`. `name` is cut at its first zero
/// byte.
pub(crate) fn memory_file(name: &str) -> io::Result<OwnedFd> {
    let name = CString::new(name.split('\0').next().unwrap_or_default()).unwrap_or_default();
    // SAFETY: a C string, which lives until the call returns.
    let fd = checked(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) })?;
    // SAFETY: made just now, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `fcntl(2)`, `F_ADD_SEALS`.
pub(crate) fn add_seals(file: BorrowedFd<'_>, seals: i32) -> io::Result<()> {
    // SAFETY: takes numbers.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }).map(drop)
}

/// `fcntl(2)`, `F_GET_SEALS`. An error where the file is of a kind that has none.
pub(crate) fn seals(file: BorrowedFd<'_>) -> io::Result<i32> {
    // SAFETY: takes numbers.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) })
}

/// Pages that this process has mapped, readable and writable. Dropping it unmaps them.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// # Invariants
    ///
    /// 0. The start of a map of `len` bytes, which nobody else unmaps; dangling if `len` is 0.
    addr: NonNull<u8>,
    len: usize,
}

// SAFETY: the owner of a range of addresses, which are those of the whole process.
unsafe impl Send for Mapping {}
// SAFETY: shared access gives an address only.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize, flags: i32, fd: RawFd, offset: libc::off_t) -> io::Result<Self> {
        if len == 0 {
            return Ok(Self { addr: NonNull::dangling(), len });
        }
        // SAFETY: a new map, which replaces none.
        let addr = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, offset) };
        let mapped = NonNull::new(addr.cast()).filter(|_| addr != libc::MAP_FAILED);
        Ok(Self { addr: mapped.ok_or_else(io::Error::last_os_error)?, len })
    }

    /// `mmap(2)`: `len` bytes of `file` from `offset`, shared with whoever else maps them. `offset` is a multiple of
    /// the page length.
    pub(crate) fn shared(file: &impl AsFd, offset: libc::off_t, len: usize) -> io::Result<Self> {
        Self::new(len, libc::MAP_SHARED, file.as_fd().as_raw_fd(), offset)
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.addr.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len != 0 {
            // SAFETY: our own map (0). Nobody uses it any more: whoever uses its bytes holds this.
            unsafe { libc::munmap(self.addr.as_ptr().cast(), self.len) };
        }
    }
}

/// The length of a transparent huge page.
const HUGE_PAGE_BYTES: usize = 1 << 21;

/// Pages that nobody else has mapped: zeroed at first, and the owner's alone.
#[derive(Debug)]
pub(crate) struct PrivateMapping {
    /// # Invariants
    ///
    /// 0. A private anonymous map.
    map: Mapping,
}

impl PrivateMapping {
    /// `mmap(2)`: `len` zeroed bytes, with `flags` besides. None are mapped for 0.
    pub(crate) fn new(len: usize, flags: i32) -> io::Result<Self> {
        Ok(Self { map: Mapping::new(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags, -1, 0)? })
    }

    /// `len` zeroed bytes or somewhat more: whole huge pages of 2 MiB, aligned to them.
    pub(crate) fn aligned_to_huge_pages(len: usize) -> io::Result<Self> {
        let too_many = || io::Error::from_raw_os_error(libc::ENOMEM);
        let len = len.checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or_else(too_many)?;
        let with_slack = len.checked_add(HUGE_PAGE_BYTES).ok_or_else(too_many)?;
        let all = Self::new(with_slack, 0)?;
        let before = all.as_ptr().align_offset(HUGE_PAGE_BYTES).min(HUGE_PAGE_BYTES);
        let (_, rest) = all.split_at_page(before);
        let (aligned, _) = rest.split_at_page(len);
        Ok(aligned)
    }

    /// Splits it at `len` bytes, which is a multiple of the page length. More than there is counts as all.
    fn split_at_page(self, len: usize) -> (Self, Self) {
        let map = ManuallyDrop::new(self.map);
        let len = len.min(map.len);
        // SAFETY: inside the map or at its end (0), so the sum does not wrap around.
        let rest = unsafe { map.addr.add(len) };
        let rest = Mapping { addr: rest, len: map.len - len };
        (Self { map: Mapping { addr: map.addr, len } }, Self { map: rest })
    }

    /// `madvise(2)`, `MADV_POPULATE_WRITE`: takes the pages now, so that a shortage is an error here and not a signal
    /// later. Since Linux 5.14; `EINVAL` before.
    pub(crate) fn populate(&self) -> io::Result<()> {
        self.advise(libc::MADV_POPULATE_WRITE)
    }

    /// `madvise(2)`, `MADV_HUGEPAGE`: asks for transparent huge pages.
    pub(crate) fn prefer_huge_pages(&self) -> io::Result<()> {
        self.advise(libc::MADV_HUGEPAGE)
    }

    fn advise(&self, advice: i32) -> io::Result<()> {
        if self.map.len == 0 {
            return Ok(());
        }
        // SAFETY: our own map (0); neither of the two callers' advice changes what is there.
        checked(unsafe { libc::madvise(self.as_ptr().cast(), self.map.len, advice) }).map(drop)
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.map.as_ptr()
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: our own private map (0), zeroed by the kernel and so initialised.
        unsafe { slice::from_raw_parts(self.as_ptr(), self.map.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: our own private map (0), zeroed by the kernel and so initialised; borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.as_ptr(), self.map.len) }
    }
}
