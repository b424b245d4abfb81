//! Text from tokens, as they come.
//!
//! Owns: the bytes of a character that is not complete yet (at most three).
//! Promises: all pushes and the final `finish`, put together, are exactly the lossy UTF-8 reading of all bytes; no push
//! gives half a character; text is given as soon as its bytes are complete.
//! Refuses: nothing. Bytes that can never become a character turn into U+FFFD, at once.

use crate::tokenizer::Tokenizer;

/// Turns token ids into text, one at a time.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    skip_special: bool,
    /// The start of a character whose other bytes have not come yet.
    pending: Vec<u8>,
    text: String,
}

impl Detokenizer {
    /// `skip_special` leaves the text of control tokens out, as in [`Tokenizer::decode`].
    pub fn new(skip_special: bool) -> Detokenizer {
        Detokenizer { skip_special, pending: Vec::new(), text: String::new() }
    }

    /// Adds a token and returns the text it completes, often empty. Ids without a token add nothing.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> &str {
        match self.skip_special && tokenizer.is_control(id) {
            true => "",
            false => self.push_bytes(tokenizer.token_bytes(id)),
        }
    }

    /// Adds bytes and returns the text they complete.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> &str {
        self.pending.extend_from_slice(bytes);
        self.text.clear();
        let (mut read_bytes, mut kept_bytes) = (0, 0);
        for chunk in self.pending.utf8_chunks() {
            self.text.push_str(chunk.valid());
            read_bytes += chunk.valid().len() + chunk.invalid().len();
            let is_last = read_bytes == self.pending.len();
            match std::str::from_utf8(chunk.invalid()) {
                Ok(_) => {}
                Err(error) if is_last && error.error_len().is_none() => kept_bytes = chunk.invalid().len(),
                Err(_) => self.text.push(char::REPLACEMENT_CHARACTER),
            }
        }
        self.pending.drain(..read_bytes - kept_bytes);
        &self.text
    }

    /// What is left when no more tokens come: U+FFFD for an unfinished character, or nothing.
    pub fn finish(&mut self) -> &'static str {
        let unfinished = !self.pending.is_empty();
        self.pending.clear();
        if unfinished { "\u{FFFD}" } else { "" }
    }
}
