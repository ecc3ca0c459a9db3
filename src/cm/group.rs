//! Multicast groups.

use super::channel::Identifier;
use super::datagram::{handle_of, takes};
use super::ended::Ended;
use super::error::{Cause, Failed};
use super::meaning::Phase;
use super::server::Bound;
use super::wait::{Patience, answer_with_path};
use super::{Datagrams, Progress, not_for_iwarp, same_device};
use crate::domain::{Brand, ProtectionDomain};
use crate::provider::cm::BoundDevice;
use crate::queue::QueuePair;
use crate::queue::datagram::Recipient;
use crate::queue::state::ReadyToSend;
use crate::queue::transport::Connectionless;
use crate::sys::ibv_ah_attr;
use crate::types::{Gid, Qkey};
use crate::verb_error::VerbError;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

impl Bound<Datagrams> {
    /// Starts to join a multicast group. The datagrams of the group then reach the port that this identifier is bound
    /// to.
    ///
    /// `rdma_join_multicast(3)`.
    ///
    /// # Errors
    ///
    /// [`Cause::Call`] with `EINVAL`: `group` is not a multicast address, or the identifier is bound to all addresses
    /// and not to the address of one device. [`Cause::NotOnIwarp`]: the identifier is bound to an iWARP device.
    /// [`Cause::DeviceRemoved`]. The identifier comes back.
    #[doc(alias = "rdma_join_multicast")]
    pub fn join(mut self, group: IpAddr) -> Result<Joining, Failed<Self>> {
        if let Err(cause) = not_for_iwarp(&self.id) {
            return Err(Failed { value: self, cause });
        }
        let joined = match self.id.raw.device() {
            Some(_) if group.is_multicast() => self.id.raw.join_multicast(SocketAddr::new(group, 0)),
            _ => Err(VerbError::new("rdma_join_multicast", libc::EINVAL)),
        };
        match joined {
            Ok(()) => {
                self.id.events.set_polled(true);
                Ok(Joining { id: self.id, group })
            }
            Err(error) => Err(Failed { cause: self.id.events.cause_of(error), value: self }),
        }
    }
}

/// An identifier whose port is joining a group. Dropping it leaves the group.
#[derive(Debug)]
pub struct Joining {
    id: Identifier,
    group: IpAddr,
}

impl Joining {
    /// Waits until the group is joined, at most for `timeout`.
    ///
    /// # Errors
    ///
    /// [`Cause::Failed`]: the network refused. [`Cause::TimedOut`], [`Cause::DeviceRemoved`].
    pub fn wait(self, timeout: Duration) -> Result<Membership, Cause> {
        match self.go_on(Patience::of(timeout))? {
            Progress::Done(membership) => Ok(membership),
            Progress::Pending(_) => Err(Cause::TimedOut(timeout)),
        }
    }

    /// Checks whether the group is joined, without waiting.
    ///
    /// # Errors
    ///
    /// The same as those of [`wait`](Self::wait).
    pub fn poll(self) -> Result<Progress<Self, Membership>, Cause> {
        self.go_on(Patience::None)
    }

    fn go_on(self, patience: Patience) -> Result<Progress<Self, Membership>, Cause> {
        let Some((path, answer)) = answer_with_path(&self.id.events, Phase::JoiningGroup, patience)? else {
            return Ok(Progress::Pending(self));
        };
        let device = self.id.raw.device().ok_or(Cause::DeviceRemoved)?;
        let Self { id, group } = self;
        Ok(Progress::Done(Membership { id, group, path, qkey: Qkey(answer.qkey), device, end: Ended::default() }))
    }
}

/// The membership of a port in a multicast group. Dropping it leaves the group.
///
/// A queue pair receives the group's datagrams if it is [attached](Self::attach). A pair that only sends to the group
/// needs only the [`recipient`](Self::recipient).
///
/// The network may end the membership, for example when the subnet manager is replaced. A program that waits for
/// datagrams calls [`poll_end`](Self::poll_end) now and then.
pub struct Membership {
    id: Identifier,
    group: IpAddr,
    path: ibv_ah_attr,
    qkey: Qkey,
    device: BoundDevice,
    /// How the membership has ended; `None` while it lasts.
    end: Ended,
}

impl Membership {
    /// The GID of the group.
    pub fn gid(&self) -> Gid {
        Gid(self.path.grh.dgid.bytes())
    }

    /// The queue key of the group's datagrams.
    pub fn qkey(&self) -> Qkey {
        self.qkey
    }

    /// Attaches `pair` to the group: it receives the group's datagrams until it is [detached](Self::detach) or
    /// destroyed.
    ///
    /// `ibv_attach_mcast(3)`.
    ///
    /// # Errors
    ///
    /// [`Cause::OtherDevice`]; [`Cause::OtherKey`]: the pair has another queue key than the group; [`Cause::Call`].
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach<B: Brand, T: Connectionless>(&self, pair: &mut QueuePair<B, ReadyToSend, T>) -> Result<(), Cause> {
        same_device(&self.device, pair)?;
        takes(pair, self.qkey)?;
        pair.join_group(self.gid(), self.path.dlid).map_err(Cause::Call)
    }

    /// Detaches `pair` from the group, after [`attach`](Self::attach).
    ///
    /// `ibv_detach_mcast(3)`.
    ///
    /// # Errors
    ///
    /// The pair is not attached.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach<B: Brand, T: Connectionless>(
        &self,
        pair: &mut QueuePair<B, ReadyToSend, T>,
    ) -> Result<(), VerbError> {
        pair.leave_group(self.gid(), self.path.dlid)
    }

    /// The recipient for datagrams to all members, from pairs of `domain`.
    ///
    /// `ibv_create_ah(3)`.
    ///
    /// # Errors
    ///
    /// [`Cause::OtherDevice`], [`Cause::Call`].
    #[doc(alias = "ibv_create_ah")]
    pub fn recipient<B: Brand>(&self, domain: &ProtectionDomain<B>) -> Result<Recipient<B>, Cause> {
        Ok(Recipient::group(handle_of(domain, &self.device, self.path)?, self.qkey))
    }

    /// Returns the cause if the membership has ended and this side did not end it: [`Cause::Failed`] if the network has
    /// ended it, or [`Cause::DeviceRemoved`]. The port then receives no more datagrams of the group:
    /// [leave](Self::leave) it, and join it again.
    ///
    /// # Errors
    ///
    /// The channel failed.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_ERROR")]
    pub fn poll_end(&mut self) -> Result<Option<Cause>, VerbError> {
        self.end_by(Patience::None)
    }

    /// Waits until the membership ends, at most for `timeout`. Returns `None` if it lasts longer.
    ///
    /// # Errors
    ///
    /// The channel failed.
    pub fn wait_end(&mut self, timeout: Duration) -> Result<Option<Cause>, VerbError> {
        self.end_by(Patience::of(timeout))
    }

    fn end_by(&mut self, patience: Patience) -> Result<Option<Cause>, VerbError> {
        // A membership gets no advice.
        self.end.look(&self.id.events, Phase::Member, patience, &mut None)
    }

    /// Leaves the group. Pairs that are still attached to the group receive no more datagrams from other hosts.
    ///
    /// `rdma_leave_multicast(3)`.
    ///
    /// # Errors
    ///
    /// [`Cause::DeviceRemoved`]; the system refused. The membership comes back, and is of no more use: it may have left
    /// the group, and it hears no more of its end. Dropping it leaves the group.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave(mut self) -> Result<Bound<Datagrams>, Failed<Self>> {
        if self.id.events.is_removed() {
            return Err(Failed { cause: Cause::DeviceRemoved, value: self });
        }
        match self.id.raw.leave_multicast(SocketAddr::new(self.group, 0)) {
            Ok(()) => {
                // `rdma_leave_multicast` drops the events of the membership that are still in the kernel. A thread has
                // perhaps moved other events of the membership from the channel into the `MailBox` of this identifier.
                // `forget_group` drops the events in the `MailBox`.
                self.id.events.forget_group();
                self.id.events.set_polled(false);
                Ok(Bound::new(self.id))
            }
            Err(error) => Err(Failed { cause: self.id.events.cause_of(error), value: self }),
        }
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("group", &self.group).field("qkey", &self.qkey).finish_non_exhaustive()
    }
}
