//! Memory that the library cannot see: the program vouches for it.
#![allow(unsafe_code, reason = "declares the trait by which a program vouches; calls nothing")]

use std::ptr::NonNull;

/// An owner of memory of another kind than the library knows: of an allocator, a pool, a library in C.
///
/// Registered in [`Foreign`]: `domain.register::<LocalWrite, _>(Foreign(owner))`. The owner is taken apart first, and put
/// together again when the device is done: [`deregister`](crate::MemoryRegion::deregister) gives it back, and where the
/// region or its last buffer is dropped, the owner is rebuilt and dropped. So it frees its memory in its own `Drop`.
///
/// This is the only place where the library asks for `unsafe`.
///
/// # Safety
///
/// *Between* `into_parts` and `from_parts`, or for the life of the process where `from_parts` never comes (the device did
/// not let go of it, something was forgotten), for the bytes that `into_parts` gave out:
///
/// 0. **There.** They are memory of this process, readable and writable, at this address: not freed, moved, unmapped or
///    protected. (`len` may be 0; then nothing is asked of the address.)
/// 1. **Initialised**, all of them, also those that only the device will write.
/// 2. **Unaliased.** Nobody else reads or writes them: no other code of the process, thread, process or device. No reference
///    or box claims them, and the `Parts` do not: *moving* a `Box` or a `&mut` claims what it points to. So keep pointers.
/// 3. **Plain.** When they come back they hold any bytes whatever. The owner takes none of them for a value of a type for
///    which some bytes are none, and has no use for padding.
/// 4. **Private.** They are not of a file or a shared map (see [`SharedMap`](super::SharedMap)), nor of a device.
///
/// And of the two functions:
///
/// 5. The pointer may be used to read and write `len` bytes: it comes from the allocation as a whole, not from a `&[u8]` or a
///    reference to a part.
/// 6. `from_parts` gives an owner that is as good as the one that was taken apart, on any thread.
///
/// A panic in `into_parts` or `from_parts` is sound: memory leaks. In a destructor of the library it is reported by the
/// panic hook and goes no further.
///
/// # Examples
///
/// Memory of an allocator, with an alignment that no `Box<[u8]>` has:
///
/// ```
/// use interlock::{Context, Foreign, ForeignMemory, LocalWrite};
/// use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
/// use std::ptr::NonNull;
///
/// struct Aligned {
///     /// Invariant: allocated with `layout`, initialised, ours alone.
///     start: NonNull<u8>,
///     layout: Layout,
/// }
/// // SAFETY: as a `Box<[u8]>`, which is `Send`.
/// unsafe impl Send for Aligned {}
///
/// impl Aligned {
///     fn new(layout: Layout) -> Self {
///         assert_ne!(layout.size(), 0);
///         // SAFETY: the size is not 0.
///         let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
///         Self { start, layout }
///     }
/// }
///
/// impl Drop for Aligned {
///     fn drop(&mut self) {
///         // SAFETY: allocated with this layout (invariant).
///         unsafe { dealloc(self.start.as_ptr(), self.layout) };
///     }
/// }
///
/// // SAFETY: an allocation of its own (0), zeroed (1), known to nobody else and kept as a number of bytes only (2, 3, 4); the
/// // pointer is the allocator's (5); `from_parts` makes of it what `new` made (6).
/// unsafe impl ForeignMemory for Aligned {
///     type Parts = Layout;
///     fn into_parts(self) -> (NonNull<[u8]>, Layout) {
///         let this = std::mem::ManuallyDrop::new(self);
///         (NonNull::slice_from_raw_parts(this.start, this.layout.size()), this.layout)
///     }
///     unsafe fn from_parts(bytes: NonNull<[u8]>, layout: Layout) -> Self {
///         Self { start: bytes.cast(), layout }
///     }
/// }
///
/// interlock::domain! { struct Docs; }
/// let domain = Context::open("soft0")?.named_domain(Docs)?;
/// let memory = Aligned::new(Layout::from_size_align(8192, 4096)?);
/// let (_, buffer) = domain.register::<LocalWrite, _>(Foreign(memory))?.split();
/// assert_eq!(buffer.len(), 8192); // freed when the last part of it is dropped
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # References
///
/// `ibv_reg_mr(3)`, `fork(2)`: a child shares the pages; do not fork while the memory is registered.
pub unsafe trait ForeignMemory: Sized + Send + 'static {
    /// What the owner is made of besides the bytes; moved about while the device writes them.
    type Parts: Send + 'static;

    /// Takes the owner apart, without freeing anything.
    fn into_parts(self) -> (NonNull<[u8]>, Self::Parts);

    /// Puts it together again.
    ///
    /// # Safety
    ///
    /// Both came from one [`into_parts`](Self::into_parts), are used once, and nobody else uses the bytes any more.
    unsafe fn from_parts(bytes: NonNull<[u8]>, parts: Self::Parts) -> Self;
}

/// Memory of a kind of the program's own, to be registered; it comes back so too.
///
/// # Rules
///
/// Each is kept by the compiler; programs that break them are in `ui-tests/memory`.
///
/// - M22: memory that the library cannot see is vouched for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Foreign<F>(pub F);
