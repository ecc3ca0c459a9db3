//! Memory of a kind that the library does not know: the program vouches for it.
#![allow(unsafe_code, reason = "declares the trait by which a program vouches; calls nothing")]

use std::ptr::NonNull;

/// An owner of memory of a kind that the library does not know: of an allocator, a pool, a library in C.
///
/// It is registered inside of a [`Foreign`]: `domain.register::<LocalWrite, _>(Foreign(owner))`. The library first
/// takes the owner apart, and rebuilds it when the device is done: [`deregister`](crate::MemoryRegion::deregister)
/// gives it back. When the region or its last buffer is dropped, the owner is rebuilt and dropped, so it frees its
/// memory in its own `Drop`.
///
/// Nothing else of the library needs `unsafe` in the program.
///
/// # Safety
///
/// The implementation guarantees the following of the bytes that `into_parts` returned, *between* `into_parts` and
/// `from_parts`. (If `from_parts` is never called, because the device would not end the registration or the program
/// forgot something: for the life of the process.)
///
/// 0. **Valid.** They are memory of this process, readable and writable, at this address: not freed, moved, unmapped or
///    protected. (If `len` is 0, the address may be any.)
/// 1. **Initialised.** All of them are initialised, also those that only the device will write.
/// 2. **Unaliased.** Nobody else reads or writes them: no other code of the process, thread, process or device. No
///    reference or box claims them, and the `Parts` contain none: *moving* a `Box` or a `&mut` claims what it points
///    to. So keep raw pointers.
/// 3. **Any bytes.** They may hold any bytes when they come back. The owner does not read them as a type for which some
///    bytes are no value, and does not rely on padding.
/// 4. **Private.** They are not part of a file, of a shared map (see [`SharedMap`](super::SharedMap)) or of a device.
///
/// The two functions have two more conditions:
///
/// 5. The pointer may be used to read and write `len` bytes: it comes from the allocation itself, not from a `&[u8]` or
///    from a reference to a part of it.
/// 6. `from_parts` gives an owner equal to the one that was taken apart, on any thread.
///
/// A panic in `into_parts` or `from_parts` is sound: it leaks memory. In a destructor of the library the panic hook
/// reports it, and it does not unwind further.
///
/// # Examples
///
/// Memory of an allocator, with an alignment that no `Box<[u8]>` has:
///
/// ```
/// use interlock::{Context, LocalWrite};
/// use interlock::memory::{Foreign, ForeignMemory};
/// use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
/// use std::ptr::NonNull;
///
/// struct Aligned {
///     /// Invariant: allocated with `layout`, initialised, and used by nobody else.
///     start: NonNull<u8>,
///     layout: Layout,
/// }
/// // SAFETY: it owns its bytes like a `Box<[u8]>`, which is `Send`.
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
///         // SAFETY: `start` was allocated with this layout (invariant).
///         unsafe { dealloc(self.start.as_ptr(), self.layout) };
///     }
/// }
///
/// // SAFETY: the bytes are one whole allocation (0), zeroed (1), which nobody else knows, and of which only a
/// // pointer is kept (2, 3, 4). The pointer is the allocator's (5). `from_parts` rebuilds what `new` made (6).
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
    /// The parts of the owner besides the bytes. The library may move them while the device writes the bytes.
    type Parts: Send + 'static;

    /// Takes the owner apart, without freeing anything.
    fn into_parts(self) -> (NonNull<[u8]>, Self::Parts);

    /// Rebuilds the owner.
    ///
    /// # Safety
    ///
    /// `bytes` and `parts` came from one [`into_parts`](Self::into_parts) and are used once. Nobody else uses the bytes
    /// any more.
    unsafe fn from_parts(bytes: NonNull<[u8]>, parts: Self::Parts) -> Self;
}

/// Wraps an owner that implements [`ForeignMemory`], to be registered. The memory comes back in this wrapper.
///
/// # Rules
///
/// The compiler enforces each of them; programs that break them are in `ui-tests/memory`.
///
/// - M22: memory that the library cannot see is vouched for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Foreign<F>(pub F);
