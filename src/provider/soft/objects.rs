//! Tables of objects, addresses of objects, and protection domains.
#![forbid(unsafe_code)]

use super::{device::Device, fabric::State};
use libc::c_int;
use std::{
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, Ordering},
};

/// A table of objects. The number of an object is reused after the object is gone.
pub(super) struct Table<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    pub(super) fn insert(&mut self, object: T) -> usize {
        if let Some(index) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(index)
        {
            *slot = Some(object);
            return index;
        }
        self.slots.push(Some(object));
        self.slots.len() - 1
    }

    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.slots.get(index)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.slots.get_mut(index)?.as_mut()
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<T> {
        let object = self.slots.get_mut(index)?.take()?;
        self.free.push(index);
        Some(object)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(Option::as_mut)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// A protection domain.
pub(super) struct Pd {
    pub(super) context: usize,
    pub(super) device: usize,
    /// How many queue pairs, shared receive queues, memory regions, windows and address handles the domain has.
    pub(super) children: u32,
}

/// The address of the C struct of an object. Events name the object by this address; the device never dereferences it.
///
/// It is atomic only because the tables are shared between threads: a plain pointer is not `Send`.
pub(super) struct Raw<T>(AtomicPtr<T>);

impl<T> Default for Raw<T> {
    /// The address of an object that has no C struct yet: null.
    fn default() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }
}

impl<T> Raw<T> {
    pub(super) fn new(object: NonNull<T>) -> Self {
        Self(AtomicPtr::new(object.as_ptr()))
    }

    pub(super) fn get(&self) -> *mut T {
        self.0.load(Ordering::Relaxed)
    }
}

impl State {
    pub(super) fn device_of(&self, context: usize) -> Result<&Device, c_int> {
        let device = self.contexts.get(context).and_then(|context| self.devices.get(context.device));
        device.ok_or(libc::EINVAL)
    }

    pub(super) fn alloc_pd(&mut self, context: usize) -> Result<usize, c_int> {
        let info = self.contexts.get_mut(context).ok_or(libc::EINVAL)?;
        info.children += 1;
        let device = info.device;
        Ok(self.pds.insert(Pd { context, device, children: 0 }))
    }

    pub(super) fn dealloc_pd(&mut self, index: usize) -> Result<(), c_int> {
        let pd = self.pds.get(index).ok_or(libc::EINVAL)?;
        if pd.children > 0 {
            return Err(libc::EBUSY);
        }
        let context = pd.context;
        self.pds.remove(index);
        self.release_context(context);
        Ok(())
    }

    pub(super) fn release_context(&mut self, index: usize) {
        if let Some(context) = self.contexts.get_mut(index) {
            context.children = context.children.saturating_sub(1);
        }
    }

    /// Adds a child to a protection domain, and returns the domain's device.
    pub(super) fn adopt(&mut self, pd: usize) -> Result<usize, c_int> {
        let pd = self.pds.get_mut(pd).ok_or(libc::EINVAL)?;
        pd.children += 1;
        Ok(pd.device)
    }

    pub(super) fn release_pd(&mut self, index: usize) {
        if let Some(pd) = self.pds.get_mut(index) {
            pd.children = pd.children.saturating_sub(1);
        }
    }
}
