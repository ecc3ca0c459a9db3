//! Requests that bind and end memory windows.
//!
//! ASSUMPTION: on a provider whose windows are barriers (`Windows` of `provider/reviewed.rs`), the completion of an
//! invalidation or an unbinding comes after the device's last access through the window. This is assumed only for the
//! window types that `Windows` names.

use super::entry::sealed::Postable;
use super::work_queue::{AboutWindow, SendQueue};
use super::{Entry, Operation, PostError, RequestFlaw, WorkId};
use crate::domain::{Brand, DomainId};
use crate::memory::{
    Bindable, BoundWindow, Exposed, RemoteWindow, Window, WindowInner, WindowRights, WindowType, window_rights,
};
use crate::sys;
use std::ptr;

/// A window, and the memory over which it is to be bound.
type Unbound<B, K> = (Window<B, K>, Bindable<B>);

impl SendQueue {
    /// The reason why a request about `window` cannot be posted on this queue.
    fn window_flaw<B: Brand>(&self, window: &WindowInner) -> Option<RequestFlaw> {
        if B::CHECKED && window.domain() != self.domain() {
            return Some(RequestFlaw::OtherDomain);
        }
        if self.sessions().is_some() {
            return Some(RequestFlaw::NotInSession);
        }
        // This check comes before `serves`, which compares pairs by address: a new pair can have the address of a
        // destroyed one, whose windows have ended.
        if window.has_ended() {
            return Some(RequestFlaw::WindowEnded);
        }
        (!window.serves(self.raw())).then_some(RequestFlaw::WindowOfAnotherPair)
    }

    pub(crate) fn post_bind<W: WindowRights, B: Brand, K: WindowType>(
        &mut self,
        window: Window<B, K>,
        memory: Bindable<B>,
    ) -> Result<WorkId, PostError<Unbound<B, K>>> {
        let flaw = self.window_flaw::<B>(window.inner());
        let flaw = flaw.or_else(|| memory_flaw(&memory, self.domain(), window.inner().is_barrier()));
        if let Some(flaw) = flaw {
            return Err(PostError::Flawed { request: (window, memory), flaw });
        }
        if self.room() == 0 {
            return Err(self.refusal((window, memory)));
        }
        // `held` keeps others from freeing the window while its key changes and while the provider reads the window.
        let core = window.inner().core();
        let Some(mut held) = core.hold() else {
            return Err(PostError::Flawed { request: (window, memory), flaw: RequestFlaw::WindowEnded });
        };
        let mut inner = window.into_inner();
        let is_type_1 = inner.is_type_1();
        let (bind_info, rkey) = inner.begin_bind(&mut held, memory, window_rights::<W>());
        let entry = Entry::window(Operation::Bind, inner);
        if is_type_1 {
            return self.post_bind_type_1(held, entry, bind_info);
        }
        let what = AboutWindow::Bind { window: &held, rkey, bind_info };
        let restore = |entry: Entry, not_posted| {
            let mut inner = entry.into_window()?;
            let memory = inner.undo_bind(not_posted)?;
            Some((Window::of(inner), memory))
        };
        self.post_about_window(entry, what, restore)
    }

    pub(crate) fn post_revoke<B: Brand, K: WindowType>(
        &mut self,
        window: BoundWindow<B, K>,
    ) -> Result<WorkId, PostError<BoundWindow<B, K>>> {
        let inner = window.inner();
        let flaw = self.window_flaw::<B>(inner).or((!inner.is_revocable()).then_some(RequestFlaw::NoBarrier));
        if let Some(flaw) = flaw {
            return Err(PostError::Flawed { request: window, flaw });
        }
        if self.room() == 0 {
            return Err(self.refusal(window));
        }
        let core = inner.core();
        let Some(held) = core.hold() else {
            return Err(PostError::Flawed { request: window, flaw: RequestFlaw::WindowEnded });
        };
        let mut inner = window.into_inner();
        inner.begin_end();
        if inner.is_type_1() {
            let no_bytes = sys::ibv_mw_bind_info { mr: ptr::null_mut(), addr: 0, length: 0, mw_access_flags: 0 };
            return self.post_bind_type_1(held, Entry::window(Operation::Revoke, inner), no_bytes);
        }
        let rkey = inner.rkey();
        let entry = Entry::window(Operation::Revoke, inner);
        self.post_about_window(entry, AboutWindow::Invalidate { rkey: rkey.0 }, |entry, _| {
            entry.into_window().map(BoundWindow::of)
        })
    }

    pub(crate) fn post_send_invalidating<B: Brand, M: Postable<B>, A: Exposed>(
        &mut self,
        memory: M,
        window: &RemoteWindow<A>,
    ) -> Result<WorkId, PostError<M>> {
        let flaw = if self.sessions().is_some() {
            RequestFlaw::NotInSession
        } else if !self.limits().has_barrier() {
            RequestFlaw::NoBarrier
        } else {
            return self.post_invalidating(memory, window.region().rkey().0);
        };
        Err(PostError::Flawed { request: memory, flaw })
    }
}

/// The reason why no window can be bound over `memory`. If windows are not `barriers`, a window lets peers into the
/// whole region, so it must be bound over the whole region.
fn memory_flaw<B: Brand>(memory: &Bindable<B>, domain: DomainId, barriers: bool) -> Option<RequestFlaw> {
    if B::CHECKED && !memory.is_of(domain) {
        return Some(RequestFlaw::OtherDomain);
    }
    let (address, len_bytes, region_bytes) = memory.extent();
    if !address.is_multiple_of(8) || !len_bytes.is_multiple_of(8) {
        return Some(RequestFlaw::NotInWords { address, len_bytes });
    }
    (!barriers && len_bytes != region_bytes).then_some(RequestFlaw::WindowOverPart { len_bytes, region_bytes })
}
