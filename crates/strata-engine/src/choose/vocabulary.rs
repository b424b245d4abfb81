//! A tokenizer's vocabulary as grammars need it.
//!
//! Owns: the tree of token bytes that masks are computed on. Promises: ordinary and user-defined tokens are their bytes,
//! control tokens never are a part of text, and every byte has a token. Refuses: vocabularies without a token that ends a
//! turn: a grammar could not end.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

use super::FormError;
use crate::Tokenizer;

/// Longer tokens are left out: the tree has no room for them, and no real vocabulary has any.
const LONGEST_TOKEN_BYTES: usize = 250;

/// The most tokens that the tree has room for.
const MOST_TOKENS: usize = 1 << 23;

/// What a grammar may cost: by the library's own figures, a mask some 10 ms, and the states 100 MB.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 500_000,
        step_lexer_fuel: 100_000,
        step_max_items: 50_000,
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// A vocabulary made ready for grammars: once for an engine, shared by all its texts.
pub struct Vocabulary {
    pub(super) parsers: ParserFactory,
    trie: TokEnv,
    /// The token of each single byte.
    byte_ids: Vec<u32>,
    end_ids: Vec<u32>,
    /// Alive while grammars that were given up are still being worked on.
    pub(super) given_up: Mutex<Vec<Weak<()>>>,
    /// What ends thinking when its budget is spent.
    pub(super) close_thinking_ids: Vec<u32>,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("end_ids", &self.end_ids).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Makes the tree.
    ///
    /// # Errors
    /// When no token ends a turn, or there are too many tokens.
    pub fn new(tokenizer: &Tokenizer) -> Result<Arc<Vocabulary>, FormError> {
        let bad = |reason: String| FormError::Vocabulary { reason };
        let end_ids = tokenizer.end_of_turn_ids().to_vec();
        if end_ids.is_empty() || tokenizer.vocab_len() > MOST_TOKENS {
            return Err(bad(format!("{} tokens, of which {} end a turn", tokenizer.vocab_len(), end_ids.len())));
        }
        let mut byte_ids = vec![0; 256];
        let mut words = Vec::with_capacity(tokenizer.vocab_len());
        for id in 0..tokenizer.vocab_len() as u32 {
            let bytes = tokenizer.token_bytes(id);
            words.push(match (bytes.len() <= LONGEST_TOKEN_BYTES, tokenizer.is_control(id)) {
                (false, _) => Vec::new(),
                (true, true) => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
                (true, false) => bytes.to_vec(),
            });
            if let ([byte], false) = (bytes, tokenizer.is_control(id)) {
                byte_ids[usize::from(*byte)] = id;
            }
        }
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end_ids[0]), &words).with_eos_tokens(&end_ids);
        let trie: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let mut parsers = ParserFactory::new(&trie, InferenceCapabilities::default(), &slices)
            .map_err(|error| bad(error.to_string()))?;
        parsers.quiet();
        *parsers.limits_mut() = limits();
        let close_thinking_ids = tokenizer.encode("\n</think>\n\n", true).map_err(|error| bad(error.to_string()))?;
        let given_up = Mutex::new(Vec::new());
        Ok(Arc::new(Vocabulary { parsers, trie, byte_ids, end_ids, given_up, close_thinking_ids }))
    }

    /// The bytes that a token adds to the text that people see: none for control tokens.
    pub(super) fn seen_bytes(&self, id: u32) -> &[u8] {
        let trie = self.trie.tok_trie();
        let bytes = if (id as usize) < trie.vocab_size() { trie.token(id) } else { &[] };
        if bytes.len() > 1 && bytes[0] == TokTrie::SPECIAL_TOKEN_MARKER { &[] } else { bytes }
    }

    /// Bytes as tokens of one byte each.
    pub(super) fn byte_tokens(&self, bytes: &[u8]) -> Vec<u32> {
        bytes.iter().map(|byte| self.byte_ids[usize::from(*byte)]).collect()
    }

    /// Tokens that end a turn.
    pub(super) fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }
}
