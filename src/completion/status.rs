//! Why requests end as they do.

use crate::sys;
use std::{error, fmt};

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:ident, $text:literal;)+) => {
        /// Why a request ended as it did.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        #[doc(alias = "ibv_wc_status")]
        pub enum Status {
            /// It succeeded.
            #[doc(alias = "IBV_WC_SUCCESS")]
            Success,
            $($(#[$doc])* $name,)+
            /// The library's own: the queue pair was destroyed or reset while the request was in flight.
            Destroyed,
            /// The library's own: the provider reported what cannot be, such as more bytes received than the buffer has.
            ProviderFault,
            /// A status that this library does not know.
            Unknown(u32),
        }

        impl Status {
            /// Reads what the device wrote.
            #[inline]
            pub(crate) fn from_raw(raw: u32) -> Self {
                match sys::ibv_wc_status(raw) {
                    sys::ibv_wc_status::IBV_WC_SUCCESS => Self::Success,
                    $(sys::ibv_wc_status::$code => Self::$name,)+
                    _ => Self::Unknown(raw),
                }
            }

            /// The number of the specification; `None` for the library's own.
            pub fn code(self) -> Option<u32> {
                Some(match self {
                    Self::Success => 0,
                    $(Self::$name => sys::ibv_wc_status::$code.0,)+
                    Self::Destroyed | Self::ProviderFault => return None,
                    Self::Unknown(code) => code,
                })
            }
        }

        impl fmt::Display for Status {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Self::Success => f.write_str("success"),
                    $(Self::$name => f.write_str($text),)+
                    Self::Destroyed => f.write_str("the queue pair was destroyed or reset with the request in flight"),
                    Self::ProviderFault => f.write_str("the provider reported a completion that cannot be"),
                    Self::Unknown(code) => write!(f, "status {code}, which the specification does not name"),
                }
            }
        }
    };
}

statuses! {
    /// A message longer than the receive buffer arrived here, or one longer than the device sends was posted.
    #[doc(alias = "IBV_WC_LOC_LEN_ERR")]
    LocalLength = IBV_WC_LOC_LEN_ERR,
        "local length error: the message does not fit (here: is the receive buffer as long as the peer's message?)";
    /// The queue pair cannot do what was asked.
    #[doc(alias = "IBV_WC_LOC_QP_OP_ERR")]
    LocalQueuePairOperation = IBV_WC_LOC_QP_OP_ERR,
        "local queue pair operation error: this side's request and queue pair do not go together (soft-RoCE says this \
         also of a message longer than its receive buffer)";
    /// Reliable datagrams only.
    #[doc(alias = "IBV_WC_LOC_EEC_OP_ERR")]
    LocalEecOperation = IBV_WC_LOC_EEC_OP_ERR, "local end-to-end context operation error";
    /// The memory of the request is not what its key stands for.
    #[doc(alias = "IBV_WC_LOC_PROT_ERR")]
    LocalProtection = IBV_WC_LOC_PROT_ERR,
        "local protection error: this side's memory, its key or its rights do not fit the request";
    /// The queue pair was in Error, so the request was not executed, or not to its end.
    #[doc(alias = "IBV_WC_WR_FLUSH_ERR")]
    Flushed = IBV_WC_WR_FLUSH_ERR, "flushed: the queue pair was in Error (look for the failure before it)";
    /// A memory window was not bound.
    #[doc(alias = "IBV_WC_MW_BIND_ERR")]
    WindowBind = IBV_WC_MW_BIND_ERR, "memory window bind error: the window, its region and their rights do not fit";
    /// The peer's device answered with something malformed.
    #[doc(alias = "IBV_WC_BAD_RESP_ERR")]
    BadResponse = IBV_WC_BAD_RESP_ERR, "bad response: the peer's device sent what this one does not understand";
    /// The peer's write with immediate was not allowed here.
    #[doc(alias = "IBV_WC_LOC_ACCESS_ERR")]
    LocalAccess = IBV_WC_LOC_ACCESS_ERR, "local access error: the peer's write was not allowed on this side";
    /// The peer's device does not accept the request.
    #[doc(alias = "IBV_WC_REM_INV_REQ_ERR")]
    RemoteInvalidRequest = IBV_WC_REM_INV_REQ_ERR,
        "remote invalid request: the peer refused the operation (its receive is too short, its queue pair lacks the \
         right or read depth, or the MTUs differ)";
    /// The peer's memory is not what the remote key stands for.
    #[doc(alias = "IBV_WC_REM_ACCESS_ERR")]
    RemoteAccess = IBV_WC_REM_ACCESS_ERR,
        "remote access error: the peer's memory, its key or its rights do not allow it (was it deregistered?)";
    /// The peer could not finish the request.
    #[doc(alias = "IBV_WC_REM_OP_ERR")]
    RemoteOperation = IBV_WC_REM_OP_ERR,
        "remote operation error: the peer could not finish (often its receive buffer: length, key or rights)";
    /// The peer did not acknowledge.
    #[doc(alias = "IBV_WC_RETRY_EXC_ERR")]
    RetryExceeded = IBV_WC_RETRY_EXC_ERR,
        "retry count exceeded: the peer does not answer (is it up, connected to this queue pair, with matching PSNs?)";
    /// The peer had no receive posted for too long.
    #[doc(alias = "IBV_WC_RNR_RETRY_EXC_ERR")]
    RnrRetryExceeded = IBV_WC_RNR_RETRY_EXC_ERR,
        "receiver-not-ready retry count exceeded: the peer posted no receive in time";
    /// Reliable datagrams only.
    #[doc(alias = "IBV_WC_LOC_RDD_VIOL_ERR")]
    LocalRddViolation = IBV_WC_LOC_RDD_VIOL_ERR, "local reliable datagram domain violation";
    /// Reliable datagrams only.
    #[doc(alias = "IBV_WC_REM_INV_RD_REQ_ERR")]
    RemoteInvalidReadRequest = IBV_WC_REM_INV_RD_REQ_ERR, "remote invalid reliable datagram request";
    /// The peer gave the operation up.
    #[doc(alias = "IBV_WC_REM_ABORT_ERR")]
    RemoteAborted = IBV_WC_REM_ABORT_ERR, "remote aborted: the peer gave the operation up";
    /// Reliable datagrams only.
    #[doc(alias = "IBV_WC_INV_EECN_ERR")]
    InvalidEecNumber = IBV_WC_INV_EECN_ERR, "invalid end-to-end context number";
    /// Reliable datagrams only.
    #[doc(alias = "IBV_WC_INV_EEC_STATE_ERR")]
    InvalidEecState = IBV_WC_INV_EEC_STATE_ERR, "invalid end-to-end context state";
    /// The device failed.
    #[doc(alias = "IBV_WC_FATAL_ERR")]
    Fatal = IBV_WC_FATAL_ERR, "fatal error of the device or the transport";
    /// A management response did not come.
    #[doc(alias = "IBV_WC_RESP_TIMEOUT_ERR")]
    ResponseTimeout = IBV_WC_RESP_TIMEOUT_ERR, "response timeout";
    /// Something else.
    #[doc(alias = "IBV_WC_GENERAL_ERR")]
    General = IBV_WC_GENERAL_ERR, "general error of the transport";
}

impl error::Error for Status {}
