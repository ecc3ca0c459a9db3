//! The key to methods of sealed traits.
//!
//! Anybody with a bound on a sealed trait can call the methods of its supertraits. So those methods take a [`Key`],
//! which only this crate can make.

/// Shows that the caller is inside this crate.
#[derive(Clone, Copy, Debug)]
#[allow(unnameable_types, reason = "in signatures of sealed traits only")]
pub struct Key(pub(crate) ());

/// The key.
pub(crate) const KEY: Key = Key(());
