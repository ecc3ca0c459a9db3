//! Numbers on the command line of an example.

use super::fault::Fault;
use interlock::number::Mtu;
use lexopt::prelude::*;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The value of `option`, a number in `range`.
pub(crate) fn number<T>(parser: &mut lexopt::Parser, option: &str, range: RangeInclusive<T>) -> Result<T, Fault>
where
    T: FromStr + PartialOrd + Display,
{
    let text = parser.value()?.string()?;
    match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => {
            let (least, most) = (range.start(), range.end());
            Err(Fault::new(format!("{option} takes a number from {least} to {most}, not {text:?}")))
        }
    }
}

/// The value of `-m`, a path MTU in bytes.
pub(crate) fn mtu(parser: &mut lexopt::Parser) -> Result<Mtu, Fault> {
    let bytes = number(parser, "-m", 256..=4096)?;
    let mut all = (1..=5).filter_map(|code| Mtu::from_code(code).ok());
    let found = all.find(|mtu| mtu.bytes() == bytes);
    found.ok_or_else(|| Fault::new(format!("-m takes 256, 512, 1024, 2048 or 4096, not {bytes}")))
}
