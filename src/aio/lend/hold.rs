//! A lease that lasts while a future runs.

use crate::aio::SharedPoller;
use crate::domain::Brand;
use crate::memory::{DeregisterError, Exposed, Lease, Memory};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

/// For tasks: feature `aio`.
impl<B: Brand, A: Exposed, M: Memory> Lease<B, A, M> {
    /// Runs `future` while peers have the memory. Then ends the lease, and gives the memory back.
    ///
    /// The lease ends when `future` is ready, after `timeout`, or at the deadline of the lease, whichever is first. If
    /// `future` was not ready in time, it is dropped, and the output is `None`.
    ///
    /// Dropping the future that this returns ends the lease, and drops the memory.
    ///
    /// # Errors
    ///
    /// As [`end`](Self::end): the device did not deregister the memory, or, on soft iWARP, a peer may go on using it.
    /// The lease comes back. The output is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// use interlock::{Context, RemoteWrite};
    /// use interlock::aio::SharedPoller;
    /// use std::time::Duration;
    /// interlock::domain! { struct Docs; }
    ///
    /// let domain = Context::open("soft0")?.named_domain(Docs)?;
    /// let (_queue, poller) = domain.completion_queue(4)?;
    /// let poller = SharedPoller::new(poller);
    /// let mut driver = poller.driver().expect("there is no other driver");
    /// let lease = domain.lease::<RemoteWrite, _>(domain.buffer(64)?, Duration::from_secs(1))?;
    /// let never = std::future::pending::<()>(); // waits for a peer that is silent
    /// let held = lease.hold(&poller, Duration::from_millis(5), never);
    /// let (said, buffer) = driver.block_on(held)??;
    /// assert_eq!((said, buffer.len()), (None, 64));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn hold<F: Future>(
        self,
        poller: &SharedPoller<B>,
        timeout: Duration,
        future: F,
    ) -> Result<(Option<F::Output>, M), DeregisterError<Self>> {
        let mut deadline = poller.sleep(timeout.min(self.remaining()));
        let mut future = pin!(Some(future));
        let output = poll_fn(|context| match future.as_mut().as_pin_mut().map(|future| future.poll(context)) {
            Some(Poll::Ready(output)) => Poll::Ready(Some(output)),
            Some(Poll::Pending) | None => Pin::new(&mut deadline).poll(context).map(|()| None),
        })
        .await;
        // Run these drops here, and not at the end of the function: they can run code of the program. If that code
        // panics here, `output` is dropped. At the end `output` is already being returned, and a panic would leak
        // `output`.
        future.set(None);
        drop(deadline);
        Ok((output, self.end()?))
    }
}
