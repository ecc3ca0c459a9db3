//! Static memory, registered to be read.

use super::part::SharedPart;
use super::registration::RegionInner;
use super::{RegisterFailure, SharedBuffer};
use crate::domain::{Brand, ProtectionDomain};
use zerocopy::{Immutable, IntoBytes};

impl<B: Brand> ProtectionDomain<B> {
    /// Registers static memory for the device to read. Returns a [`SharedBuffer`], which can be sent any number of
    /// times, to many peers at once.
    ///
    /// `ibv_reg_mr(3)` without any rights, so the memory may be read-only. The program may go on reading it. No peer
    /// reaches it: a peer gets only what is sent or written to it. The registration ends with the last clone.
    ///
    /// # Errors
    ///
    /// [`RegisterFailure`]: no bytes, or what the device answered.
    ///
    /// # Examples
    ///
    /// A page of a program's own text, sent twice at once without a copy:
    ///
    /// ```
    /// use interlock::{Context, Limits};
    /// use std::time::Duration;
    ///
    /// static GREETING: &[u8] = b"the same for everybody";
    ///
    /// interlock::domain! { struct Docs; }
    /// let context = Context::open("soft0")?;
    /// let (port, domain) = (context.active_port()?, context.named_domain(Docs)?);
    /// let (queue, mut poller) = domain.completion_queue(16)?;
    /// let pair = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
    /// let myself = pair.endpoint(); // a pair may be its own peer
    /// let mut pair = pair.connect(&myself)?;
    ///
    /// let greeting = domain.register_static(GREETING)?;
    /// for _ in 0..2 {
    ///     pair.post_receive(domain.buffer(64)?)?;
    ///     pair.post_send(greeting.clone())?;
    /// }
    /// for _ in 0..4 {
    ///     if let Ok(message) = poller.wait(Duration::from_secs(1))?.check()?.into_received() {
    ///         assert_eq!(&message[..], GREETING);
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_static<T>(&self, memory: &'static [T]) -> Result<SharedBuffer<B>, RegisterFailure>
    where
        T: IntoBytes + Immutable + Sync,
    {
        let region = RegionInner::of_static(&self.inner, memory.as_bytes())?;
        Ok(SharedBuffer::new(SharedPart::of_read_only(region)))
    }
}
