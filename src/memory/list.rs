//! Lists of buffers, which one request sends from or fills.
#![allow(unsafe_code, reason = "slices of transparent wrappers")]

use super::Buffer;
use super::part::UniquePart;
use crate::domain::DomainId;
use crate::domain::brand::Branded;
use crate::sys;
use std::{fmt, marker::PhantomData, ptr::NonNull, slice};

/// Several buffers of domain `B` for one request, which sends or fills them in order. One word.
///
/// Make a list once, outside of the data path, and post it again and again: each post reads how much of each buffer is
/// filled. A queue pair takes lists of up to [`Limits::elements`](crate::Limits::elements) buffers.
///
/// # Examples
///
/// A header and a body, sent as one message and received apart:
///
/// ```
/// use interlock::{Context, Limits, Work};
/// use interlock::memory::BufferList;
/// use std::time::Duration;
/// interlock::domain! { struct Docs; }
///
/// let domain = Context::open("soft0")?.named_domain(Docs)?;
/// let port = domain.context().active_port()?;
/// let (queue, mut poller) = domain.completion_queue(8)?;
/// let limits = Limits { elements: 2, ..Limits::default() };
/// let pair = domain.reliable(&queue, &limits)?.into_init(&port)?;
/// let myself = pair.endpoint();
/// let mut pair = pair.connect(&myself)?;
/// pair.post_receive(BufferList::new(domain.buffers(2, 8)?))?;
///
/// let mut message = BufferList::new(domain.buffers(2, 8)?);
/// message[0].write(b"4 bytes:")?;
/// message[1].write(b"body")?;
/// pair.post_send(message)?;
/// loop {
///     if let Work::Scattered(scattered) = poller.wait(Duration::from_secs(1))?.check()?.into_work() {
///         assert_eq!((&scattered.list[0][..], &scattered.list[1][..]), (&b"4 bytes:"[..], &b"body"[..]));
///         break;
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "sg_list")]
#[doc(alias = "ibv_sge")]
#[doc(alias = "num_sge")]
pub struct BufferList<B> {
    inner: Box<ListInner>,
    brand: Branded<B>,
}

/// The buffers of a list, and the elements that a request points to.
#[repr(align(64))]
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct ListInner {
    parts: Vec<UniquePart>,
    /// Has capacity for one element of each part.
    elements: Vec<sys::ibv_sge>,
    /// How much of each part was filled before a read or an atomic was posted, to be restored if the post is refused.
    before: Vec<usize>,
}

impl<B> BufferList<B> {
    /// Makes a list of these buffers, in this order.
    pub fn new(buffers: Vec<Buffer<B>>) -> Self {
        let parts: Vec<UniquePart> = buffers.into_iter().map(Buffer::into_part).collect();
        let (elements, before) = (Vec::with_capacity(parts.len()), vec![0; parts.len()]);
        Self { inner: Box::new(ListInner { parts, elements, before }), brand: PhantomData }
    }

    /// Takes the list apart into its buffers.
    pub fn into_buffers(self) -> Vec<Buffer<B>> {
        self.inner.parts.into_iter().map(Buffer::new).collect()
    }

    /// How many bytes are filled in all.
    pub fn filled_bytes(&self) -> usize {
        self.inner().filled()
    }

    #[inline(always)]
    pub(crate) fn inner(&self) -> &ListInner {
        &self.inner
    }

    #[inline(always)]
    pub(crate) fn inner_mut(&mut self) -> &mut ListInner {
        &mut self.inner
    }

    /// The pointer of the box. Whoever has it owns the list.
    #[inline(always)]
    pub(crate) fn into_raw(self) -> NonNull<ListInner> {
        NonNull::from(Box::leak(self.inner))
    }

    /// Rebuilds the list.
    #[inline(always)]
    pub(crate) fn of_inner(inner: Box<ListInner>) -> Self {
        Self { inner, brand: PhantomData }
    }
}

/// A pointer to the first element, and the number of elements. If the number is 0, the pointer is still readable,
/// because some providers read the first element without looking at the number.
fn first_of(elements: &mut [sys::ibv_sge]) -> (*mut sys::ibv_sge, usize) {
    match elements {
        [] => ((&raw const sys::NO_ELEMENT).cast_mut(), 0),
        _ => (elements.as_mut_ptr(), elements.len()),
    }
}

impl ListInner {
    pub(crate) fn filled(&self) -> usize {
        self.parts.iter().map(|part| part.filled()).sum()
    }

    /// Whether each of its buffers is of that domain.
    pub(crate) fn is_of(&self, domain: DomainId) -> bool {
        self.parts.iter().all(|part| part.is_of(domain))
    }

    pub(crate) fn capacity(&self) -> usize {
        self.parts.iter().map(|part| part.capacity()).sum()
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// The elements of the filled bytes. Empty ones are left out, because a length of 0 means 2^31 bytes to some
    /// devices.
    pub(crate) fn filled_elements(&mut self) -> (*mut sys::ibv_sge, usize) {
        let Self { parts, elements, .. } = self;
        elements.clear();
        // `BufferList::new` reserved capacity for one element of each part, so `extend` does not allocate.
        elements.extend(parts.iter().map(|part| part.filled_element()).filter(|element| element.length != 0));
        first_of(elements)
    }

    /// The elements of all bytes, without empty ones.
    pub(crate) fn whole_elements(&mut self) -> (*mut sys::ibv_sge, usize) {
        let Self { parts, elements, .. } = self;
        elements.clear();
        elements.extend(parts.iter().map(|part| part.whole_element_copy()).filter(|element| element.length != 0));
        first_of(elements)
    }

    /// Marks `len_bytes` bytes as filled, from the front of the first buffer on.
    pub(crate) fn fill(&self, mut len_bytes: usize) {
        for part in &self.parts {
            let filled = len_bytes.min(part.capacity());
            part.set_filled(filled);
            len_bytes -= filled;
        }
    }

    /// Records how much is filled, for [`restore`](Self::restore).
    pub(crate) fn note(&mut self) {
        self.before.iter_mut().zip(&self.parts).for_each(|(before, part)| *before = part.filled());
    }

    pub(crate) fn restore(&self) {
        self.before.iter().zip(&self.parts).for_each(|(&before, part)| part.set_filled(before));
    }
}

impl fmt::Debug for ListInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.parts).finish()
    }
}

impl<B> std::ops::Deref for BufferList<B> {
    type Target = [Buffer<B>];
    fn deref(&self) -> &[Buffer<B>] {
        let parts = &self.inner.parts;
        // SAFETY: `Buffer` is a transparent wrapper of `UniquePart`, so the slices have the same layout.
        unsafe { slice::from_raw_parts(parts.as_ptr().cast(), parts.len()) }
    }
}

impl<B> std::ops::DerefMut for BufferList<B> {
    fn deref_mut(&mut self) -> &mut [Buffer<B>] {
        let parts = &mut self.inner.parts;
        // SAFETY: `Buffer` is a transparent wrapper of `UniquePart`, so the slices have the same layout. The caller can
        // swap other buffers in. Their brand is `B`, so this list is allowed to contain them.
        unsafe { slice::from_raw_parts_mut(parts.as_mut_ptr().cast(), parts.len()) }
    }
}

impl<B> FromIterator<Buffer<B>> for BufferList<B> {
    fn from_iter<I: IntoIterator<Item = Buffer<B>>>(buffers: I) -> Self {
        Self::new(buffers.into_iter().collect())
    }
}

impl<B> fmt::Debug for BufferList<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

static_assertions::assert_eq_size!(BufferList<()>, Option<BufferList<()>>, *const ());
static_assertions::assert_not_impl_any!(BufferList<()>: Clone, Copy);
