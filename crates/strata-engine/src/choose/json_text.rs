//! JSON as it comes, letter by letter.
//!
//! Owns: where in an object a text is. Promises: a letter that cannot continue valid JSON is told at once, except inside of
//! numbers and words, where the letter after them is; the places of the outermost members. Refuses: more than
//! [`MOST_LEVELS`] levels, and two members of one name.

use std::ops::Range;

/// Deepest nesting.
const MOST_LEVELS: usize = 100;

/// What is expected next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Object,
    KeyOrEnd,
    Key,
    Colon,
    Value,
    ValueOrEnd,
    CommaOrEnd,
    /// Inside of a string; the letters of an escape that are still to come are not told apart.
    Text {
        is_key: bool,
        is_escaped: bool,
    },
    /// Inside of a number or word.
    Word,
    End,
}

/// A JSON object of which a part has come.
#[derive(Clone, Debug)]
pub(super) struct JsonText {
    text: String,
    /// What is open: `{` or `[`.
    open: Vec<char>,
    next: Next,
    /// Where the string or word began that the text is in.
    token_start: usize,
    /// Name and start of the outermost member that has begun.
    key: String,
    value_start: usize,
    members: Vec<(String, Range<usize>)>,
}

impl JsonText {
    pub(super) fn new() -> JsonText {
        JsonText {
            text: String::new(),
            open: Vec::new(),
            next: Next::Object,
            token_start: 0,
            key: String::new(),
            value_start: 0,
            members: Vec::new(),
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.next == Next::End
    }

    /// The text of an outermost member of a complete object.
    pub(super) fn member(&self, name: &str) -> Option<&str> {
        self.members.iter().find(|(key, _)| key == name).map(|(_, range)| &self.text[range.clone()])
    }

    /// Goes on by a letter.
    ///
    /// # Errors
    /// What was expected instead. Nothing has changed then.
    pub(super) fn push(&mut self, c: char) -> Result<(), &'static str> {
        if self.next == Next::Word && !is_of_word(c) {
            self.end_word()?;
        }
        let is_space = matches!(c, ' ' | '\n' | '\r' | '\t');
        self.next = match (self.next, c) {
            (Next::Text { is_key, is_escaped: true }, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' | 'u') => {
                Next::Text { is_key, is_escaped: false }
            }
            (Next::Text { is_escaped: true, .. }, _) => return Err("an escape that JSON knows"),
            (Next::Text { is_key, .. }, '\\') => Next::Text { is_key, is_escaped: true },
            (Next::Text { is_key, .. }, '"') => self.end_text(is_key)?,
            (Next::Text { .. }, c) if c < ' ' => return Err("no line break or control character in a string"),
            (text @ Next::Text { .. }, _) => text,
            (Next::Word, _) => Next::Word,
            (next, _) if is_space && next != Next::End => next,
            (Next::Object, '{') => self.begin('{')?,
            (Next::Object, _) => return Err("a JSON object"),
            (Next::KeyOrEnd | Next::Key, '"') => self.begin_text(true),
            (Next::KeyOrEnd, '}') => self.end(),
            (Next::KeyOrEnd | Next::Key, _) => return Err("a name in quotes"),
            (Next::Colon, ':') => Next::Value,
            (Next::Colon, _) => return Err("a colon"),
            (Next::ValueOrEnd, ']') => self.end(),
            (Next::Value | Next::ValueOrEnd, c) => {
                if self.open.len() == 1 {
                    self.value_start = self.text.len();
                }
                match c {
                    '"' => self.begin_text(false),
                    '{' | '[' => self.begin(c)?,
                    c if is_of_word(c) => {
                        self.token_start = self.text.len();
                        Next::Word
                    }
                    _ => return Err("a value"),
                }
            }
            (Next::CommaOrEnd, ',') if self.open.last() == Some(&'{') => Next::Key,
            (Next::CommaOrEnd, ',') => Next::Value,
            (Next::CommaOrEnd, '}') if self.open.last() == Some(&'{') => self.end(),
            (Next::CommaOrEnd, ']') if self.open.last() == Some(&'[') => self.end(),
            (Next::CommaOrEnd, _) => return Err("a comma or the end"),
            (Next::End, _) => return Err("nothing after the object"),
        };
        self.text.push(c);
        Ok(())
    }

    fn begin(&mut self, c: char) -> Result<Next, &'static str> {
        if self.open.len() == MOST_LEVELS {
            return Err("fewer levels");
        }
        self.open.push(c);
        Ok(if c == '{' { Next::KeyOrEnd } else { Next::ValueOrEnd })
    }

    fn begin_text(&mut self, is_key: bool) -> Next {
        self.token_start = self.text.len();
        Next::Text { is_key, is_escaped: false }
    }

    /// After the quote that ends a string, which is not yet a part of the text.
    fn end_text(&mut self, is_key: bool) -> Result<Next, &'static str> {
        let quoted = format!("{}\"", &self.text[self.token_start..]);
        let text: String = serde_json::from_str(&quoted).map_err(|_| "escapes that are characters")?;
        if !is_key {
            return Ok(self.end_value(self.text.len() + 1));
        }
        if self.open.len() == 1 {
            if self.members.iter().any(|(key, _)| *key == text) {
                return Err("a name that has not been there");
            }
            self.key = text;
        }
        Ok(Next::Colon)
    }

    fn end_word(&mut self) -> Result<(), &'static str> {
        let word = &self.text[self.token_start..];
        serde_json::from_str::<serde::de::IgnoredAny>(word).map_err(|_| "a number, true, false or null")?;
        self.next = self.end_value(self.text.len());
        Ok(())
    }

    /// After a closing bracket, which is not yet a part of the text.
    fn end(&mut self) -> Next {
        self.open.pop();
        match self.open.len() {
            0 => Next::End,
            _ => self.end_value(self.text.len() + 1),
        }
    }

    fn end_value(&mut self, end: usize) -> Next {
        if self.open.len() == 1 {
            self.members.push((std::mem::take(&mut self.key), self.value_start..end));
        }
        Next::CommaOrEnd
    }
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<JsonText, usize> {
        let mut json = JsonText::new();
        for (at, c) in text.char_indices() {
            json.push(c).map_err(|_| at)?;
        }
        Ok(json)
    }

    #[test]
    fn members_are_their_own_text() {
        let text = "{ \"a\" : 1.50e3 ,\"b\\u0041\":{\"a\":[1,{}], \"x\":\"}\\\"\"},\"c\":null }";
        let json = read(text).unwrap();
        assert!(json.is_complete());
        assert_eq!(json.member("a"), Some("1.50e3"));
        assert_eq!(json.member("bA"), Some("{\"a\":[1,{}], \"x\":\"}\\\"\"}"));
        assert_eq!(json.member("c"), Some("null"));
        assert_eq!(json.member("x"), None);
    }

    #[test]
    fn faults_are_told_where_they_are() {
        for (text, at) in [
            ("[1]", 0),
            ("{a", 1),
            ("{\"a\" 1", 5),
            ("{\"a\":1,}", 7),
            ("{\"a\":tru}", 8),
            ("{\"a\":[1,]", 8),
            ("{\"a\":01,", 7),
            ("{\"a\":\"\n", 6),
            ("{\"a\":\"\\x", 7),
            ("{\"a\":\"\\ud800\"", 12),
            ("{\"a\":1]", 6),
            ("{\"a\":1,\"a\"", 9),
            ("{}x", 2),
            ("{} ", 2),
        ] {
            assert_eq!(read(text).err(), Some(at), "{text}");
        }
        assert!(read(&format!("{{\"a\":{}", "[".repeat(99))).is_ok());
        assert_eq!(read(&format!("{{\"a\":{}", "[".repeat(100))).err(), Some(5 + 99));
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_library(text in "\\{[\\{\\}\\[\\]\",:\\\\a10.e \\-]{0,12}\\}") {
            let is_object = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&text).is_ok();
            let ours = read(&text).is_ok_and(|json| json.is_complete());
            // The library lets a name be there twice.
            prop_assert!(ours == is_object || (is_object && text.matches("\":").count() > 1), "{text}");
        }
    }
}
