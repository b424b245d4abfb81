//! What requests of all APIs say about how tokens are chosen, and when an answer ends.

use serde_json::Value;
use strata_engine::SamplerParams;

use crate::fields::{Fields, wrong};
use crate::problem::Problem;

/// The most texts that may end an answer.
const MOST_STOPS: usize = 32;
/// The most bytes of one.
const MOST_STOP_BYTES: usize = 1024;
/// The most tokens with a bias.
const MOST_BIASES: usize = 1024;
/// The most probabilities that are told of a place.
const MOST_LOGPROBS: u64 = 20;

/// How an answer is written.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) sampling: SamplerParams,
    /// Added to the logits of tokens.
    pub(crate) bias: Vec<(u32, f32)>,
    /// `None`: as many as the context has room for.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) top_logprobs: Option<usize>,
}

impl Settings {
    /// Takes temperature and the like: what the APIs have in common, and what llama.cpp's server adds. A request without a
    /// seed gets one of its own.
    pub(crate) fn take(fields: &mut Fields, recommended: SamplerParams) -> Result<Self, Problem> {
        let mut sampling = SamplerParams { seed: seed(), ..recommended };
        let set = |to: &mut f32, from: Option<f32>| *to = from.unwrap_or(*to);
        set(&mut sampling.temperature, fields.number("temperature", 0.0..=100.0)?);
        set(&mut sampling.top_p, fields.number("top_p", 0.0..=1.0)?);
        set(&mut sampling.min_p, fields.number("min_p", 0.0..=1.0)?);
        set(&mut sampling.presence_penalty, fields.number("presence_penalty", -2.0..=2.0)?);
        set(&mut sampling.frequency_penalty, fields.number("frequency_penalty", -2.0..=2.0)?);
        let repetition = fields.number("repetition_penalty", 0.1..=10.0)?;
        set(&mut sampling.repeat_penalty, fields.number("repeat_penalty", 0.1..=10.0)?.or(repetition));
        if let Some(top_k) = fields.whole("top_k", 0..=u64::from(u32::MAX))? {
            sampling.top_k = top_k as u32;
        }
        if let Some(seed) = seed_of(fields)? {
            sampling.seed = seed;
        }
        Ok(Self { sampling, bias: bias(fields)?, max_tokens: None, stop: stops(fields, "stop")?, top_logprobs: None })
    }

    /// Takes `logprobs: true` and `top_logprobs`.
    pub(crate) fn take_logprobs(&mut self, fields: &mut Fields) -> Result<(), Problem> {
        let is_wanted = fields.flag("logprobs")?.unwrap_or(false);
        let top = fields.whole("top_logprobs", 0..=MOST_LOGPROBS)?;
        if !is_wanted && top.is_some_and(|top| top > 0) {
            return Err(fields.problem("top_logprobs", "needs `logprobs` to be true"));
        }
        self.top_logprobs = is_wanted.then_some(top.unwrap_or(0) as usize);
        Ok(())
    }

    /// Takes the number of `logprobs` that older APIs have.
    pub(crate) fn take_logprobs_number(&mut self, fields: &mut Fields, name: &str) -> Result<(), Problem> {
        self.top_logprobs = fields.whole(name, 0..=MOST_LOGPROBS)?.map(|top| top as usize);
        Ok(())
    }
}

/// Takes a number of tokens.
pub(crate) fn tokens(fields: &mut Fields, name: &str) -> Result<Option<usize>, Problem> {
    Ok(fields.whole(name, 1..=u64::from(u32::MAX))?.map(|tokens| tokens as usize))
}

/// Takes texts that end an answer.
pub(crate) fn stops(fields: &mut Fields, name: &str) -> Result<Vec<String>, Problem> {
    let stops = fields.texts(name)?.unwrap_or_default();
    match () {
        () if stops.len() > MOST_STOPS => Err(fields.problem(name, &format!("may have at most {MOST_STOPS} texts"))),
        () if stops.iter().any(String::is_empty) => Err(fields.problem(name, "must not hold an empty text")),
        () if stops.iter().any(|stop| stop.len() > MOST_STOP_BYTES) => {
            Err(fields.problem(name, &format!("must not hold texts of more than {MOST_STOP_BYTES} bytes")))
        }
        () => Ok(stops),
    }
}

/// A negative seed asks for any, as llama.cpp's server has it.
fn seed_of(fields: &mut Fields) -> Result<Option<u64>, Problem> {
    match fields.value("seed") {
        None => Ok(None),
        Some(value) => match (value.as_u64(), value.as_i64()) {
            (Some(seed), _) => Ok(Some(seed)),
            (None, Some(_)) => Ok(None),
            (None, None) if value.is_number() => {
                Err(fields.problem("seed", &format!("must be a whole number below 2^64, not {value}")))
            }
            (None, None) => Err(wrong("seed", "a whole number", &value)),
        },
    }
}

fn seed() -> u64 {
    getrandom::u64().unwrap_or(0)
}

/// `{"token id": bias}`, as OpenAI has it.
fn bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, Problem> {
    let Some(map) = fields.map("logit_bias")? else { return Ok(Vec::new()) };
    if map.len() > MOST_BIASES {
        return Err(fields.problem("logit_bias", &format!("may have at most {MOST_BIASES} tokens")));
    }
    let one = |(id, value): (&String, &Value)| {
        let path = fields.path(&format!("logit_bias.{}", id.chars().take(40).collect::<String>()));
        let id: u32 =
            id.parse().map_err(|_| Problem::field(&path, format!("`{path}`: the name must be a token's id")))?;
        let bias = value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        let bias =
            bias.ok_or_else(|| Problem::field(&path, format!("`{path}` must be a number between -100 and 100")))?;
        Ok((id, bias as f32))
    };
    map.iter().map(one).collect()
}
