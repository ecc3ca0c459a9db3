//! What a poller must know of a ledger's queue pair.
#![forbid(unsafe_code)]

/// What a poller needs to know of a work queue's pair: the pair's 24-bit number, and flags.
#[derive(Clone, Copy, Default)]
pub(crate) struct Origin(u32);

impl Origin {
    const DATAGRAMS: u32 = 1 << 31;
    const PREFIX: u32 = 1 << 30;
    const FLAGS: u32 = Self::DATAGRAMS | Self::PREFIX;

    /// The origin of a work queue where a completion ends only its own request.
    pub(crate) fn new(qpn: u32, datagrams: bool) -> Self {
        Self(qpn & !Self::FLAGS | if datagrams { Self::DATAGRAMS } else { 0 })
    }

    /// The same origin. If `retires` is true, a completion also ends the requests before its own.
    pub(crate) fn retiring_prefixes(self, retires: bool) -> Self {
        Self(self.0 | if retires { Self::PREFIX } else { 0 })
    }

    /// Whether a completion also ends the requests before its own.
    #[inline(always)]
    pub(crate) fn retires_prefixes(self) -> bool {
        self.0 & Self::PREFIX != 0
    }

    #[inline(always)]
    pub(crate) fn qpn(self) -> u32 {
        self.0 & !Self::FLAGS
    }

    /// Whether the work queue carries datagrams, which have a header.
    #[inline(always)]
    pub(crate) fn datagrams(self) -> bool {
        self.0 & Self::DATAGRAMS != 0
    }
}
