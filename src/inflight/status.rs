//! The statuses of requests, and their explanations.

use crate::sys;
use std::{error, fmt};

/// The side on which to look for the cause of a failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FaultSide {
    /// This side: its request, its memory, its queue pair.
    Local,
    /// The peer: its memory, its receives, its queue pair.
    Remote,
    /// Either side, or the network between them.
    Either,
    /// The device or its provider, on either side.
    Device,
}

impl fmt::Display for FaultSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "this side",
            Self::Remote => "the peer",
            Self::Either => "either side",
            Self::Device => "a device",
        })
    }
}

/// The explanation of a status.
struct Explained {
    name: &'static str,
    what: &'static str,
    side: Option<FaultSide>,
    causes: &'static str,
    check: &'static str,
    see: &'static str,
}

const fn explained(
    name: &'static str,
    what: &'static str,
    side: Option<FaultSide>,
    causes: &'static str,
    check: &'static str,
    see: &'static str,
) -> Explained {
    Explained { name, what, side, causes, check, see }
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:ident, $side:ident,
        $what:literal, causes: $causes:literal, check: $check:literal, see: $see:literal;)+) => {
        /// How a request ended: with success, or with the reason why it failed.
        ///
        /// Its text says what happened, on whose side, the usual causes, what to check, and the heading of
        /// `docs/failures.md`, in the repository, that has more.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        #[doc(alias = "ibv_wc_status")]
        #[doc(alias = "ibv_wc_status_str")]
        pub enum Status {
            /// The request succeeded.
            #[doc(alias = "IBV_WC_SUCCESS")]
            Success,
            $($(#[$doc])* $name,)+
            /// A status of the library: the queue pair was destroyed or reset while the request was in flight.
            Destroyed,
            /// A status of the library: the provider reported something impossible, such as more bytes than the receive
            /// buffer has.
            ProviderFault,
            /// A status that this library does not know.
            Unknown(u32),
        }

        impl Status {
            /// The status with the number that the device wrote.
            #[inline]
            pub(crate) fn from_raw(raw: u32) -> Self {
                match sys::ibv_wc_status(raw) {
                    sys::ibv_wc_status::IBV_WC_SUCCESS => Self::Success,
                    $(sys::ibv_wc_status::$code => Self::$name,)+
                    _ => Self::Unknown(raw),
                }
            }

            /// The number of the status in the verbs; `None` for a status of the library.
            pub fn code(self) -> Option<u32> {
                Some(match self {
                    Self::Success => 0,
                    $(Self::$name => sys::ibv_wc_status::$code.0,)+
                    Self::Destroyed | Self::ProviderFault => return None,
                    Self::Unknown(code) => code,
                })
            }

            fn explained(self) -> &'static Explained {
                match self {
                    Self::Success => const { &explained("IBV_WC_SUCCESS", "success", None, "", "", "") },
                    $(Self::$name => const {
                        &explained(stringify!($code), $what, Some(FaultSide::$side), $causes, $check, $see)
                    },)+
                    Self::Destroyed => &DESTROYED,
                    Self::ProviderFault => &PROVIDER_FAULT,
                    Self::Unknown(_) => &UNKNOWN,
                }
            }

            /// All statuses that a failure can have, except `Unknown`.
            #[cfg(all(test, not(loom)))]
            const FAILURES: &[Self] = &[$(Self::$name,)+ Self::Destroyed, Self::ProviderFault];
        }
    };
}

const DESTROYED: Explained = explained(
    "",
    "the queue pair was destroyed or reset with the request in flight",
    Some(FaultSide::Local),
    "the program did so, or dropped the pair",
    "whether the program meant to do so; the request may have been executed",
    "docs/failures.md#destroyed",
);
const PROVIDER_FAULT: Explained = explained(
    "",
    "the provider reported an impossible completion",
    Some(FaultSide::Device),
    "a defect of the provider library, the driver or the device",
    "the versions of provider, driver and firmware; report the fault to the vendor",
    "docs/failures.md#provider-fault",
);
const UNKNOWN: Explained = explained(
    "",
    "a status that the specification does not name",
    Some(FaultSide::Device),
    "a device or a provider newer than this library, or a defect of theirs",
    "the number in `enum ibv_wc_status` of `infiniband/verbs.h`, and `vendor_error` in the vendor's documents",
    "docs/failures.md#unknown",
);

impl Status {
    /// The name of the status in C, such as `IBV_WC_RETRY_EXC_ERR`; `None` for statuses of the library and unknown
    /// ones.
    pub fn c_name(self) -> Option<&'static str> {
        Some(self.explained().name).filter(|name| !name.is_empty())
    }

    /// The side on which to look for the cause; `None` for a success.
    pub fn side(self) -> Option<FaultSide> {
        self.explained().side
    }

    /// The usual causes; empty for a success.
    pub fn likely_causes(self) -> &'static str {
        self.explained().causes
    }

    /// What to check; empty for a success.
    pub fn to_check(self) -> &'static str {
        self.explained().check
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explained { what, side, causes, check, see, .. } = self.explained();
        let Some(side) = side else { return f.write_str(what) };
        if let Self::Unknown(code) = self {
            write!(f, "status {code}: ")?;
        }
        write!(f, "{what} [{side}: {causes}; check {check}; see {see}]")
    }
}

statuses! {
    /// A message arrived that is longer than the receive buffer, or this side posted one that is longer than the device
    /// sends.
    #[doc(alias = "IBV_WC_LOC_LEN_ERR")]
    LocalLength = IBV_WC_LOC_LEN_ERR, Local,
        "local length error: the message does not fit",
        causes: "the receive buffer is shorter than the peer's message, or the request is longer than the device sends",
        check: "the capacity of the receives against what the peer sends",
        see: "docs/failures.md#local-length";
    /// The queue pair cannot do what was asked.
    #[doc(alias = "IBV_WC_LOC_QP_OP_ERR")]
    LocalQueuePairOperation = IBV_WC_LOC_QP_OP_ERR, Local,
        "local queue pair operation error: the request and its queue pair do not go together",
        causes: "more reads at once than the pair's read depth, or an operation that the device lacks; on soft-RoCE \
                 also a receive buffer shorter than the message",
        check: "the depths that the pair was connected with, and the capacity of the receives",
        see: "docs/failures.md#local-queue-pair-operation";
    /// Reliable datagrams only.
    #[doc(alias = "IBV_WC_LOC_EEC_OP_ERR")]
    LocalEecOperation = IBV_WC_LOC_EEC_OP_ERR, Local,
        "local end-to-end context operation error",
        causes: "reliable datagrams, which this library does not have",
        check: "the provider's version",
        see: "docs/failures.md#local-eec-operation";
    /// The key of the request does not cover its memory, or lacks the right.
    #[doc(alias = "IBV_WC_LOC_PROT_ERR")]
    LocalProtection = IBV_WC_LOC_PROT_ERR, Local,
        "local protection error: the memory of the request, its key or its rights do not fit",
        causes: "the device or other code in the process ended a registration (this library posts only registered \
                 memory)",
        check: "what else in the process calls verbs; the provider's version",
        see: "docs/failures.md#local-protection";
    /// The queue pair was in Error, so the request was not executed, or not to its end.
    #[doc(alias = "IBV_WC_WR_FLUSH_ERR")]
    Flushed = IBV_WC_WR_FLUSH_ERR, Either,
        "flushed: the queue pair was in Error",
        causes: "an earlier failure of the pair, `into_error`, or the peer's device; on soft-RoCE also a failure of this \
                 request that other devices report as a local error",
        check: "the failure before this one (`first_failure`); the request may have been executed",
        see: "docs/failures.md#flushed";
    /// A memory window was not bound.
    #[doc(alias = "IBV_WC_MW_BIND_ERR")]
    WindowBind = IBV_WC_MW_BIND_ERR, Local,
        "memory window bind error: the window, its region and their rights do not fit",
        causes: "a window that is bound already, or a region without the right to bind",
        check: "the rights of the region, and who else binds the window",
        see: "docs/failures.md#window-bind";
    /// The peer's device answered with something malformed.
    #[doc(alias = "IBV_WC_BAD_RESP_ERR")]
    BadResponse = IBV_WC_BAD_RESP_ERR, Remote,
        "bad response: the peer's device sent a response that this one does not understand",
        causes: "packets of an earlier connection, or a defect of the peer's device",
        check: "that both sides chose new packet sequence numbers; the firmware of both",
        see: "docs/failures.md#bad-response";
    /// The peer's write with immediate was not allowed here.
    #[doc(alias = "IBV_WC_LOC_ACCESS_ERR")]
    LocalAccess = IBV_WC_LOC_ACCESS_ERR, Remote,
        "local access error: a write with immediate of the peer was not allowed here",
        causes: "the peer's target was deregistered, has other bounds, or lacks the right to be written",
        check: "the record of granted memory that the peer has, and how long it was valid",
        see: "docs/failures.md#local-access";
    /// The peer's device does not accept the request.
    #[doc(alias = "IBV_WC_REM_INV_REQ_ERR")]
    RemoteInvalidRequest = IBV_WC_REM_INV_REQ_ERR, Remote,
        "remote invalid request: the peer refused the operation",
        causes: "its receive is shorter than the message, its queue pair lacks the right or the read depth, or the path MTUs \
                 differ",
        check: "the peer's receives, its `PeerRights`, its responder depth, and the MTU on both sides",
        see: "docs/failures.md#remote-invalid-request";
    /// The remote key does not cover the peer's memory, or lacks the right.
    #[doc(alias = "IBV_WC_REM_ACCESS_ERR")]
    RemoteAccess = IBV_WC_REM_ACCESS_ERR, Remote,
        "remote access error: the peer's memory, its key or its rights do not allow it",
        causes: "the peer deregistered the memory, or granted other bounds or rights",
        check: "that the peer still has the region, and that this side's record of it is current",
        see: "docs/failures.md#remote-access";
    /// The peer could not finish the request.
    #[doc(alias = "IBV_WC_REM_OP_ERR")]
    RemoteOperation = IBV_WC_REM_OP_ERR, Remote,
        "remote operation error: the peer could not finish",
        causes: "the length, the key or the rights of its receive buffer do not fit, or its device failed",
        check: "the failure that the peer has seen at the same time",
        see: "docs/failures.md#remote-operation";
    /// The peer did not acknowledge.
    #[doc(alias = "IBV_WC_RETRY_EXC_ERR")]
    RetryExceeded = IBV_WC_RETRY_EXC_ERR, Either,
        "retry count exceeded: the peer does not answer",
        causes: "the peer is gone, not connected to this queue pair, or expects other packet sequence numbers; the network \
                 loses packets; or the peer is on a soft device of another process, which this process cannot reach",
        check: "that the peer is up and in Ready To Receive, the endpoints on both sides, and the route between the GIDs",
        see: "docs/failures.md#retry-exceeded";
    /// The peer had no receive posted for too long.
    #[doc(alias = "IBV_WC_RNR_RETRY_EXC_ERR")]
    RnrRetryExceeded = IBV_WC_RNR_RETRY_EXC_ERR, Remote,
        "receiver-not-ready retry count exceeded: the peer posted no receive in time",
        causes: "the peer posts receives too late or too few",
        check: "the peer's receives, `rnr_retry` here and `min_rnr_timer` there",
        see: "docs/failures.md#rnr-retry-exceeded";
    /// Reliable datagrams only.
    #[doc(alias = "IBV_WC_LOC_RDD_VIOL_ERR")]
    LocalRddViolation = IBV_WC_LOC_RDD_VIOL_ERR, Local,
        "local reliable datagram domain violation",
        causes: "reliable datagrams, which this library does not have",
        check: "the provider's version",
        see: "docs/failures.md#local-rdd-violation";
    /// Reliable datagrams only.
    #[doc(alias = "IBV_WC_REM_INV_RD_REQ_ERR")]
    RemoteInvalidReadRequest = IBV_WC_REM_INV_RD_REQ_ERR, Remote,
        "remote invalid reliable datagram request",
        causes: "reliable datagrams, which this library does not have",
        check: "the provider's version",
        see: "docs/failures.md#remote-invalid-read-request";
    /// The peer gave the operation up.
    #[doc(alias = "IBV_WC_REM_ABORT_ERR")]
    RemoteAborted = IBV_WC_REM_ABORT_ERR, Remote,
        "remote aborted: the peer gave the operation up",
        causes: "the peer's queue pair went away during the operation",
        check: "what the peer did at that time",
        see: "docs/failures.md#remote-aborted";
    /// Reliable datagrams only.
    #[doc(alias = "IBV_WC_INV_EECN_ERR")]
    InvalidEecNumber = IBV_WC_INV_EECN_ERR, Local,
        "invalid end-to-end context number",
        causes: "reliable datagrams, which this library does not have",
        check: "the provider's version",
        see: "docs/failures.md#invalid-eec-number";
    /// Reliable datagrams only.
    #[doc(alias = "IBV_WC_INV_EEC_STATE_ERR")]
    InvalidEecState = IBV_WC_INV_EEC_STATE_ERR, Local,
        "invalid end-to-end context state",
        causes: "reliable datagrams, which this library does not have",
        check: "the provider's version",
        see: "docs/failures.md#invalid-eec-state";
    /// The device failed.
    #[doc(alias = "IBV_WC_FATAL_ERR")]
    Fatal = IBV_WC_FATAL_ERR, Device,
        "fatal error of the device or the transport",
        causes: "the device failed, was reset or was removed",
        check: "the asynchronous events of the device, and the kernel's log",
        see: "docs/failures.md#fatal";
    /// A management response did not come.
    #[doc(alias = "IBV_WC_RESP_TIMEOUT_ERR")]
    ResponseTimeout = IBV_WC_RESP_TIMEOUT_ERR, Either,
        "response timeout: a management response did not come",
        causes: "the subnet manager or the peer does not answer",
        check: "the subnet manager, and the peer",
        see: "docs/failures.md#response-timeout";
    /// Something else.
    #[doc(alias = "IBV_WC_GENERAL_ERR")]
    General = IBV_WC_GENERAL_ERR, Device,
        "general error of the transport",
        causes: "an error for which the device has no other status",
        check: "`vendor_error`, with the vendor's documents",
        see: "docs/failures.md#general";
}

impl error::Error for Status {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The table of `docs/failures.md`, made from the explanations of the statuses.
    fn table() -> String {
        let mut table = String::from(
            "| status | whose side | what happened | usual causes | what to check |\n|---|---|---|---|---|\n",
        );
        for status in Status::FAILURES {
            let Explained { name, what, side, causes, check, .. } = status.explained();
            let code = status.code().map(|code| format!(", `{name}` ({code})")).unwrap_or_default();
            let side = side.map(|side| side.to_string()).unwrap_or_default();
            table += &format!("| `{status:?}`{code} | {side} | {what} | {causes} | {check} |\n");
        }
        let Explained { what, side, causes, check, .. } = UNKNOWN;
        let side = side.map(|side| side.to_string()).unwrap_or_default();
        table += &format!("| `Unknown`, any other number | {side} | {what} | {causes} | {check} |\n");
        table
    }

    #[test]
    #[cfg_attr(miri, ignore = "compares texts")]
    fn the_table_of_failures_says_what_the_statuses_say() {
        let page = include_str!("../../docs/failures.md");
        assert!(page.contains(&table()), "docs/failures.md should have:\n{}", table());
    }

    #[test]
    #[cfg_attr(miri, ignore = "compares texts")]
    fn each_failure_says_whose_side_why_and_what_to_check() {
        for status in Status::FAILURES {
            let text = status.to_string();
            for part in
                [&status.side().unwrap().to_string(), status.likely_causes(), status.to_check(), status.explained().see]
            {
                assert!(!part.is_empty() && text.contains(part), "{text}");
            }
        }
        assert_eq!(Status::Success.to_string(), "success");
        assert_eq!(Status::Success.side(), None);
        assert!(Status::Unknown(99).to_string().starts_with("status 99"), "{}", Status::Unknown(99));
    }

    #[test]
    fn a_status_is_read_by_its_number() {
        for &status in Status::FAILURES {
            if let Some(code) = status.code() {
                assert_eq!(Status::from_raw(code), status);
            }
        }
        assert_eq!(Status::from_raw(0), Status::Success);
        assert_eq!(Status::from_raw(0xffff), Status::Unknown(0xffff));
    }
}
