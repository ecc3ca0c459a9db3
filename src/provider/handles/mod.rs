//! Owned handles of what a provider made, with verbs that are safe to call.
//!
//! A method of [`Provider`] is `unsafe` because it takes a pointer and cannot know that the object behind it is alive.
//! A handle owns its object from the verb that creates it to the verb that ends it, so it knows. The layers above call
//! the handle and need no `unsafe` code.
//!
//! Registered memory has no handle here: `memory::registration` calls its verbs, because it also owns the memory.
//!
//! ```text
//!   OpenContext ◀── Domain ◀─┬─ Address
//!        ▲                   ├─ SharedQueue ◀─┐
//!        │                   └─ Pair ─────────┤   each handle holds what its object needs
//!     Channel ◀── CompletionQueue ◀───────────┘
//! ```
mod event;
mod objects;
mod quiescent;
mod rights;

pub(crate) use event::{About, RawEvent};
pub(crate) use objects::{
    Address, BindMw, Channel, CompletionQueue, Domain, OpenContext, Pair, PairNeeds, SharedQueue,
};
pub(crate) use quiescent::Quiescent;
pub(crate) use rights::{PostEnd, PostRight};

use super::Provider;
pub(crate) use crate::sys::ObjectPtr;
use crate::verb_error::VerbError;
use std::{mem, ptr::NonNull, sync::Arc};

/// A kind of object, and the verb that ends it.
pub(crate) trait Object: Sized {
    /// The objects that must outlive this one. Cheap to clone.
    type Needs: Clone;
    /// What the handle keeps besides the object and its `Needs`: [`Rights`](rights::Rights) if requests are posted to
    /// the object, else nothing.
    type Kept: rights::Kept;

    fn provider(needs: &Self::Needs) -> &'static dyn Provider;
    /// Calls the verb that ends the object. If the verb fails, the object is still alive.
    fn end(handle: &mut Handle<Self>) -> Result<(), VerbError>;
}

/// An object of a provider, owned from the verb that made it to the verb that [ends](Self::end) it.
///
/// Dropping a handle whose object was not ended leaks the object, with everything that the object needs. Only the owner
/// of the handle knows when the object may be ended.
pub(crate) struct Handle<T: Object> {
    /// # Invariants
    ///
    /// 0. The object was made by the provider of `needs`, and is alive while `is_alive`. Nobody else ends it.
    raw: ObjectPtr<T>,
    is_alive: bool,
    /// 1. Keeps the objects alive that this object was made from.
    needs: T::Needs,
    kept: T::Kept,
}

impl<T: Object> Handle<T> {
    fn provider(&self) -> &'static dyn Provider {
        T::provider(&self.needs)
    }

    /// The pointer, to name the object in other verbs and to compare its address.
    pub(crate) fn raw(&self) -> NonNull<T> {
        self.raw.0
    }

    /// The address by which events name the object.
    pub(crate) fn address(&self) -> usize {
        self.raw.0.addr().get()
    }

    /// The objects that this object was made from.
    pub(crate) fn needs(&self) -> &T::Needs {
        &self.needs
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.is_alive
    }

    /// The pointer, for `verb`. Fails if the object was ended or [given up](Self::give_up).
    fn alive(&self, verb: &'static str) -> Result<NonNull<T>, VerbError> {
        if self.is_alive { Ok(self.raw.0) } else { Err(VerbError::new(verb, libc::EIO)) }
    }

    /// Ends the object. After `Err` it is still alive.
    ///
    /// Each object that needs this one holds its handle in an `Arc`, so `&mut` shows that no such object is left. A
    /// work queue that posts to the object does not hold the handle, but a [`PostRight`]. While there is one, this
    /// fails with `EBUSY`.
    pub(crate) fn end(&mut self) -> Result<(), VerbError> {
        T::end(self)?;
        self.is_alive = false;
        Ok(())
    }

    /// [`end`](Self::end) for a shared handle. Fails with `EBUSY` if another clone of the `Arc` exists.
    pub(crate) fn end_shared(this: &mut Arc<Self>, verb: &'static str) -> Result<(), VerbError> {
        Arc::get_mut(this).ok_or(VerbError::new(verb, libc::EBUSY))?.end()
    }

    /// Leaks the object with everything it needs, because the provider may have ended it in part. The handle refuses
    /// all verbs from now on.
    pub(crate) fn give_up(&mut self) {
        drop(self.take());
    }

    /// Moves the object out. The handle that is left behaves as if the object had ended.
    pub(crate) fn take(&mut self) -> Self {
        Self {
            raw: self.raw,
            is_alive: mem::take(&mut self.is_alive),
            needs: self.needs.clone(),
            kept: mem::take(&mut self.kept),
        }
    }
}

impl<T: Object> Drop for Handle<T> {
    fn drop(&mut self) {
        if self.is_alive {
            mem::forget(self.needs.clone());
        }
    }
}
