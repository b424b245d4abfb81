//! Hosts from inside: drives that fail, and turns that are taken one by one.

mod faults;
mod turns;

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::EngineOptions;

fn mini() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/strata-mini/strata-mini-iq2xs-q4_0.gguf")
}

fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    let (sampling, stop) = (SamplerParams::default(), Vec::new());
    let (bias, constraint, top_logprobs) = (Vec::new(), None, None);
    Request { prompt, max_tokens, sampling, bias, constraint, stop, top_logprobs }
}

/// The tokens, or why there are no more.
fn all(mut answer: Answer) -> (Vec<u32>, Option<Failure>) {
    let mut tokens = Vec::new();
    loop {
        match answer.recv_blocking().expect("an end") {
            Event::Reading { .. } => {}
            Event::Token(written) => tokens.push(written.token),
            Event::Done(_) => return (tokens, None),
            Event::Failed(failure) => return (tokens, Some(failure)),
        }
    }
}
