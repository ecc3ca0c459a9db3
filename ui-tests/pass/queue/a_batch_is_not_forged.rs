//! Rule Q12: a lent batch settles on state that its closure cannot reach.

use interlock::{Batch, Brand};

fn forge<'batch, B: Brand>(batch: Batch<'batch, B>) -> Batch<'batch, B> {
    batch
}

fn main() {}
