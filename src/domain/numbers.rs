//! The numbers of the shared receive queues of a domain, which the work ids of their requests carry.

use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// The numbers of one domain. The next user of a number continues the count of the last one, so that no work id is used
/// twice.
#[derive(Debug, Default)]
pub(crate) struct Numbers(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// Numbers that were used before, each with the count at which its next user begins. The number that was free for
    /// longest comes first.
    free: VecDeque<(u32, u64)>,
    /// The lowest number that was never used.
    fresh: u32,
}

/// A number that no other object of the domain has. Dropping this gives the number back.
#[derive(Debug)]
pub(crate) struct Number {
    number: u32,
    /// The count at which its user begins. When it is given back: the count at which the next user begins.
    pub(crate) next: u64,
    numbers: Arc<Numbers>,
}

impl Numbers {
    /// Takes a number below `most`; `None` if all are taken.
    pub(crate) fn take(self: &Arc<Self>, most: u32) -> Option<Number> {
        let mut table = lock(&self.0);
        let (number, next) = match table.free.pop_front() {
            Some(used) => used,
            None if table.fresh < most => {
                table.fresh += 1;
                (table.fresh - 1, 0)
            }
            None => return None,
        };
        Some(Number { number, next, numbers: Arc::clone(self) })
    }
}

impl Number {
    #[inline(always)]
    pub(crate) fn get(&self) -> u32 {
        self.number
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let mut table = lock(&self.numbers.0);
        table.free.push_back((self.number, self.next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_one_users_and_goes_on_where_it_ended() {
        let numbers = Arc::new(Numbers::default());
        let (Some(mut first), Some(second)) = (numbers.take(2), numbers.take(2)) else { panic!("two numbers") };
        assert_eq!((first.get(), second.get()), (0, 1));
        assert!(numbers.take(2).is_none());
        first.next = 7;
        drop(first);
        assert_eq!(numbers.take(2).map(|number| (number.get(), number.next)), Some((0, 7)));
    }
}
