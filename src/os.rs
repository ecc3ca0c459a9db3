//! The few system calls that `std` does not have, and maps of memory as owned types.
//!
//! The calls go through libc (feature `use-libc` of `rustix`): AddressSanitizer and whoever interposes libc see such a
//! call. They would not see a call that enters the kernel directly.
#![allow(unsafe_code, reason = "maps memory")]

use crate::sys::ObjectPtr;
use rustix::event::{EventfdFlags, epoll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use rustix::process::Resource;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{io, mem::ManuallyDrop, ptr, ptr::NonNull, slice};

/// `eventfd(2)`, which does not block and is closed on `exec`.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// `epoll_create1(2)`, closed on `exec`.
pub(crate) fn epoll() -> io::Result<OwnedFd> {
    Ok(epoll::create(epoll::CreateFlags::CLOEXEC)?)
}

/// `epoll_ctl(2)`: makes `epoll` readable while `fd` is, level-triggered.
pub(crate) fn epoll_add(epoll: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(epoll::add(epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
}

/// `ppoll(2)`: sleeps until one of `fds` is readable, for `left` at most. Returns how many are readable.
#[cfg(not(miri))]
pub(crate) fn poll_readable<const N: usize>(fds: [BorrowedFd<'_>; N], left: std::time::Duration) -> io::Result<usize> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    // If `left` does not fit a `Timespec`, wait without a time limit.
    let left = Timespec::try_from(left).ok();
    Ok(poll(&mut fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)), left.as_ref())?)
}

/// Lets tokio watch whether the descriptor is readable.
#[cfg(feature = "tokio")]
pub(crate) fn watch(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` always gives the same descriptor, and keeps that descriptor open until the `OwnedFd` is
    // dropped. The `AsyncFd` owns this `OwnedFd`. The `AsyncFd` stays private to this crate, and no code of this crate
    // replaces the `OwnedFd` in it.
    let watched = unsafe { tokio::io::unix::AsyncFd::register_with_interest(fd, tokio::io::Interest::READABLE) };
    watched.map_err(|error| error.into_parts().1)
}

/// `netdevice(7)`, `SIOCGIFNAME`: the name of a network interface, if it still exists.
pub(crate) fn interface_name(index: u32) -> Option<String> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
    let any = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    netdevice::index_to_name(any, index).ok()
}

/// `membarrier(2)`, `MEMBARRIER_CMD_GLOBAL`: waits until each read-side critical section of RCU that the kernel is in
/// has ended. (It is `synchronize_rcu` in kernel/sched/membarrier.c. Where only one processor is online, the kernel is
/// in no such section while this process runs, unless it is a kernel with PREEMPT_RT.)
#[cfg(feature = "rdma-core")]
pub(crate) fn wait_for_critical_sections() -> io::Result<()> {
    use rustix::thread::{MembarrierCommand, membarrier};
    Ok(membarrier(MembarrierCommand::Global)?)
}

/// The length of a page of this machine.
pub(crate) fn page_bytes() -> usize {
    rustix::param::page_size().max(1)
}

/// `getrlimit(2)`: the soft limit of locked memory in bytes; `None` for no limit.
pub(crate) fn locked_memory_limit() -> Option<u64> {
    // Miri does not support `getrlimit`, so report no limit there.
    if cfg!(miri) { None } else { rustix::process::getrlimit(Resource::Memlock).current }
}

/// `memfd_create(2)`: a new memory file, which may be sealed and is closed on `exec`. `name` is cut at its first zero
/// byte.
pub(crate) fn memory_file(name: &str) -> io::Result<OwnedFd> {
    let name = name.split('\0').next().unwrap_or_default();
    Ok(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?)
}

/// `fstatfs(2)`: the length of the pages of a file on hugetlbfs; `None` if it is elsewhere.
fn huge_page_bytes(file: &impl AsFd) -> Option<usize> {
    let about = rustix::fs::fstatfs(file).ok()?;
    if about.f_type == libc::HUGETLBFS_MAGIC { usize::try_from(about.f_bsize).ok() } else { None }
}

/// `fcntl(2)`, `F_ADD_SEALS`.
pub(crate) fn add_seals(file: BorrowedFd<'_>, seals: i32) -> io::Result<()> {
    Ok(rustix::fs::fcntl_add_seals(file, SealFlags::from_bits_retain(seals.cast_unsigned()))?)
}

/// `fcntl(2)`, `F_GET_SEALS`. Fails if the file is of a kind that has no seals.
pub(crate) fn seals(file: BorrowedFd<'_>) -> io::Result<i32> {
    Ok(rustix::fs::fcntl_get_seals(file)?.bits().cast_signed())
}

/// Pages that this process has mapped, readable and writable. Dropping this unmaps them.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// # Invariants
    ///
    /// 0. `addr` is the start of a map of `len` bytes, which nobody else unmaps. It is dangling if `len` is 0.
    addr: ObjectPtr<u8>,
    len: usize,
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Mapping {
    /// The map that `mmap(2)` has made, of `len` bytes.
    fn of_new(addr: *mut std::ffi::c_void, len: usize) -> io::Result<Self> {
        let addr = NonNull::new(addr.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Self { addr: ObjectPtr(addr), len })
    }

    /// A map of no bytes, for which nothing is mapped.
    fn of_nothing() -> Self {
        Self { addr: ObjectPtr(NonNull::dangling()), len: 0 }
    }

    /// `mmap(2)`: `len` bytes of `file` from `offset`, shared with whoever else maps them. `offset` is a multiple of
    /// the page length. On hugetlbfs, both are multiples of the length of its pages.
    pub(crate) fn shared(file: &impl AsFd, offset: libc::off_t, len: usize) -> io::Result<Self> {
        if len == 0 {
            return Ok(Self::of_nothing());
        }
        let refused = || io::Error::from_raw_os_error(libc::EINVAL);
        let offset = u64::try_from(offset).map_err(|_| refused())?;
        // On hugetlbfs, `mmap` rounds the length up, and `munmap` then refuses the length that was asked for.
        if huge_page_bytes(file).is_some_and(|page| !len.is_multiple_of(page)) {
            return Err(refused());
        }
        // SAFETY: the address is null, so the kernel chooses it. The call makes a new map, which replaces none.
        Self::of_new(unsafe { mm::mmap(ptr::null_mut(), len, READ_WRITE, MapFlags::SHARED, file, offset) }?, len)
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.addr.0.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len != 0 {
            // SAFETY: the map is our own (0). Whoever uses its bytes holds or borrows this `Mapping`, so nobody uses
            // them after this drop.
            let ended = unsafe { mm::munmap(self.as_ptr().cast(), self.len) };
            debug_assert!(ended.is_ok(), "{ended:?}");
        }
    }
}

/// The length of a transparent huge page.
const HUGE_PAGE_BYTES: usize = 1 << 21;

/// Pages that nobody else has mapped. They are zeroed at first, and belong only to their owner.
#[derive(Debug)]
pub(crate) struct PrivateMapping {
    /// # Invariants
    ///
    /// 0. The map is private and anonymous.
    map: Mapping,
}

impl PrivateMapping {
    /// `mmap(2)`: maps `len` zeroed private bytes; `flags` are passed as well. Maps nothing if `len` is 0.
    pub(crate) fn new(len: usize, flags: i32) -> io::Result<Self> {
        if len == 0 {
            return Ok(Self { map: Mapping::of_nothing() });
        }
        let flags = MapFlags::PRIVATE | MapFlags::from_bits_retain(flags.cast_unsigned());
        // SAFETY: the address is null, and no caller passes `MAP_FIXED`. So the call makes a new map, which replaces
        // none.
        let addr = unsafe { mm::mmap_anonymous(ptr::null_mut(), len, READ_WRITE, flags) }?;
        Ok(Self { map: Mapping::of_new(addr, len)? })
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

    /// Splits the map at `len` bytes, which is a multiple of the page length. If `len` is too large, the second part is
    /// empty.
    fn split_at_page(self, len: usize) -> (Self, Self) {
        let map = ManuallyDrop::new(self.map);
        let len = len.min(map.len);
        // `map.as_ptr() + len` is inside the map or at its end, so it is not null.
        let rest = NonNull::new(map.as_ptr().wrapping_add(len)).unwrap_or(map.addr.0);
        let rest = Mapping { addr: ObjectPtr(rest), len: map.len - len };
        (Self { map: Mapping { addr: map.addr, len } }, Self { map: rest })
    }

    /// `madvise(2)`, `MADV_POPULATE_WRITE`: allocates the pages now, so that a shortage is an error here and not a
    /// signal later. Since Linux 5.14; `EINVAL` before.
    pub(crate) fn populate(&self) -> io::Result<()> {
        self.advise(Advice::LinuxPopulateWrite)
    }

    /// `madvise(2)`, `MADV_HUGEPAGE`: asks for transparent huge pages.
    pub(crate) fn prefer_huge_pages(&self) -> io::Result<()> {
        self.advise(Advice::LinuxHugepage)
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        if self.map.len == 0 {
            return Ok(());
        }
        // SAFETY: the map is our own (0). Callers pass `MADV_POPULATE_WRITE` or `MADV_HUGEPAGE`, and neither changes
        // the content.
        Ok(unsafe { mm::madvise(self.as_ptr().cast(), self.map.len, advice) }?)
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.map.as_ptr()
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the bytes are our own private map (0). The kernel has zeroed them, so they are initialised.
        unsafe { slice::from_raw_parts(self.as_ptr(), self.map.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the bytes are our own private map (0). The kernel has zeroed them, so they are initialised. Nobody
        // else has a reference to them, since `self` is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.as_ptr(), self.map.len) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// `mmap` rounds such a length up, and `munmap` refuses it. So a map of it could not be ended.
    #[test]
    #[cfg_attr(miri, ignore = "has no memory files")]
    fn a_part_of_a_huge_page_is_not_mapped() {
        let Ok(file) = rustix::fs::memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB) else {
            println!("not covered here: this kernel has no huge pages");
            return;
        };
        let page = huge_page_bytes(&file).expect("a file on hugetlbfs");
        assert!(page > page_bytes());
        rustix::fs::ftruncate(&file, page as u64).unwrap();
        let refused = Mapping::shared(&file, 0, page_bytes()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        // This map succeeds only if the system has a free huge page.
        if let Ok(whole) = Mapping::shared(&file, 0, page) {
            assert_eq!(whole.len(), page);
        }
        let usual = memory_file("usual").unwrap();
        assert_eq!(huge_page_bytes(&usual), None);
    }
}
