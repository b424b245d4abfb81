//! Tokens of a synthetic model: their topics, their rows in the matrices at both ends, and a prompt.
//!
//! Owns: what makes routing look like that of real text, by weights only. A row of the embedding is a direction shared by
//! all tokens (its share makes some experts popular), one of the token's domain, one of its topic within the domain
//! (tokens that share one like the same experts), and one of its own. A random router turns these into normal logits
//! whose variances are in the same proportion. A prompt is made of documents of one domain each; in a document it stays
//! with a topic for a while, and takes frequent tokens of it more often than rare ones.

use strata_gguf::TensorType;
use strata_quant::grids::IQ4_VALUES;

use super::blocks::{Random, f16_bits};
use super::{Routing, Shape};

/// Topics; token `id` is of topic `id % TOPICS`.
const TOPICS: usize = 64;
/// Domains; topic `t` is of domain `t % DOMAINS`.
const DOMAINS: usize = 4;
/// Tokens of a document; document `n` of a prompt is of domain `n % DOMAINS`.
pub(super) const DOCUMENT_TOKENS: usize = 2048;
/// Tokens of a topic that a prompt uses.
const PROMPT_TOKENS_PER_TOPIC: usize = 256;
/// Ids of the prompt that a file names.
const PROMPT_TOKENS: usize = 8192;
/// Rank `r` (from 0) of a topic's tokens is as frequent as 1 / (r + this).
const RANK_OFFSET: f64 = 3.0;
/// Normal numbers from which the rows' own directions are cut.
const POOL_WEIGHTS: usize = 1 << 20;

/// The ids below which all prompts stay, of a model with so large a vocabulary.
pub(super) fn prompt_vocabulary(shape: &Shape) -> usize {
    shape.vocabulary.min(TOPICS * PROMPT_TOKENS_PER_TOPIC)
}

/// Ids to use as a prompt.
pub(super) fn prompt(shape: &Shape, routing: &Routing, seed: u64) -> Vec<u32> {
    let mut random = Random::named(seed, "prompt");
    let ranks = prompt_vocabulary(shape) / TOPICS;
    // Chances of the ranks, summed up.
    let sums: Vec<f64> = (0..ranks)
        .scan(0.0, |sum, rank| {
            *sum += 1.0 / (rank as f64 + RANK_OFFSET);
            Some(*sum)
        })
        .collect();
    let total = sums[ranks - 1];
    let mut topic = 0;
    let token = |at: usize| {
        if at.is_multiple_of(DOCUMENT_TOKENS) || random.unit() * f64::from(routing.topic_tokens) < 1.0 {
            topic = random.below(TOPICS / DOMAINS) * DOMAINS + at / DOCUMENT_TOKENS % DOMAINS;
        }
        let at = random.unit() * total;
        let rank = sums.partition_point(|sum| *sum <= at).min(ranks - 1);
        (rank * TOPICS + topic) as u32
    };
    (0..PROMPT_TOKENS).map(token).collect()
}

/// Shares of a row's variance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    /// The same for all tokens.
    pub(super) all: f32,
    /// The same for a domain.
    pub(super) domain: f32,
    /// The same for a topic.
    pub(super) topic: f32,
}

/// The rows of a matrix with one row a token, in IQ4_XS.
pub(super) struct TokenRows {
    /// What the tokens of a topic have in common, with those of their domain and with all.
    topics: Vec<Vec<f32>>,
    pool: Vec<f32>,
    own: f32,
    offsets: Random,
    values: Vec<f32>,
    codes: [u8; 256],
    scale: u16,
}

/// Magnitudes beyond so many standard deviations are cut, for a finer scale.
const LARGEST: f32 = 3.2;

impl TokenRows {
    /// Rows of `hidden` weights whose standard deviation is `std`, with these shares of variance; the rest is the token's
    /// own. Directions depend on `seed` alone, so that an output matrix finds the topic that an embedding put in.
    pub(super) fn new(name: &str, hidden: usize, std: f32, shares: Shares, seed: u64) -> Self {
        let add = |sum: &mut [f32], name: &str, share: f32| {
            let mut random = Random::named(seed, name);
            sum.iter_mut().for_each(|value| *value += random.normal() * share.sqrt());
        };
        let topic = |t| {
            let mut sum = vec![0.0; hidden];
            add(&mut sum, "all tokens", shares.all);
            add(&mut sum, &format!("domain {}", t % DOMAINS), shares.domain);
            add(&mut sum, &format!("topic {t}"), shares.topic);
            sum
        };
        let mut own = Random::named(seed, name);
        let step = LARGEST / 127.0;
        Self {
            topics: (0..TOPICS).map(topic).collect(),
            pool: (0..POOL_WEIGHTS.max(2 * hidden)).map(|_| own.normal()).collect(),
            own: (1.0 - shares.all - shares.domain - shares.topic).max(0.0).sqrt(),
            offsets: own,
            values: vec![0.0; hidden],
            codes: std::array::from_fn(|i| nearest(i as i32 - 128)),
            scale: f16_bits(std * step),
        }
    }

    /// Appends the row of token `id`. Rows are to be asked for in order from 0.
    pub(super) fn append(&mut self, id: usize, out: &mut Vec<u8>) {
        let hidden = self.values.len();
        let start = self.offsets.below(self.pool.len() - hidden);
        let own = &self.pool[start..start + hidden];
        let parts = self.topics[id % TOPICS].iter().zip(own);
        for (value, (topic, own)) in self.values.iter_mut().zip(parts) {
            *value = topic + self.own * own;
        }
        for block in self.values.chunks_exact(TensorType::IQ4_XS.block_weights()) {
            out.extend(self.scale.to_le_bytes());
            // Every group of 32 has a scale of 1, which is stored as 33: low bits 1, high bits 2.
            out.extend([0xAA; 2]);
            out.extend([0x11; 4]);
            for group in block.as_chunks::<32>().0 {
                // A conversion saturates: what lies outside becomes the largest.
                let places = group.map(|value| (value * (127.0 / LARGEST) + 128.5) as u8);
                let code = |i: usize| self.codes[usize::from(places[i])];
                out.extend_from_slice(&std::array::from_fn::<u8, 16, _>(|i| code(i) | code(i + 16) << 4));
            }
        }
    }
}

/// The code of IQ4 whose value is nearest.
fn nearest(value: i32) -> u8 {
    (0..16u8).min_by_key(|code| (i32::from(IQ4_VALUES[usize::from(*code)]) - value).abs()).expect("there are 16 codes")
}

#[cfg(test)]
mod tests {
    use strata_quant::decode_row;

    use super::*;

    fn decoded_rows(shares: Shares, ids: usize) -> Vec<Vec<f32>> {
        let mut rows = TokenRows::new("x", 2560, 0.5, shares, 1);
        let row = |id| {
            let (mut bytes, mut values) = (Vec::new(), vec![0.0; 2560]);
            rows.append(id, &mut bytes);
            decode_row(TensorType::IQ4_XS, &bytes, &mut values);
            values
        };
        (0..ids).map(row).collect()
    }

    fn dot(a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>() / a.len() as f32
    }

    /// Products of rows show the shares: all have the first in common, a domain the second as well, a topic all three.
    #[test]
    fn rows_share_what_they_should() {
        let rows = decoded_rows(Shares { all: 0.2, domain: 0.15, topic: 0.25 }, 2 * TOPICS);
        let near = |got: f32, want: f32| assert!((got - want).abs() < 0.07, "{got} is not near {want}");
        for (a, b, want) in
            [(0, 0, 1.0), (0, TOPICS, 0.6), (3, TOPICS + 3, 0.6), (0, 4, 0.35), (0, 1, 0.2), (5, TOPICS + 7, 0.2)]
        {
            near(dot(&rows[a], &rows[b]) / 0.25, want);
        }
    }

    #[test]
    fn a_prompt_stays_with_domains_and_topics() {
        let shape = Shape::cut(crate::SynthShape::FlashNextIq2, None, None, Some(0)).unwrap();
        for topic_tokens in [8, 64] {
            let ids = prompt(&shape, &Routing { topic_tokens, ..Routing::default() }, 3);
            assert_eq!(ids.len(), PROMPT_TOKENS);
            assert!(ids.iter().all(|id| (*id as usize) < prompt_vocabulary(&shape)));
            let changes = ids.windows(2).filter(|pair| pair[0] % 64 != pair[1] % 64).count();
            // One change in 16 leads back to the same topic.
            let want = ids.len() as f64 / f64::from(topic_tokens) * 15.0 / 16.0;
            for (n, document) in ids.chunks(DOCUMENT_TOKENS).enumerate() {
                assert!(document.iter().all(|id| *id as usize % DOMAINS == n % DOMAINS), "document {n}");
            }
            assert!((changes as f64 - want).abs() < 4.0 * want.sqrt(), "{changes} changes, expected about {want}");
        }
    }

    #[test]
    fn frequent_tokens_come_more_often() {
        let shape = Shape::cut(crate::SynthShape::FlashNextIq2, None, None, Some(0)).unwrap();
        let ids = prompt(&shape, &Routing::default(), 3);
        let of_rank = |rank| ids.iter().filter(|id| **id as usize / TOPICS == rank).count() as f64;
        // 1/3 to 1/13: chances of ranks 0 and 10.
        let ratio = of_rank(0) / of_rank(10);
        assert!((3.0..6.5).contains(&ratio), "{ratio}");
    }
}
