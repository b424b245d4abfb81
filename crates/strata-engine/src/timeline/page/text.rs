//! Numbers for people, and texts that are nothing but text.

use std::fmt::{self, Display, Write};

/// A text between tags or in an attribute.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            c if c.is_control() => f.write_char(' '),
            c => f.write_char(c),
        })
    }
}

/// In three digits or so.
pub(super) fn time(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0 => "0 s".to_owned(),
        1..1_000_000 => format!("{:.0} us", (value / 1e3).max(1.0)),
        1_000_000..10_000_000 => format!("{:.2} ms", value / 1e6),
        10_000_000..1_000_000_000 => format!("{:.0} ms", value / 1e6),
        1_000_000_000..10_000_000_000 => format!("{:.2} s", value / 1e9),
        _ => format!("{:.1} s", value / 1e9),
    }
}

pub(super) fn percent(part: u64, whole: u64) -> String {
    let share = 100.0 * part as f64 / whole.max(1) as f64;
    // What is not all must not look like all.
    let digits = if part < whole && share > 99.95 { 3 } else { 1 };
    format!("{share:.digits$} %")
}

pub(super) fn bytes(bytes: u64) -> String {
    let value = bytes as f64;
    match bytes {
        0..1_000_000 => format!("{:.1} kB", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", value / 1e6),
        _ => format!("{:.2} GB", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let times = [0, 5, 1_499_000, 31_200_000, 1_940_000_000, 61_234_000_000].map(time);
        assert_eq!(times, ["0 s", "1 us", "1.50 ms", "31 ms", "1.94 s", "61.2 s"]);
        assert_eq!([percent(1, 3), percent(3, 3), percent(9_999_900, 10_000_000)], ["33.3 %", "100.0 %", "99.999 %"]);
        assert_eq!([bytes(1500), bytes(1_474_560), bytes(36_200_000_000)], ["1.5 kB", "1.5 MB", "36.20 GB"]);
    }

    #[test]
    fn no_text_is_more_than_text() {
        let text = Escaped("<b onclick='x' a=\"&\">\u{1b}é").to_string();
        assert_eq!(text, "&lt;b onclick=&#39;x&#39; a=&quot;&amp;&quot;&gt; é");
    }
}
