//! Huge pages: with pages of two mebibytes or more, the tables of processor and device have fewer entries.

use super::pages::{NoPages, Pages};
use crate::os::PrivateMapping;
use std::{fmt, fs, io};

/// The length of a huge page. x86-64 has both; other machines and kernels may have others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
#[doc(alias = "MAP_HUGETLB")]
pub enum HugePageSize {
    /// 2 MiB.
    #[doc(alias = "MAP_HUGE_2MB")]
    TwoMebibytes,
    /// 1 GiB. Such pages usually have to be set aside when the machine boots.
    #[doc(alias = "MAP_HUGE_1GB")]
    OneGibibyte,
}

impl HugePageSize {
    /// Its length in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::TwoMebibytes => 1 << 21,
            Self::OneGibibyte => 1 << 30,
        }
    }

    /// The folder of the kernel's counters for this size.
    fn folder(self) -> String {
        format!("/sys/kernel/mm/hugepages/hugepages-{}kB", self.bytes() / 1024)
    }

    /// How many pages of this size exist and how many of them are free, `(all, free)`; `None` if the machine or its
    /// kernel has no pages of this size.
    pub fn counts(self) -> Option<(u64, u64)> {
        let count = |name: &str| fs::read_to_string(format!("{}/{name}", self.folder())).ok()?.trim().parse().ok();
        let (all, free): (u64, u64) = (count("nr_hugepages")?, count("free_hugepages")?);
        Some((all, free.saturating_sub(count("resv_hugepages").unwrap_or(0))))
    }
}

impl fmt::Display for HugePageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TwoMebibytes => "2 MiB",
            Self::OneGibibyte => "1 GiB",
        })
    }
}

/// There are not enough huge pages.
#[derive(Debug, thiserror::Error)]
#[error("{needed} huge pages of {size} are not available{}", remedy(self))]
pub struct NoHugePages {
    /// The size of the pages.
    pub size: HugePageSize,
    /// How many pages were needed.
    pub needed: usize,
    /// How many there are and how many of them were free, `(all, free)`; `None` if the kernel has no pages of this
    /// size.
    pub counts: Option<(u64, u64)>,
    /// What the system answered.
    pub source: io::Error,
}

fn remedy(error: &NoHugePages) -> String {
    let folder = error.size.folder();
    match (error.counts, error.size) {
        (None, size) => format!(": this kernel has no pages of {size} ({folder} does not exist)"),
        (Some((all, free)), size) => {
            let at_boot = match size {
                HugePageSize::TwoMebibytes => "hugepages=N",
                HugePageSize::OneGibibyte => "hugepagesz=1G hugepages=N",
            };
            format!(
                ": {free} of {all} are free; reserve more (as root, write the new total to {folder}/nr_hugepages; or \
                 boot with {at_boot})"
            )
        }
    }
}

impl Pages {
    /// `len_bytes` zeroed bytes in huge pages, which the machine must have set aside. The rest of the last page stays
    /// unused.
    ///
    /// `mmap(2)` with `MAP_HUGETLB`. The pages are in memory from the start and are never swapped out.
    ///
    /// # Errors
    ///
    /// [`NoHugePages`] says how many pages there are, and how to set more aside. [`prefer_huge`](Self::prefer_huge)
    /// needs none set aside.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use interlock::{Context, LocalWrite};
    /// use interlock::memory::{HugePageSize, Pages};
    /// interlock::domain! { struct Docs; }
    /// let domain = Context::open_default()?.named_domain(Docs)?;
    /// let pages = Pages::huge(64 << 20, HugePageSize::TwoMebibytes)?;
    /// let (_, buffer) = domain.register::<LocalWrite, _>(pages)?.split();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "MAP_HUGETLB")]
    #[doc(alias = "hugetlbfs")]
    pub fn huge(len_bytes: usize, size: HugePageSize) -> Result<Self, NoHugePages> {
        let needed = len_bytes.div_ceil(size.bytes());
        let refused = |source| NoHugePages { size, needed, counts: size.counts(), source };
        let too_many = || refused(io::Error::from_raw_os_error(libc::ENOMEM));
        let mapped = needed.checked_mul(size.bytes()).ok_or_else(too_many)?;
        let kind = match size {
            HugePageSize::TwoMebibytes => libc::MAP_HUGE_2MB,
            HugePageSize::OneGibibyte => libc::MAP_HUGE_1GB,
        };
        let map = PrivateMapping::new(mapped, libc::MAP_HUGETLB | kind).map_err(refused)?;
        match map.populate() {
            Err(error) if error.raw_os_error() != Some(libc::EINVAL) => Err(refused(error)),
            // Linux before 5.14 has no `MADV_POPULATE_WRITE`, and answers `EINVAL`. That is not an error here, since
            // `mmap(2)` has already reserved the huge pages of the map.
            _ => Ok(Self { map, len: len_bytes }),
        }
    }

    /// `len_bytes` zeroed bytes, aligned to 2 MiB, in huge pages if the kernel has some at hand.
    ///
    /// Transparent huge pages, `madvise(2)` with `MADV_HUGEPAGE`: nothing has to be set aside, and huge pages are not
    /// guaranteed.
    ///
    /// # Errors
    ///
    /// The system does not map that many bytes. A lack of huge pages is not an error.
    #[doc(alias = "MADV_HUGEPAGE")]
    pub fn prefer_huge(len_bytes: usize) -> Result<Self, NoPages> {
        // Memory that is shorter than a huge page gets no huge page, so ordinary pages are enough. Miri always uses
        // ordinary pages: it supports neither `MADV_HUGEPAGE` nor the unmapping of a part of a map.
        if len_bytes < HugePageSize::TwoMebibytes.bytes() || cfg!(miri) {
            return Self::new(len_bytes);
        }
        let map = PrivateMapping::aligned_to_huge_pages(len_bytes).map_err(|source| NoPages { len_bytes, source })?;
        // If the kernel refuses the advice, the memory has ordinary pages. That is not an error.
        let _ = map.prefer_huge_pages();
        Ok(Self { map, len: len_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_says_what_to_set_aside() {
        let error = |size, counts| NoHugePages { size, needed: 3, counts, source: io::Error::from_raw_os_error(12) };
        let text = error(HugePageSize::TwoMebibytes, Some((8, 1))).to_string();
        for part in ["3 huge pages of 2 MiB", "1 of 8 are free", "hugepages-2048kB/nr_hugepages", "hugepages=N"] {
            assert!(text.contains(part), "{text}");
        }
        let text = error(HugePageSize::OneGibibyte, Some((0, 0))).to_string();
        assert!(text.contains("hugepages-1048576kB/nr_hugepages") && text.contains("hugepagesz=1G"), "{text}");
        assert!(error(HugePageSize::OneGibibyte, None).to_string().contains("has no pages of 1 GiB"));
    }
}
