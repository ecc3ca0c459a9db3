//! Rule Q12: a lent batch settles on state that its closure cannot reach.

use interlock::Brand;
use interlock::request::Batch;

fn forge<'batch, 'env, B: Brand>(batch: Batch<'batch, 'env, B>) -> Batch<'batch, 'env, B> {
    batch
}

fn main() {}
