//! Text to token ids and back, from a model file's own vocabulary.
//!
//! Owns: the byte-level BPE of the `gpt2` family with the split patterns named in [`PRE_TOKENIZERS`], NFC
//! normalisation before it, and the file's special tokens.
//! Promises: the ids of the model's published tokenizer; no token is added before or after the text; text that must
//! not hold special tokens cannot make them; every id, of a token or not, can be decoded.
//! Refuses: other tokenizer kinds and patterns (their text would be cut differently, and the model would silently get
//! worse), and vocabularies whose parts do not fit together.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use regex::Regex;
use strata_gguf::{Metadata, MetadataError, Optional};
use thiserror::Error;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pattern::Pattern;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, AddedVocabulary, Model, OffsetType, Offsets, PreTokenizer, SplitDelimiterBehavior};

/// Names of `tokenizer.ggml.pre` and the pattern that cuts text into words for each.
///
/// The models' own patterns have `\s+(?!\S)` before the last alternative, which [`Words`] takes care of: a matcher
/// without look-ahead needs no stack, so that no length of a run of spaces is too much for it.
const PRE_TOKENIZERS: [(&str, &str); 2] = [
    ("qwen2", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"),
    // As qwen2, with combining marks counted as letters.
    (
        "qwen35",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    ),
];

/// Control tokens that end a turn wherever they occur in a vocabulary, whatever the file's own keys say.
const END_OF_TURN_NAMES: [&str; 11] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|eos|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
    "<|EOT|>",
];

/// Keys of single ids that end a turn.
const END_OF_TURN_KEYS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// Of longer texts, tokens are counted in pieces of so many bytes before they are encoded.
const PIECE_BYTES: usize = 64 << 10;
/// More than a cut through a word adds to the tokens of its piece.
const CUT_TOKENS: usize = 64;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";

// Values of `tokenizer.ggml.token_type`; all others are ordinary text.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;

/// Why a file's tokenizer cannot be used, or a text not be encoded.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// The file holds no tokenizer at all.
    #[error(
        "this file has no tokenizer (`tokenizer.ggml.model` is missing or `none`): give token ids instead of text, or \
         use a file that has one"
    )]
    NoTokenizer,
    /// `tokenizer.ggml.model` names another kind of tokenizer.
    #[error("`tokenizer.ggml.model` is `{got}`, but only `gpt2` (byte-level BPE) is supported")]
    UnsupportedModel {
        /// The file's value.
        got: String,
    },
    /// `tokenizer.ggml.pre` names a pattern that is not known.
    #[error(
        "`tokenizer.ggml.pre` is `{got}`, but only {} are supported: another pattern would cut text wrongly",
        PRE_TOKENIZERS.map(|(name, _)| format!("`{name}`")).join(" and ")
    )]
    UnsupportedPre {
        /// The file's value.
        got: String,
    },
    /// A key is missing or has another type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The parts of the vocabulary do not fit together.
    #[error("metadata key `{key}`: {reason}; the file is damaged or was converted wrongly")]
    BadVocabulary {
        /// The key at fault.
        key: &'static str,
        /// What is wrong, with numbers.
        reason: String,
    },
    /// The tokenizer library failed on a text.
    #[error("cannot encode a text of {len_bytes} bytes: {reason}")]
    Encode {
        /// Length of the text.
        len_bytes: usize,
        /// The library's message.
        reason: String,
    },
    /// A text has many more tokens than are of use.
    #[error("the text has more than {tokens} tokens, but the context holds {most_tokens}")]
    TooLong {
        /// Counted before the rest was left.
        tokens: usize,
        /// Tokens there is room for.
        most_tokens: usize,
    },
}

/// A vocabulary with its rules.
pub struct Tokenizer {
    model: BPE,
    words: Words,
    /// Control and user-defined tokens, matched before the pattern.
    special: AddedVocabulary,
    /// The bytes of all tokens, one after the other; token `id` ends at `ends[id]`.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    control: Vec<bool>,
    control_names: Vec<String>,
    bos_id: Option<u32>,
    eos_id: Option<u32>,
    padding_id: Option<u32>,
    end_of_turn_ids: Vec<u32>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_len", &self.vocab_len())
            .field("end_of_turn_ids", &self.end_of_turn_ids)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Builds the tokenizer that a model file describes under `tokenizer.ggml.*`.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
        match metadata.str("tokenizer.ggml.model").optional()? {
            None | Some("none") => return Err(TokenizerError::NoTokenizer),
            Some("gpt2") => {}
            Some(got) => return Err(TokenizerError::UnsupportedModel { got: got.to_owned() }),
        }
        let words = Words::named(metadata.str("tokenizer.ggml.pre")?)?;
        let tokens = metadata.str_array(TOKENS)?;
        let types = metadata.i64_array(TOKEN_TYPE)?;
        if types.len() != tokens.len() {
            let reason = format!("{} entries for the {} tokens of `{TOKENS}`", types.len(), tokens.len());
            return Err(bad(TOKEN_TYPE, reason));
        }

        let vocab = vocabulary(tokens)?;
        let merges = merges(metadata.str_array(MERGES)?, &vocab)?;
        let model = BPE::builder()
            .vocab_and_merges(vocab.iter().map(|(&token, &id)| (token.to_owned(), id)).collect::<Vocab>(), merges)
            .build()
            .map_err(|error| bad(MERGES, error.to_string()))?;

        let mut special = AddedVocabulary::new();
        let added = tokens.iter().zip(&types).filter(|&(_, &ty)| ty == CONTROL || ty == USER_DEFINED);
        special
            .add_tokens(
                added.map(|(token, &ty)| AddedToken::from(token.as_str(), ty == CONTROL).normalized(false)),
                &model,
                None::<&NFC>,
            )
            .map_err(|error| bad(TOKENS, error.to_string()))?;

        let is_named_control = |(token, ty): &(&String, &i64)| **ty == CONTROL && !token.is_empty();
        let control_names =
            tokens.iter().zip(&types).filter(is_named_control).map(|(token, _)| token.to_owned()).collect();
        let (bytes, ends) = token_bytes(tokens, &types);
        let id_of = |key| special_id(metadata, key, tokens.len());
        Ok(Tokenizer {
            model,
            words,
            special,
            bytes,
            ends,
            control: types.iter().map(|&ty| ty == CONTROL).collect(),
            control_names,
            bos_id: id_of("tokenizer.ggml.bos_token_id")?,
            eos_id: id_of("tokenizer.ggml.eos_token_id")?,
            padding_id: id_of("tokenizer.ggml.padding_token_id")?,
            end_of_turn_ids: end_of_turn_ids(metadata, &vocab, &types)?,
        })
    }

    /// Ids of a text. Nothing is added to it: no BOS, no leading space.
    ///
    /// With `allow_special` the names of control and user-defined tokens in the text become those tokens, as a
    /// rendered chat needs. Without it they are plain text like any other: what a stranger wrote can then neither end
    /// a turn nor open one.
    pub fn encode(&self, text: &str, allow_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let none = AddedVocabulary::new();
        let special = if allow_special { &self.special } else { &none };
        let mut pieces = special.extract_and_normalize(Some(&NFC), text);
        let to_bytes = ByteLevel::new(false, false, false);
        pieces
            .split(|_, piece| piece.split(&self.words, SplitDelimiterBehavior::Isolated))
            .and_then(|()| to_bytes.pre_tokenize(&mut pieces))
            .and_then(|()| pieces.tokenize(|word| self.model.tokenize(word.get())))
            .and_then(|()| pieces.into_encoding(None, 0, OffsetType::None))
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| TokenizerError::Encode { len_bytes: text.len(), reason: error.to_string() })
    }

    /// [`encode`](Self::encode), for a text that is of no use when it has more than `most_tokens`: one that has many more
    /// is refused as soon as that is known, since the time and memory of encoding grow with the text.
    ///
    /// # Errors
    /// As [`encode`](Self::encode), and when it has many more tokens. One that has a few more is encoded.
    pub fn encode_at_most(
        &self,
        text: &str,
        allow_special: bool,
        most_tokens: usize,
    ) -> Result<Vec<u32>, TokenizerError> {
        if text.len() > PIECE_BYTES {
            let (mut counted, mut rest) = (0, text);
            while !rest.is_empty() {
                let end = (0..=PIECE_BYTES.min(rest.len())).rev().find(|end| rest.is_char_boundary(*end)).unwrap_or(0);
                let (piece, after) = rest.split_at(end);
                counted += self.encode(piece, allow_special)?.len().saturating_sub(CUT_TOKENS);
                rest = after;
                if counted > most_tokens {
                    return Err(TokenizerError::TooLong { tokens: counted, most_tokens });
                }
            }
        }
        self.encode(text, allow_special)
    }

    /// The text of tokens: bytes that are not UTF-8 become U+FFFD, ids without a token nothing.
    ///
    /// `skip_special` leaves control tokens out; user-defined ones (such as `<think>`) always stay.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let kept = ids.iter().filter(|&&id| !(skip_special && self.is_control(id)));
        let bytes: Vec<u8> = kept.flat_map(|&id| self.token_bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes that a token stands for: possibly only part of a character.
    ///
    /// Empty for ids without a token: unused entries of the vocabulary, and ids past its end, which a model's matrices
    /// may have rows for.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..end]
    }

    /// The id of a token by the name it has in the file: ordinary tokens are written in the GPT-2 byte alphabet.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.model.token_to_id(token)
    }

    /// Whether the file marks the token as a control token: one that steers a chat and is no text.
    pub fn is_control(&self, id: u32) -> bool {
        self.control.get(id as usize).copied().unwrap_or(false)
    }

    /// The names of all control tokens.
    pub fn control_names(&self) -> &[String] {
        &self.control_names
    }

    /// Number of tokens in the file; the model's matrices may have more rows.
    pub fn vocab_len(&self) -> usize {
        self.ends.len()
    }

    /// The file's beginning-of-sequence token. [`Tokenizer::encode`] never adds it.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos_id
    }

    /// The file's end-of-sequence token. To stop generation use [`Tokenizer::end_of_turn_ids`].
    pub fn eos_id(&self) -> Option<u32> {
        self.eos_id
    }

    /// The file's padding token.
    pub fn padding_id(&self) -> Option<u32> {
        self.padding_id
    }

    /// All tokens that end generation, ascending: the file's EOS, EOT and EOM, and every control token of the
    /// vocabulary with one of the usual names for them. Models use more than one, whatever the file's keys say.
    pub fn end_of_turn_ids(&self) -> &[u32] {
        &self.end_of_turn_ids
    }
}

/// The pattern that cuts text into words.
struct Words(Regex);

impl Words {
    fn named(pre: &str) -> Result<Words, TokenizerError> {
        let (_, pattern) = PRE_TOKENIZERS
            .into_iter()
            .find(|(name, _)| *name == pre)
            .ok_or_else(|| TokenizerError::UnsupportedPre { got: pre.to_owned() })?;
        Ok(Words(Regex::new(pattern).expect("the patterns are constants, and a test builds each")))
    }
}

impl Pattern for &Words {
    /// The words in order. Every character is in one.
    fn find_matches(&self, text: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        let mut words = Vec::new();
        let mut start = 0;
        while let Some(found) = self.0.find_at(text, start) {
            let mut end = found.end();
            // Only `\s+` matches a word that ends in a space but no line break. If text follows, the last space of
            // several belongs to it.
            let last = found.as_str().chars().next_back().filter(|c| c.is_whitespace() && !matches!(c, '\r' | '\n'));
            if let Some(space) = last
                && end < text.len()
                && found.len() > space.len_utf8()
            {
                end -= space.len_utf8();
            }
            words.push(((start, end), true));
            start = end;
        }
        Ok(words)
    }
}

fn bad(key: &'static str, reason: String) -> TokenizerError {
    TokenizerError::BadVocabulary { key, reason }
}

/// Ids by token. Every byte must have a token, or text could be lost in encoding.
fn vocabulary(tokens: &[String]) -> Result<HashMap<&str, u32>, TokenizerError> {
    let mut vocab = HashMap::with_capacity(tokens.len());
    for (index, token) in tokens.iter().enumerate() {
        let id = u32::try_from(index).map_err(|_| bad(TOKENS, format!("{} tokens are too many", tokens.len())))?;
        if let Some(first) = vocab.insert(token.as_str(), id) {
            return Err(bad(TOKENS, format!("tokens {first} and {id} are both {token:?}")));
        }
    }
    for (byte, letter) in byte_alphabet().into_iter().enumerate() {
        if !vocab.contains_key(letter.encode_utf8(&mut [0; 4]) as &str) {
            return Err(bad(TOKENS, format!("no token {letter:?}, so that byte {byte:#04x} cannot be encoded")));
        }
    }
    Ok(vocab)
}

/// Pairs of tokens to merge, by rank: written as two tokens with a space between.
fn merges(merges: &[String], vocab: &HashMap<&str, u32>) -> Result<Vec<(String, String)>, TokenizerError> {
    let pair = |(rank, merge): (usize, &String)| {
        let Some((left, right)) = merge.split_once(' ').filter(|(l, r)| !l.is_empty() && !r.is_empty()) else {
            return Err(bad(MERGES, format!("merge {rank} is {merge:?}, expected two tokens with a space between")));
        };
        for token in [left, right, &format!("{left}{right}")] {
            if !vocab.contains_key(token) {
                return Err(bad(MERGES, format!("merge {rank} is {merge:?}, but {token:?} is not in `{TOKENS}`")));
            }
        }
        Ok((left.to_owned(), right.to_owned()))
    };
    merges.iter().enumerate().map(pair).collect()
}

/// The bytes of all tokens, and where each token's end.
fn token_bytes(tokens: &[String], types: &[i64]) -> (Vec<u8>, Vec<usize>) {
    let byte_of: HashMap<char, u8> = byte_alphabet().into_iter().zip(0..=255).collect();
    let mut bytes = Vec::new();
    let mut ends = Vec::with_capacity(tokens.len());
    for (token, &ty) in tokens.iter().zip(types) {
        match ty {
            UNUSED => {}
            CONTROL | USER_DEFINED => bytes.extend_from_slice(token.as_bytes()),
            // A token with a letter outside of the alphabet can only mean itself.
            _ => match token.chars().map(|c| byte_of.get(&c).copied()).collect::<Option<Vec<u8>>>() {
                Some(decoded) => bytes.extend(decoded),
                None => bytes.extend_from_slice(token.as_bytes()),
            },
        }
        ends.push(bytes.len());
    }
    (bytes, ends)
}

/// The letter that stands for each byte in a GPT-2 vocabulary: printable Latin-1 letters for themselves, the other
/// bytes for the letters from U+0100 up, in order.
fn byte_alphabet() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| match byte as u8 {
        byte @ (b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) => char::from(byte),
        _ => {
            next += 1;
            char::from_u32(next - 1).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    })
}

/// The id under a key, if the file has the key.
fn special_id(metadata: &Metadata, key: &'static str, vocab_len: usize) -> Result<Option<u32>, TokenizerError> {
    match metadata.u32(key).optional()? {
        Some(id) if id as usize >= vocab_len => Err(bad(key, format!("token {id} of only {vocab_len}"))),
        id => Ok(id),
    }
}

fn end_of_turn_ids(metadata: &Metadata, vocab: &HashMap<&str, u32>, types: &[i64]) -> Result<Vec<u32>, TokenizerError> {
    let mut ids = BTreeSet::new();
    for key in END_OF_TURN_KEYS {
        ids.extend(special_id(metadata, key, types.len())?);
    }
    let named = END_OF_TURN_NAMES.iter().filter_map(|name| vocab.get(name).copied());
    ids.extend(named.filter(|&id| types[id as usize] == CONTROL));
    Ok(ids.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words that Python's `tokenizers` cuts with the models' own patterns, recorded by tools/gen_encodings.py.
    #[test]
    fn words_are_those_recorded_in_python() {
        let recorded = include_str!("../tests/data/strata-mini/encodings.json");
        let cases: serde_json::Value = serde_json::from_str(recorded).unwrap();
        let mut differing = 0;
        for case in cases.as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            for (pre, _) in PRE_TOKENIZERS {
                let found = (&Words::named(pre).unwrap()).find_matches(text).unwrap();
                let words: Vec<&str> = found.into_iter().map(|((start, end), _)| &text[start..end]).collect();
                assert_eq!(serde_json::json!(words), case["words"][pre], "{pre}: {text:?}");
            }
            differing += usize::from(case["words"]["qwen2"] != case["words"]["qwen35"]);
        }
        assert!(differing >= 5, "the patterns are hardly told apart");
    }
}
