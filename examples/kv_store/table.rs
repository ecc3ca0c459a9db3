//! The slots of the table, and how a reader tells whether a slot is whole.
//!
//! A slot has a word and two cells. The word is a version, or a version and the session that locked it. An even version
//! names the current cell. The other cell is free, and an update goes there:
//!
//! ```text
//!   word:  version 6             version 7, session 3             version 8
//!   cells: [ "red" ] [ old  ]    [ "red" ] [ being written ]     [ "red", old ] [ "blue" ]
//! ```
//!
//! So a value stays whole while the next one is written, and a writer that dies in between destroys nothing. A slow
//! reader may be overtaken by two updates. It detects that, because the checksum of a cell covers the version, and the
//! version has changed.

use std::fmt;
use std::num::NonZeroU16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The owner of a lock: the number of a session. The server gives each session a number of its own.
pub(crate) type Owner = NonZeroU16;

pub(crate) type Key = Text<24>;
pub(crate) type Value = Text<48>;

pub(crate) const SLOT_BYTES: u64 = size_of::<Slot>() as u64;

/// The word that peers compare and swap. The lower 48 bits are the version, odd while locked; the upper 16 are the
/// owner.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    const VERSION: u64 = (1 << 48) - 1;

    pub(crate) fn is_locked(self) -> bool {
        self.0 & 1 == 1
    }

    /// The last finished version, which is even.
    pub(crate) fn version(self) -> u64 {
        self.0 & Self::VERSION & !1
    }

    /// The session that holds the lock.
    pub(crate) fn owner(self) -> Option<Owner> {
        Owner::new((self.0 >> 48) as u16).filter(|_| self.is_locked())
    }

    /// The word after `owner` locks this version.
    pub(crate) fn locked_by(self, owner: Owner) -> Self {
        Self(u64::from(owner.get()) << 48 | self.version() | 1)
    }

    /// The word without a lock: before an update, or after its writer is gone.
    pub(crate) fn unlocked(self) -> Self {
        Self(self.version())
    }

    /// The word after the update. The version wraps around to 4: 0 means empty, and 2 names the current cell.
    pub(crate) fn updated(self) -> Self {
        match (self.version() + 2) & Self::VERSION {
            0 => Self(4),
            version => Self(version),
        }
    }
}

/// A key or a value of up to `MOST` bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Text<const MOST: usize> {
    len_bytes: [u8; 8],
    /// Zeros fill the rest.
    bytes: [u8; MOST],
}

impl<const MOST: usize> Text<MOST> {
    pub(crate) fn new(text: &[u8]) -> Option<Self> {
        let mut bytes = [0; MOST];
        bytes.get_mut(..text.len())?.copy_from_slice(text);
        Some(Self { len_bytes: (text.len() as u64).to_le_bytes(), bytes })
    }

    pub(crate) fn empty() -> Self {
        Self { len_bytes: [0; 8], bytes: [0; MOST] }
    }

    /// The bytes of the text.
    pub(crate) fn text(&self) -> &[u8] {
        let len = u64::from_le_bytes(self.len_bytes) as usize;
        self.bytes.get(..len).unwrap_or_default()
    }
}

impl<const MOST: usize> fmt::Display for Text<MOST> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text().escape_ascii().fmt(f)
    }
}

/// A key and its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) value: Value,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Cell {
    checksum: u64,
    entry: Entry,
}

impl Cell {
    /// The cell of `entry` at `version`.
    pub(crate) fn new(version: u64, entry: Entry) -> Self {
        Self { checksum: checksum(version, entry.as_bytes()), entry }
    }
}

/// A checksum: each word of `bytes` can change each of its 64 bits.
fn checksum(version: u64, bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(version ^ 0x6b76_5f73_746f_7265, |sum, word| {
        let mut padded = [0; 8];
        padded[..word.len()].copy_from_slice(word);
        let mixed = (sum ^ u64::from_le_bytes(padded)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31)
    })
}

/// A slot of zeros is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Slot {
    pub(crate) word: Word,
    pub(crate) cells: [Cell; 2],
}

impl Slot {
    /// The cell that a version names.
    pub(crate) fn cell_of(version: u64) -> usize {
        (version / 2 % 2) as usize
    }

    /// The offset of that cell in the slot, in bytes.
    pub(crate) fn cell_offset(version: u64) -> u64 {
        (size_of::<Word>() + Self::cell_of(version) * size_of::<Cell>()) as u64
    }

    /// The entry: `Some(None)` if the slot is empty, `None` if its parts are of different versions.
    pub(crate) fn content(&self) -> Option<Option<Entry>> {
        let version = self.word.version();
        if version == 0 {
            return Some(None);
        }
        let cell = self.cells[Self::cell_of(version)];
        (cell == Cell::new(version, cell.entry)).then_some(Some(cell.entry))
    }
}

/// The slot where the search for `key` begins. It ends at the key or an empty slot. A slot never loses its key.
pub(crate) fn home(key: &Key, slots: u64) -> u64 {
    checksum(0, key.text()) % slots.max(1)
}
