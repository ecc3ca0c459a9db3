//! Rule Q12: a lent batch settles on state that its closure cannot reach.
//! Error: E0599

use interlock::Brand;
use interlock::request::Batch;

fn forge<'batch, 'env, B: Brand>(batch: Batch<'batch, 'env, B>) -> Batch<'batch, 'env, B> {
    drop(batch);
    Batch::default()
}

fn main() {}
