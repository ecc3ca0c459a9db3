//! What the service does: it answers in capitals. Requests that begin with `hold` wait for a gate, so that a program
//! can have requests in flight for as long as it wants.

use crate::rpc::Handler;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

pub(crate) struct Service {
    is_open: watch::Sender<bool>,
    /// How many requests have come to the gate.
    held: watch::Sender<usize>,
}

impl Service {
    /// The gate is open.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { is_open: watch::Sender::new(true), held: watch::Sender::new(0) })
    }

    pub(crate) fn handler(self: &Arc<Self>) -> Handler {
        let this = Arc::clone(self);
        Arc::new(move |request| Box::pin(Arc::clone(&this).answer(request)))
    }

    async fn answer(self: Arc<Self>, request: Vec<u8>) -> Vec<u8> {
        if request.starts_with(b"hold") {
            self.held.send_modify(|held| *held += 1);
            // `self` owns the sender, so the wait does not fail.
            _ = self.is_open.subscribe().wait_for(|is_open| *is_open).await;
        }
        request.to_ascii_uppercase()
    }

    /// Closes the gate, and counts from 0 again.
    pub(crate) fn close_gate(&self) {
        self.is_open.send_replace(false);
        self.held.send_replace(0);
    }

    pub(crate) fn open_gate(&self) {
        self.is_open.send_replace(true);
    }

    /// Waits until `count` requests have come to the gate; false if they do not come in time.
    pub(crate) async fn holds(&self, count: usize, within: Duration) -> bool {
        timeout(within, self.held.subscribe().wait_for(|held| *held >= count)).await.is_ok()
    }
}
