//! Registered memory.

use interlock::{LocalRead, LocalWrite, RemoteRead};

/// Memory without any rights, and memory with only the peer's right to read.
#[test]
fn c071_memory_needs_no_right_to_be_written() {
    let domain = domain!();
    let nothing = domain.register::<LocalRead, _>(vec![3_u8; 100]).unwrap();
    let to_read = domain.register::<RemoteRead, _>(vec![3_u64; 100]).unwrap();
    assert_eq!((nothing.as_bytes().len(), to_read.remote().len()), (100, 800));
    assert_eq!((nothing.deregister().unwrap().len(), to_read.deregister().unwrap()), (100, vec![3; 100]));
}

/// An empty region is refused.
#[test]
fn c072_no_bytes_are_not_registered() {
    let domain = domain!();
    for memory in [Vec::<u64>::new(), Vec::with_capacity(10)] {
        let capacity = memory.capacity();
        let error = domain.register::<LocalWrite, _>(memory).unwrap_err();
        assert_eq!(error.source.to_string(), "a memory region must have at least one byte");
        assert_eq!(error.memory.capacity(), capacity, "it comes back");
    }
}
