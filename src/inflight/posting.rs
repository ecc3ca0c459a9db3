//! How requests are handed to the device.

/// How the requests of a queue pair are handed to the device: [`Limits::posting`](crate::Limits::posting). Most
/// requests can be posted in each way. Atomic writes need [`AtomicWrites`](Self::AtomicWrites), and requests about
/// memory windows need [`List`](Self::List).
///
/// # Examples
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # interlock::domain! { struct Docs; }
/// # let (domain, queue): (interlock::ProtectionDomain<Docs>, interlock::CompletionQueue<Docs>) = todo!();
/// use interlock::Limits;
/// use interlock::error::CreateError;
/// use interlock::queue::Posting;
/// let limits = Limits { posting: Posting::WorkRequestApi, ..Limits::default() };
/// let pair = match domain.reliable(&queue, &limits) {
///     Err(CreateError::NoWorkRequestApi(_)) => domain.reliable(&queue, &Limits::default())?,
///     pair => pair?,
/// };
/// # drop(pair); Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub enum Posting {
    /// As linked lists, `ibv_post_send(3)`. Every device takes them.
    #[default]
    #[doc(alias = "ibv_post_send")]
    List,
    /// As calls of the work request API, `ibv_wr_post(3)`. Some devices are faster with it, and some do not have it.
    ///
    /// A post through this API that fails does not say which request was refused. So where a list gives
    /// [`Refused`](crate::PostError::Refused), this gives [`Uncertain`](crate::PostError::Uncertain).
    ///
    /// The provider may hold locks of the pair from the first request of a [`batch`](crate::QueuePair::batch), or the
    /// beginning of a `post_all`, to its doorbell. A closure that polls in between, or waits for another thread, may
    /// wait for ever: on hns, this happens when the closure polls a failure of this pair. When `post` returns
    /// [`QueueFull`](crate::PostError::QueueFull), it has just rung the doorbell, so the closure may poll then.
    #[doc(alias = "ibv_wr_start")]
    #[doc(alias = "ibv_wr_complete")]
    #[doc(alias = "ibv_qp_ex")]
    WorkRequestApi,
    /// Like [`WorkRequestApi`](Self::WorkRequestApi), with [atomic writes](crate::WorkRequest::atomic_write), which few
    /// devices have. For reliable connections only.
    #[doc(alias = "IBV_QP_EX_WITH_ATOMIC_WRITE")]
    AtomicWrites,
}

impl Posting {
    /// Whether requests go through `ibv_wr_*`.
    #[inline(always)]
    pub(crate) fn is_in_sessions(self) -> bool {
        !matches!(self, Self::List)
    }
}
