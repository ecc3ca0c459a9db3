//! Rule Q12: a lent batch settles on state that its closure cannot reach.
//! Error: E0599

use interlock::{Batch, Brand};

fn forge<'batch, B: Brand>(batch: Batch<'batch, B>) -> Batch<'batch, B> {
    drop(batch);
    Batch::default()
}

fn main() {}
