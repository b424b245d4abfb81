//! Texts that end an answer.
//!
//! Owns: text that may become the beginning of such a text. Promises: the answer ends before the stop text that is complete
//! first, of several that are complete at the same place the longest; whatever pieces the text comes in, the same; no part
//! of a stop text is given, and all other text as soon as it cannot be part of one.

/// Looks for stop texts in a text that comes in pieces.
#[derive(Clone, Debug, Default)]
pub(super) struct Stops {
    texts: Vec<String>,
    /// The end of the text so far, as far as a stop text may begin there.
    held: String,
}

impl Stops {
    /// Empty ones stop nothing.
    pub(super) fn new(mut texts: Vec<String>) -> Self {
        texts.retain(|text| !text.is_empty());
        Self { texts, held: String::new() }
    }

    /// Adds a piece. Gives what is surely text of the answer, and the stop text that ended it, if one did: what came after it
    /// is forgotten.
    pub(super) fn push(&mut self, piece: &str) -> (String, Option<String>) {
        let mut text = std::mem::take(&mut self.held);
        text.push_str(piece);
        let found = self.texts.iter().filter_map(|stop| Some((text.find(stop.as_str())?, stop)));
        if let Some((start, stop)) = found.min_by_key(|(start, stop)| (start + stop.len(), *start)) {
            text.truncate(start);
            return (text, Some(stop.clone()));
        }
        self.held = text.split_off(text.len() - self.texts.iter().map(|stop| overlap(&text, stop)).max().unwrap_or(0));
        (text, None)
    }

    /// What was held back, when no more text comes.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes of the longest end of `text` with which `stop` begins, without being all of it.
fn overlap(text: &str, stop: &str) -> usize {
    let lens = stop.char_indices().map(|(len_bytes, _)| len_bytes);
    lens.rev().find(|len_bytes| text.ends_with(&stop[..*len_bytes])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Everything that pieces give, and the stop text.
    fn all<'a>(texts: &[String], pieces: impl IntoIterator<Item = &'a str>) -> (String, Option<String>) {
        let mut stops = Stops::new(texts.to_vec());
        let mut given = String::new();
        for piece in pieces {
            let (text, stop) = stops.push(piece);
            given.push_str(&text);
            if stop.is_some() {
                return (given, stop);
            }
        }
        given.push_str(&stops.finish());
        (given, None)
    }

    /// By looking at every end of the text in turn.
    fn simple(texts: &[String], whole: &str) -> (String, Option<String>) {
        for end in (1..=whole.len()).filter(|end| whole.is_char_boundary(*end)) {
            let ends = |stop: &&String| !stop.is_empty() && whole[..end].ends_with(stop.as_str());
            if let Some(stop) = texts.iter().filter(ends).max_by_key(|stop| stop.len()) {
                return (whole[..end - stop.len()].to_owned(), Some(stop.clone()));
            }
        }
        (whole.to_owned(), None)
    }

    #[test]
    fn a_text_is_held_back_while_it_may_become_a_stop_text() {
        let mut stops = Stops::new(vec!["\nUser:".to_owned(), "END".to_owned()]);
        assert_eq!(stops.push("one\nUs"), ("one".to_owned(), None));
        assert_eq!(stops.push("eless E"), ("\nUseless ".to_owned(), None));
        assert_eq!(stops.push("N"), (String::new(), None));
        assert_eq!(stops.push("D and more"), (String::new(), Some("END".to_owned())));
        assert_eq!(Stops::new(vec![String::new()]).push("text"), ("text".to_owned(), None));
    }

    proptest! {
        #[test]
        fn any_pieces_give_the_same(
            texts in prop::collection::vec("[abé]{0,4}", 0..4),
            whole in "[abcé]{0,24}",
            cuts in prop::collection::vec(0usize..40, 0..6),
        ) {
            let want = simple(&texts, &whole);
            prop_assert_eq!(&all(&texts, [whole.as_str()]), &want);
            let mut letters = [0; 4];
            let single: Vec<String> = whole.chars().map(|c| c.encode_utf8(&mut letters).to_owned()).collect();
            prop_assert_eq!(&all(&texts, single.iter().map(String::as_str)), &want);
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|at| whole.is_char_boundary(*at)).collect();
            cuts.extend([0, whole.len()]);
            cuts.sort_unstable();
            prop_assert_eq!(&all(&texts, cuts.windows(2).map(|cut| &whole[cut[0]..cut[1]])), &want);
        }
    }
}
