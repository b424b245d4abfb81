//! Notes to the user, on standard error: never mixed with results, and never a reason to fail. Whoever read them may have
//! gone away, which `eprintln!` would answer with a panic.

use std::fmt::Display;
use std::io::Write;

/// Writes a line.
pub(crate) fn line(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Writes a part of a line: a question, or progress.
pub(crate) fn part(text: impl Display) {
    let _ = write!(std::io::stderr(), "{text}");
}
