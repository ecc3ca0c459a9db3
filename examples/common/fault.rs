//! An error of an example, as one line of text.

use std::error::Error;
use std::fmt;

/// The text says what the program was doing, followed by the causes from the outermost to the innermost.
#[derive(Debug)]
pub(crate) struct Fault(String);

impl Fault {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `?` turns any error into a fault that includes the error's causes.
impl<E: Error> From<E> for Fault {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            text += &format!(": {inner}");
            cause = inner.source();
        }
        Self(text)
    }
}

/// Adds to an error what the program was doing.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl fmt::Display) -> Result<T, Fault>;
}

impl<T, E: Into<Fault>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl fmt::Display) -> Result<T, Fault> {
        self.map_err(|error| Fault(format!("{what}: {}", error.into())))
    }
}
