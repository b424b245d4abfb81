//! The line that a user types: its cursor, and what was typed before.

use ratatui::text::Span;

/// Characters of a message; more is cut when it is pasted.
const MOST_CHARACTERS: usize = 1 << 20;

/// A line being typed. Line breaks come by pasting.
#[derive(Default)]
pub(super) struct Input {
    text: Vec<char>,
    /// Characters before the cursor.
    cursor: usize,
    earlier: Vec<String>,
    /// Which of `earlier` is shown, and what was typed before it was.
    shown: Option<(usize, String)>,
}

impl Input {
    pub(super) fn insert(&mut self, text: &str) {
        let room = MOST_CHARACTERS - self.text.len().min(MOST_CHARACTERS);
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let is_text = |c: &char| !c.is_control() || *c == '\n' || *c == '\t';
        let new: Vec<char> = text.chars().filter(is_text).take(room).collect();
        let len = new.len();
        self.text.splice(self.cursor..self.cursor, new);
        self.cursor += len;
    }

    pub(super) fn remove_before(&mut self) {
        if self.cursor > 0 {
            self.cursor -= 1;
            self.text.remove(self.cursor);
        }
    }

    pub(super) fn remove_after(&mut self) {
        if self.cursor < self.text.len() {
            self.text.remove(self.cursor);
        }
    }

    pub(super) fn left(&mut self) {
        self.cursor = self.cursor.saturating_sub(1);
    }

    pub(super) fn right(&mut self) {
        self.cursor = (self.cursor + 1).min(self.text.len());
    }

    pub(super) fn start(&mut self) {
        self.cursor = 0;
    }

    pub(super) fn end(&mut self) {
        self.cursor = self.text.len();
    }

    pub(super) fn clear(&mut self) {
        self.set("");
        self.shown = None;
    }

    /// Takes the line, if there is something on it, and remembers it.
    pub(super) fn take(&mut self) -> Option<String> {
        let text: String = self.text.iter().collect::<String>().trim().to_owned();
        self.clear();
        if text.is_empty() {
            return None;
        }
        if self.earlier.last() != Some(&text) {
            self.earlier.push(text.clone());
        }
        Some(text)
    }

    /// The line before the one that is shown.
    pub(super) fn up(&mut self) {
        let (at, typed) = match self.shown.take() {
            Some(shown) => shown,
            None => (self.earlier.len(), self.text.iter().collect()),
        };
        let at = at.saturating_sub(1);
        if let Some(text) = self.earlier.get(at).cloned() {
            self.set(&text);
            self.shown = Some((at, typed));
        }
    }

    /// The line after it; at the end what was typed.
    pub(super) fn down(&mut self) {
        let Some((at, typed)) = self.shown.take() else { return };
        match self.earlier.get(at + 1).cloned() {
            Some(text) => {
                self.set(&text);
                self.shown = Some((at + 1, typed));
            }
            None => self.set(&typed),
        }
    }

    fn set(&mut self, text: &str) {
        self.text = text.chars().collect();
        self.end();
    }

    /// The part of the line around the cursor that `width` columns hold, and the cursor's column in it.
    pub(super) fn visible(&self, width: usize) -> (String, usize) {
        let shown = |c: &char| match c {
            '\n' => '⏎',
            '\t' => ' ',
            c => *c,
        };
        // The cursor may stand behind the last character.
        let mut first = self.cursor;
        let mut columns = 1;
        while first > 0 && columns + column_width(shown(&self.text[first - 1])) <= width {
            first -= 1;
            columns += column_width(shown(&self.text[first]));
        }
        let mut text = String::new();
        let mut used = 0;
        for c in self.text[first..].iter().map(shown) {
            used += column_width(c);
            if used > width {
                break;
            }
            text.push(c);
        }
        (text, columns - 1)
    }
}

fn column_width(c: char) -> usize {
    Span::raw(c.encode_utf8(&mut [0; 4]) as &str).width()
}

/// A text in lines of at most `width` columns, broken at spaces where that is possible; codes that a terminal obeys are
/// left out.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let line: String = line.replace('\t', "    ").chars().filter(|c| !c.is_control()).collect();
        let (mut shown, mut columns) = (String::new(), 0);
        for word in line.split_inclusive(' ') {
            if columns > 0 && columns + Span::raw(word.trim_end()).width() > width {
                lines.push(std::mem::take(&mut shown));
                columns = 0;
            }
            for c in word.chars() {
                let more = column_width(c);
                if columns + more > width {
                    if c == ' ' {
                        // At the end of a line it is not seen.
                        continue;
                    }
                    lines.push(std::mem::take(&mut shown));
                    columns = 0;
                }
                shown.push(c);
                columns += more;
            }
        }
        lines.push(shown);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(input: &Input) -> (String, usize) {
        input.visible(20)
    }

    #[test]
    fn a_line_is_edited_where_the_cursor_is() {
        let mut input = Input::default();
        input.insert("helo");
        input.left();
        input.insert("l");
        assert_eq!(shown(&input), ("hello".to_owned(), 4));
        input.remove_before();
        input.remove_after();
        assert_eq!(shown(&input), ("hel".to_owned(), 3));
        input.start();
        input.remove_before();
        input.left();
        input.remove_after();
        input.right();
        assert_eq!(shown(&input), ("el".to_owned(), 1));
        input.end();
        input.right();
        input.remove_after();
        assert_eq!(shown(&input), ("el".to_owned(), 2));
        input.insert(" \r\n\u{1b}x\u{7}\ty");
        assert_eq!(shown(&input), ("el ⏎x y".to_owned(), 7));
        assert_eq!(input.take().unwrap(), "el \nx\ty");
        assert!(shown(&input) == (String::new(), 0) && input.take().is_none());
    }

    #[test]
    fn earlier_lines_come_back_and_what_was_typed_too() {
        let mut input = Input::default();
        input.up();
        input.down();
        for line in ["one", "two", "two"] {
            input.insert(line);
            input.take();
        }
        input.insert("thr");
        let mut seen = Vec::new();
        for step in [Input::up, Input::up, Input::up, Input::down, Input::down, Input::down] {
            step(&mut input);
            seen.push(shown(&input).0);
        }
        assert_eq!(seen, ["two", "one", "one", "two", "thr", "thr"]);
    }

    #[test]
    fn a_long_line_shows_the_part_around_its_cursor() {
        let mut input = Input::default();
        input.insert("abcdefghij");
        assert_eq!(input.visible(5), ("ghij".to_owned(), 4));
        input.start();
        assert_eq!(input.visible(5), ("abcde".to_owned(), 0));
        // Two columns each.
        input.end();
        input.insert("漢字");
        assert_eq!(input.visible(6), ("j漢字".to_owned(), 5));
        assert_eq!(input.visible(1), (String::new(), 0));
    }

    #[test]
    fn texts_are_wrapped_at_spaces_and_long_words_anywhere() {
        assert_eq!(wrap("one two three", 8), ["one two ", "three"]);
        assert_eq!(wrap("abcdefgh ij\n\nk", 3), ["abc", "def", "gh ", "ij", "", "k"]);
        assert_eq!(wrap("漢字漢字", 5), ["漢字", "漢字"]);
        assert_eq!(wrap("", 5), [""]);
        assert_eq!(wrap("a\x1b[31m\tb", 20), ["a[31m    b"]);
        assert_eq!(wrap("ab", 0), ["a", "b"]);
        for width in 1..12 {
            let text = "some words of differing lengths, unbreakablewords";
            let lines = wrap(text, width);
            assert!(lines.iter().all(|line| Span::raw(line.as_str()).width() <= width), "{lines:?}");
            let squeezed = |text: String| text.replace(' ', "");
            assert_eq!(squeezed(lines.concat()), squeezed(text.to_owned()));
        }
    }
}
