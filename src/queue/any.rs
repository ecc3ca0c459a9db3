//! A queue pair whose state is a value: for struct fields and collections.

use super::error::{TransitionError, TransitionFailure};
use super::pair::QueuePair;
use super::state::{
    Errored, Init, Kind, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError, State, kind,
};
use super::transport::{ReliableConnection, Transport};
use super::untyped::PairCore;
use crate::domain::Brand;
use crate::types::Qpn;
use std::{error, fmt, mem};

/// A queue pair in any state. To post, ask for the pair in Ready To Send: [`ready`](Self::ready).
///
/// # Examples
///
/// A connection that is brought up again after a failure, in a field. Each `into_init` chooses a new sequence number,
/// so both sides exchange their endpoints again. The receives are posted before the pair connects. (Where
/// [`pairs_can_be_reset`](crate::device::Promises::pairs_can_be_reset) is false, `into_reset` fails: put a new pair
/// into the field instead.)
///
/// ```no_run
/// use interlock::{AnyQueuePair, Buffer, Endpoint, Poller, Port};
/// # use std::time::Duration;
/// interlock::domain! { struct Storage; }
///
/// struct Connection {
///     pair: AnyQueuePair<Storage>,
///     poller: Poller<Storage>,
/// }
///
/// impl Connection {
///     fn recover(
///         &mut self,
///         port: &Port,
///         first: Buffer<Storage>,
///         exchange: impl FnOnce(Endpoint) -> Endpoint,
///     ) -> Result<(), Box<dyn std::error::Error>> {
///         self.pair.advance(|pair| match pair {
///             AnyQueuePair::ReadyToSend(pair) => Ok(pair.into_error()?.into()),
///             other => Ok(other),
///         })?;
///         if let AnyQueuePair::Errored(pair) = &mut self.pair {
///             pair.drain(&mut self.poller, Duration::from_secs(5), drop)?;
///         }
///         self.pair.advance(|pair| match pair {
///             AnyQueuePair::Errored(pair) => Ok(pair.into_reset()?.into_init(port)?.into()),
///             other => Ok(other),
///         })?;
///         let Some(pair) = self.pair.init() else { return Ok(()) };
///         pair.post_receive(first)?;
///         let peer = exchange(pair.endpoint());
///         self.pair.advance(|pair| match pair {
///             AnyQueuePair::Init(pair) => Ok(pair.connect(&peer)?.into()),
///             other => Ok(other),
///         })?;
///         Ok(())
///     }
/// }
/// ```
#[derive(Default)]
#[non_exhaustive]
pub enum AnyQueuePair<B, T = ReliableConnection> {
    /// Reset.
    Reset(QueuePair<B, Reset, T>),
    /// Init.
    Init(QueuePair<B, Init, T>),
    /// Ready To Receive.
    ReadyToReceive(QueuePair<B, ReadyToReceive, T>),
    /// Ready To Send.
    ReadyToSend(QueuePair<B, ReadyToSend, T>),
    /// Send Queue Drain.
    SendQueueDrain(QueuePair<B, SendQueueDrain, T>),
    /// Send Queue Error.
    SendQueueError(QueuePair<B, SendQueueError, T>),
    /// Error.
    Errored(QueuePair<B, Errored, T>),
    /// No pair: it was taken out, a closure of [`advance`](Self::advance) panicked, or a call that failed did not give
    /// it back.
    #[default]
    Vacant,
}

impl<B, S: State, T> From<QueuePair<B, S, T>> for AnyQueuePair<B, T> {
    fn from(pair: QueuePair<B, S, T>) -> Self {
        let QueuePair { inner, .. } = pair;
        match kind::<S>() {
            Kind::Reset => Self::Reset(QueuePair::assume_state(inner)),
            Kind::Init => Self::Init(QueuePair::assume_state(inner)),
            Kind::ReadyToReceive => Self::ReadyToReceive(QueuePair::assume_state(inner)),
            Kind::ReadyToSend => Self::ReadyToSend(QueuePair::assume_state(inner)),
            Kind::SendQueueDrain => Self::SendQueueDrain(QueuePair::assume_state(inner)),
            Kind::SendQueueError => Self::SendQueueError(QueuePair::assume_state(inner)),
            Kind::Errored => Self::Errored(QueuePair::assume_state(inner)),
        }
    }
}

/// The pair in the state that it reached, and why a transition in the closure of [`AnyQueuePair::advance`] failed. Made
/// by `?`.
pub struct Halted<B, T = ReliableConnection> {
    pair: AnyQueuePair<B, T>,
    source: TransitionFailure,
}

impl<B, S: State, T> From<TransitionError<QueuePair<B, S, T>>> for Halted<B, T> {
    fn from(error: TransitionError<QueuePair<B, S, T>>) -> Self {
        Self { pair: error.queue_pair.into(), source: error.source }
    }
}

impl<B, T> From<TransitionError<AnyQueuePair<B, T>>> for Halted<B, T> {
    fn from(error: TransitionError<AnyQueuePair<B, T>>) -> Self {
        Self { pair: error.queue_pair, source: error.source }
    }
}

/// A transition that did not happen. The pair stays in the state that it reached.
#[derive(Clone, Debug)]
pub struct AdvanceError {
    /// The state in which the pair is now.
    pub state: &'static str,
    /// Why the next transition did not happen.
    pub source: TransitionFailure,
}

impl fmt::Display for AdvanceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (the queue pair is in {})", self.source, self.state)
    }
}

impl error::Error for AdvanceError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        error::Error::source(&self.source)
    }
}

impl<B: Brand, T: Transport> AnyQueuePair<B, T> {
    /// Takes the pair through transitions in place. Inside `f`, `?` after a transition keeps the pair in the state that
    /// the pair reached. `f` is for transitions only: do other work between two calls.
    ///
    /// # Errors
    ///
    /// [`AdvanceError`]: a transition did not happen.
    pub fn advance(&mut self, f: impl FnOnce(Self) -> Result<Self, Halted<B, T>>) -> Result<(), AdvanceError> {
        match f(mem::take(self)) {
            Ok(pair) => {
                *self = pair;
                Ok(())
            }
            Err(Halted { pair, source }) => {
                *self = pair;
                Err(AdvanceError { state: self.state(), source })
            }
        }
    }

    /// The pair, if it is in Init: to post receives and to ask for its endpoint.
    pub fn init(&mut self) -> Option<&mut QueuePair<B, Init, T>> {
        match self {
            Self::Init(pair) => Some(pair),
            _ => None,
        }
    }

    /// The pair, if it is in Ready To Send: to post.
    #[inline]
    pub fn ready(&mut self) -> Option<&mut QueuePair<B, ReadyToSend, T>> {
        match self {
            Self::ReadyToSend(pair) => Some(pair),
            _ => None,
        }
    }
}

impl<B, T> AnyQueuePair<B, T> {
    fn core(&self) -> Option<&PairCore> {
        match self {
            Self::Reset(pair) => Some(&pair.inner.core),
            Self::Init(pair) => Some(&pair.inner.core),
            Self::ReadyToReceive(pair) => Some(&pair.inner.core),
            Self::ReadyToSend(pair) => Some(&pair.inner.core),
            Self::SendQueueDrain(pair) => Some(&pair.inner.core),
            Self::SendQueueError(pair) => Some(&pair.inner.core),
            Self::Errored(pair) => Some(&pair.inner.core),
            Self::Vacant => None,
        }
    }

    /// The number of the pair, which completions and events name; `None` for `Vacant`.
    #[doc(alias = "qp_num")]
    pub fn number(&self) -> Option<Qpn> {
        self.core().map(PairCore::qpn)
    }

    /// Whether the pair refuses posts, as [`QueuePair::is_broken`] says. False for `Vacant`.
    pub fn is_broken(&self) -> bool {
        self.core().is_some_and(PairCore::is_broken)
    }

    /// The name of the state.
    pub fn state(&self) -> &'static str {
        match self {
            Self::Reset(_) => Reset::NAME,
            Self::Init(_) => Init::NAME,
            Self::ReadyToReceive(_) => ReadyToReceive::NAME,
            Self::ReadyToSend(_) => ReadyToSend::NAME,
            Self::SendQueueDrain(_) => SendQueueDrain::NAME,
            Self::SendQueueError(_) => SendQueueError::NAME,
            Self::Errored(_) => Errored::NAME,
            Self::Vacant => "Vacant",
        }
    }
}

impl<B, T> fmt::Debug for AnyQueuePair<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset(pair) => pair.fmt(f),
            Self::Init(pair) => pair.fmt(f),
            Self::ReadyToReceive(pair) => pair.fmt(f),
            Self::ReadyToSend(pair) => pair.fmt(f),
            Self::SendQueueDrain(pair) => pair.fmt(f),
            Self::SendQueueError(pair) => pair.fmt(f),
            Self::Errored(pair) => pair.fmt(f),
            Self::Vacant => f.write_str("Vacant"),
        }
    }
}

impl<B, T> fmt::Debug for Halted<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Halted").field("pair", &self.pair).field("source", &self.source).finish()
    }
}

#[cfg(all(test, feature = "soft", not(loom)))]
mod tests {
    use super::*;
    use crate::soft::Fabric;
    use crate::{Checked, Context, Limits};

    type Pair<S> = QueuePair<Checked, S, ReliableConnection>;

    /// The pair in the state `S`, after it went through `AnyQueuePair`.
    fn through_any<S: State>(pair: Pair<impl State>) -> Pair<S> {
        let pair: Pair<S> = QueuePair::assume_state(pair.inner);
        let any = AnyQueuePair::from(pair);
        assert_eq!(any.state(), S::NAME);
        match any {
            AnyQueuePair::Reset(QueuePair { inner, .. })
            | AnyQueuePair::Init(QueuePair { inner, .. })
            | AnyQueuePair::ReadyToReceive(QueuePair { inner, .. })
            | AnyQueuePair::ReadyToSend(QueuePair { inner, .. })
            | AnyQueuePair::SendQueueDrain(QueuePair { inner, .. })
            | AnyQueuePair::SendQueueError(QueuePair { inner, .. })
            | AnyQueuePair::Errored(QueuePair { inner, .. }) => QueuePair::assume_state(inner),
            AnyQueuePair::Vacant => panic!("the pair is gone"),
        }
    }

    #[test]
    fn a_pair_goes_into_the_variant_of_its_own_state() {
        let domain = Context::open_on(&Fabric::new(), "soft0").unwrap().checked_domain().unwrap();
        let (queue, _poller) = domain.completion_queue(16).unwrap();
        let pair = domain.reliable(&queue, &Limits::default()).unwrap();
        let pair = through_any::<Init>(through_any::<Reset>(pair));
        let pair = through_any::<ReadyToSend>(through_any::<ReadyToReceive>(pair));
        let pair = through_any::<SendQueueError>(through_any::<SendQueueDrain>(pair));
        assert!(!through_any::<Errored>(pair).is_broken());
    }
}
