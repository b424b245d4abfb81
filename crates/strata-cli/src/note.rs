//! Notes to the user, on standard error: never mixed with results, and never a reason to fail. Whoever read them may have
//! gone away, which `eprintln!` would answer with a panic. What a note quotes from a file may be long, or hold codes that
//! a terminal obeys: it is cut and made visible.

use std::fmt::{Display, Write as _};
use std::io::Write;

/// Characters of a note that are shown.
const SHOWN_CHARACTERS: usize = 4_000;

/// Writes a line, or a few.
pub(crate) fn line(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{}", visible(&text.to_string()));
}

/// Writes a part of a line: a question, or progress.
pub(crate) fn part(text: impl Display) {
    let _ = write!(std::io::stderr(), "{text}");
}

/// `text` with its control characters written out, but for line breaks and tabs, and cut where it is too long.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(SHOWN_CHARACTERS));
    for c in text.chars().take(SHOWN_CHARACTERS) {
        if c.is_control() && c != '\n' && c != '\t' {
            let _ = write!(shown, "{}", c.escape_default());
        } else {
            shown.push(c);
        }
    }
    if text.chars().nth(SHOWN_CHARACTERS).is_some() {
        let _ = write!(shown, " ... ({} bytes)", text.len());
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_made_visible_and_what_is_long_is_cut() {
        assert_eq!(visible("a\x1b[31m\u{9b}1m b\n\tc\r"), "a\\u{1b}[31m\\u{9b}1m b\n\tc\\r");
        let long = visible(&"x".repeat(50_000));
        assert!(long.len() < 4_100 && long.ends_with("(50000 bytes)"));
    }
}
