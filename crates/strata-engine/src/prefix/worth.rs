//! Which checkpoint is worth least when there are too many.
//!
//! What a text at hand begins and ends with is kept as long as anything else can go. Of the others, a mark is worth the
//! tokens that would have to be read again without it, since the mark before it, by how likely somebody goes back there: the
//! less likely the farther it is from the end of its text, and the longer nobody used that. So the marks of a long text
//! lie dense near its end and ever sparser before.

use super::book::{Book, Mark, Point};

/// Going back by so many tokens is as likely as going back by none.
const NEAR_TOKENS: f64 = 256.0;

/// The index of the mark of least worth, for a place that has just made one or is to make some; and how much it is guarded
/// nonetheless.
pub(super) fn least(book: &Book, at: Option<usize>) -> (usize, u8) {
    let all = book.marks.iter().enumerate().map(|(index, mark)| (index, guard(book, mark, at), worth(book, mark)));
    let least = all.min_by(|a, b| a.1.cmp(&b.1).then(a.2.total_cmp(&b.2)));
    least.map(|(index, guard, _)| (index, guard)).expect("there are too many marks")
}

/// 3: the last prompt of the place at hand ends here; 2: its text begins so; 1: it is where that prompt was gone on from, or
/// another text at work ends or begins so; 0: none of these.
fn guard(book: &Book, mark: &Mark, at: Option<usize>) -> u8 {
    let of = |place: usize| {
        let end = book.places[place].prompt_tokens;
        match mark.point {
            _ if !mark.holders.contains(&place) => 0,
            _ if mark.text.len() == end => 3,
            Point::Root => 2,
            // Who changes the last message goes back there.
            _ => u8::from(book.last(place, |other| other.text.len() < end).is_some_and(|last| last.id == mark.id)),
        }
    };
    let is_at_work = |place: usize| book.places[place].is_busy && of(place) > 1;
    match at.map_or(0, of) {
        0 => u8::from((0..book.places.len()).any(is_at_work)),
        guard => guard,
    }
}

fn worth(book: &Book, mark: &Mark) -> f64 {
    let tokens = mark.text.len();
    let is_before = |other: &&Mark| other.text.len() < tokens && mark.text.starts_with(&other.text);
    let before = book.marks.iter().filter(is_before).map(|other| other.text.len()).max().unwrap_or(0);
    let back = |place: usize| match mark.point {
        Point::Root => 0,
        _ => book.places[place].text.len().saturating_sub(tokens),
    };
    let chance = |place: &usize| {
        let age = (book.clock - book.places[*place].used) as f64;
        1.0 / ((back(*place) as f64 + NEAR_TOKENS) * (1.0 + age))
    };
    let chance = mark.holders.iter().map(chance).fold(0.0, f64::max);
    (tokens - before) as f64 * chance * (1 + mark.uses) as f64
}
