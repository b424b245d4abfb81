//! What is asked of a host, and what comes back.

use std::time::Duration;

use crate::{Constraint, Drafts, Finish, RouteReceipt, SamplerParams};

/// A text to be written on from a prompt.
#[derive(Clone, Debug)]
pub struct Request {
    /// Ids of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// The most tokens to write, at least one.
    pub max_tokens: usize,
    /// How to choose tokens.
    pub sampling: SamplerParams,
    /// What is added to the logits of tokens; -100 and less forbid one.
    pub bias: Vec<(u32, f32)>,
    /// What the answer must look like.
    pub constraint: Option<Constraint>,
    /// Texts that end the answer; they are not a part of it.
    pub stop: Vec<String>,
    /// For so many of the most likely tokens at each place, their probabilities are told; `None`: none, and not the chosen
    /// one's either.
    pub top_logprobs: Option<usize>,
}

/// What a host tells of a request, in this order: `Reading` any number of times, `Token` once for each token but one that ends
/// the turn, and one `Done` or `Failed`.
#[derive(Clone, Debug)]
pub enum Event {
    /// The prompt is being read.
    Reading {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Of these, those whose state was kept from before.
        reused_tokens: usize,
        /// How much of the others is done, 0 to 1.
        progress: f64,
    },
    /// A token was written.
    Token(Written),
    /// The answer is complete.
    Done(Outcome),
    /// The request ended without an answer, or with a part of one.
    Failed(Failure),
}

/// A token of an answer.
#[derive(Clone, Debug)]
pub struct Written {
    /// Its id.
    pub token: u32,
    /// Text that became complete with it: whole characters that are no part of a stop text, and none that may become one.
    pub text: String,
    /// The chosen token and the most likely ones, when they were asked for.
    pub choice: Option<Choice>,
}

/// How likely a token was.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Natural logarithm of the chosen token's probability.
    pub logprob: f32,
    /// The most likely tokens and the logarithms of their probabilities, the most likely first.
    pub top: Vec<(u32, f32)>,
}

/// How an answer ended, and what it took.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Text that was held back until the end was known.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// The stop text that ended it, as the end of a turn would.
    pub stop: Option<String>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, those whose state was kept from before.
    pub reused_tokens: usize,
    /// Tokens written, the one that ended the turn among them.
    pub written_tokens: usize,
    /// Time in the queue.
    pub queue_time: Duration,
    /// Time from there to the first token's logits.
    pub prompt_time: Duration,
    /// Time from there to the end.
    pub decode_time: Duration,
    /// What became of drafts.
    pub drafts: Drafts,
    /// What cache-aware routing did meanwhile, for all texts at work; `None` without it.
    pub routes: Option<RouteReceipt>,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What kind of failure it is.
    pub kind: FailureKind,
    /// What was wrong, where, and what to do.
    pub message: String,
}

/// Kinds of failures, as far as a client must tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The request cannot be served as it is: for example, prompt and answer do not fit the context.
    Invalid,
    /// The queue is full. Later it may not be.
    Busy,
    /// The host is shutting down.
    Closing,
    /// The request made no progress for too long.
    Stalled,
    /// The model or its drive failed.
    Internal,
}
