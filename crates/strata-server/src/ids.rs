//! Names of answers.

use std::time::{SystemTime, UNIX_EPOCH};

/// The name of an answer, which its parts share.
#[derive(Clone, Debug)]
pub(crate) struct Id(String);

impl Id {
    /// One that no other answer has.
    pub(crate) fn new() -> Self {
        let random = |_| getrandom::u64().unwrap_or_default();
        let [a, b] = [0, 1].map(random);
        Self(format!("{a:016x}{b:016x}"))
    }

    /// With what an API puts before it.
    pub(crate) fn with(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.0)
    }

    /// Of the answer's tool call `index`.
    pub(crate) fn call(&self, index: usize) -> String {
        format!("call_{}{index:02}", &self.0[..22])
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Seconds since 1970 as a date and time in RFC 3339.
pub(crate) fn date(seconds: u64) -> String {
    let (days, of_day) = ((seconds / 86_400) as i64, seconds % 86_400);
    // Years that begin in March: a leap day is their last.
    let (era, of_era) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + 400 * era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", of_day / 3_600, of_day / 60 % 60, of_day % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `date -u` tells them.
    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }

    #[test]
    fn ids_are_not_the_same_twice() {
        let (a, b) = (Id::new(), Id::new());
        assert!(a.with("") != b.with("") && a.call(0) != a.call(1) && a.call(0) != b.call(0));
    }
}
