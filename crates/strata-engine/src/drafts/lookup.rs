//! Drafts from the text itself: what followed the last time that it had its last tokens.

use std::collections::HashMap;

/// Remembers where each three and each two tokens of a text were last.
#[derive(Default)]
pub(super) struct Lookup {
    /// Position behind the last occurrence.
    threes: HashMap<[u32; 3], usize>,
    twos: HashMap<[u32; 2], usize>,
    /// Tokens of the text that were looked at.
    seen: usize,
}

impl Lookup {
    /// `most` tokens that may come after `text`, which goes on from the last one that this was asked about; none, where its
    /// last two tokens are new.
    pub(super) fn drafts(&mut self, text: &[u32], most: usize) -> Vec<u32> {
        // The last tokens themselves are what is looked for: they are remembered the next time.
        for end in self.seen..text.len() {
            if let Some(two) = text[..end].last_chunk() {
                self.twos.insert(*two, end);
            }
            if let Some(three) = text[..end].last_chunk() {
                self.threes.insert(*three, end);
            }
        }
        self.seen = text.len();
        let three = text.last_chunk().and_then(|three| self.threes.get(three));
        let found = three.or_else(|| text.last_chunk().and_then(|two| self.twos.get(two)));
        let Some(&from) = found else { return Vec::new() };
        let mut drafts: Vec<u32> = Vec::with_capacity(most);
        for at in from..from + most {
            // Where the text ends, it goes on with what was drafted.
            drafts.push(text.get(at).copied().unwrap_or_else(|| drafts[at - text.len()]));
        }
        drafts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_last_time_is_drafted() {
        let mut lookup = Lookup::default();
        assert!(lookup.drafts(&[], 3).is_empty() && lookup.drafts(&[1], 3).is_empty());
        assert_eq!(lookup.drafts(&[1, 2, 3, 4, 5, 1, 2], 3), [3, 4, 5]);
        // Three tokens count more than two, later ones more than earlier ones.
        let text = [7, 1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 5, 7, 1, 2];
        assert_eq!(Lookup::default().drafts(&text, 2), [3, 9]);
        assert_eq!(Lookup::default().drafts(&text[1..], 2), [5, 7]);
        assert!(Lookup::default().drafts(&[1, 2, 3, 2, 1], 2).is_empty(), "one token is too little");
    }

    #[test]
    fn a_text_that_repeats_itself_goes_on_so() {
        assert_eq!(Lookup::default().drafts(&[1, 2, 1, 2, 1], 5), [2, 1, 2, 1, 2]);
        assert_eq!(Lookup::default().drafts(&[6, 6, 6], 4), [6, 6, 6, 6]);
    }

    /// Token by token or at once: the same.
    #[test]
    fn it_does_not_matter_when_it_is_asked() {
        let text: Vec<u32> = (0..400u32).map(|i| i * i % 7 + i % 3).collect();
        let mut often = Lookup::default();
        for end in 0..=text.len() {
            let drafts = often.drafts(&text[..end], 5);
            assert_eq!(drafts, Lookup::default().drafts(&text[..end], 5), "{end}");
            // By search from the back.
            let before = |len: usize| {
                let last = text[..end].len().checked_sub(len).map(|from| &text[from..end])?;
                (len..end).rev().find(|at| text[..*at].ends_with(last))
            };
            let found = before(3).or_else(|| before(2));
            assert_eq!(drafts.first(), found.map(|at| &text[at]), "{end}");
        }
    }
}
