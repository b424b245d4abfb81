//! How much arithmetic a token takes, counted from the shapes.

use std::ops::Range;

use super::{Config, MixerKind};

/// Operations of the products of a forward pass, two for a multiply-add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flops {
    /// Products with matrices of weights.
    pub weights: u64,
    /// Products of tokens with each other or with a state: attention, the indexer's scores, the DeltaNet recurrence.
    pub mixing: u64,
}

impl Flops {
    /// Both together.
    pub fn total(self) -> u64 {
        self.weights + self.mixing
    }

    fn plus(self, other: Self) -> Self {
        Self { weights: self.weights + other.weights, mixing: self.mixing + other.mixing }
    }
}

impl Config {
    /// Operations of a forward pass over the tokens at `positions` that gives the logits of `logit_rows` of them, over
    /// `vocabulary` ids.
    ///
    /// Twice the sum, over layers and tokens, of these multiply-adds (names of spec 1; `W = S H`, `wide` values):
    ///
    /// - each of the two reads of the streams: `2 W R + W S`;
    /// - Gated DeltaNet: `H (C + 2 nv d) + 2 H nv` with `C = (2 nk + nv) d`; recurrence `3 nv d^2`;
    /// - attention: `H (2 nq hd + 2 nkv hd + nq hd)`, with an indexer `H (hi di + di)`; scores and values of the `A`
    ///   tokens attended to `2 nq hd A`, and where blocks are chosen among `nb`, `hi di nb` (spec 6.3);
    /// - mixture of experts: `H E + 3 H ff top_k + 3 H ff_shared`;
    /// - n-gram module, once: `heads * row_dim * (W + H)`;
    /// - each row of logits: `2 W R + H vocabulary`.
    ///
    /// Norms, gates, convolutions and rotations are not counted: together they are less than a hundredth.
    pub fn flops(&self, positions: Range<usize>, logit_rows: usize, vocabulary: usize) -> Flops {
        let tokens = positions.len() as u64;
        let mut sum = Flops::default();
        for mixer in &self.mixers {
            sum.weights += tokens * 2 * (self.mixer_weights(*mixer) + 2 * self.read_weights() + self.moe_weights());
            sum.mixing += match *mixer {
                MixerKind::Gdn => {
                    tokens * 2 * 3 * product(&[self.gdn.value_heads, self.gdn.head_dim, self.gdn.head_dim])
                }
                MixerKind::Qsa { block_tokens } => {
                    positions.clone().map(|position| 2 * self.attention_products(block_tokens, position + 1)).sum()
                }
            };
        }
        let wide = self.streams * self.hidden;
        if let Some(ple) = &self.ple {
            sum.weights += tokens * 2 * product(&[ple.rows_per_token(), ple.row_dim, wide + self.hidden]);
        }
        let logits = 2 * product(&[2, wide, self.low_rank]) + 2 * product(&[self.hidden, vocabulary]);
        sum.plus(Flops { weights: logit_rows as u64 * logits, mixing: 0 })
    }

    /// Weights of a read of the streams.
    fn read_weights(&self) -> u64 {
        product(&[self.streams * self.hidden, 2 * self.low_rank + self.streams])
    }

    fn mixer_weights(&self, mixer: MixerKind) -> u64 {
        let (gdn, attention) = (&self.gdn, &self.attention);
        let outputs = match mixer {
            MixerKind::Gdn => gdn.channels() + 2 * gdn.value_heads * gdn.head_dim + 2 * gdn.value_heads,
            MixerKind::Qsa { block_tokens } => {
                let indexer = if block_tokens > 0 { (attention.indexer_heads + 1) * attention.indexer_dim } else { 0 };
                (3 * attention.heads + 2 * attention.kv_heads) * attention.head_dim + indexer
            }
        };
        product(&[self.hidden, outputs])
    }

    /// Weights that a token meets in a mixture of experts.
    fn moe_weights(&self) -> u64 {
        let moe = &self.moe;
        product(&[self.hidden, moe.experts + 3 * (moe.ff * moe.top_k + moe.shared_ff)])
    }

    /// Multiply-adds of a token with the `visible` ones, itself among them.
    fn attention_products(&self, block_tokens: usize, visible: usize) -> u64 {
        let attention = &self.attention;
        let (attended, scored_blocks) = match visible.checked_div(block_tokens) {
            Some(blocks) if blocks > attention.indexer_tokens / block_tokens => {
                let budget = attention.indexer_tokens / block_tokens * block_tokens;
                (budget + visible % block_tokens, blocks)
            }
            _ => (visible, 0),
        };
        product(&[2, attention.heads, attention.head_dim, attended])
            + product(&[attention.indexer_heads, attention.indexer_dim, scored_blocks])
    }
}

fn product(sizes: &[usize]) -> u64 {
    sizes.iter().map(|size| *size as u64).product()
}

#[cfg(test)]
mod tests {
    use super::super::{AttentionConfig, GdnConfig, MoeConfig};
    use super::*;

    /// The published model's numbers, with these layers and without the n-gram module.
    fn published(mixers: &[MixerKind]) -> Config {
        Config {
            layers: mixers.len(),
            hidden: 2560,
            streams: 4,
            low_rank: 320,
            eps: 1e-6,
            context_length: 262_144,
            mixers: mixers.to_vec(),
            attention: AttentionConfig {
                heads: 24,
                kv_heads: 2,
                head_dim: 256,
                rotated: 64,
                theta: 1e7,
                indexer_heads: 4,
                indexer_dim: 128,
                indexer_tokens: 2048,
            },
            gdn: GdnConfig { key_heads: 16, value_heads: 48, head_dim: 128, conv_taps: 4 },
            moe: MoeConfig { experts: 512, top_k: 10, ff: 640, shared_ff: 640 },
            ple: None,
            warnings: Vec::new(),
        }
    }

    /// What every layer has: hyper-connections, router, ten experts and the shared one.
    const AROUND: u64 = 2 * (10240 * 320 + 320 * 10240 + 10240 * 4) + 2560 * 512 + 11 * 3 * 2560 * 640;

    #[test]
    fn a_gated_deltanet_layer_takes_253_million_by_hand() {
        let by_hand = 2560 * 10240 + 2560 * 6144 + 6144 * 2560 + 2 * 2560 * 48 + AROUND;
        let got = published(&[MixerKind::Gdn]).flops(7..8, 0, 1000);
        assert_eq!(got, Flops { weights: 2 * by_hand, mixing: 2 * 3 * 48 * 128 * 128 });
        assert_eq!(got.weights, 252_968_960);
        // Any other position and number of tokens is as much for each.
        assert_eq!(published(&[MixerKind::Gdn]).flops(0..100, 0, 1000).total(), 100 * got.total());
    }

    #[test]
    fn an_attention_layer_sees_all_tokens_then_the_budget() {
        let config = published(&[MixerKind::Qsa { block_tokens: 4 }]);
        let by_hand = 2560 * (24 * 512 + 2 * 512 + 4 * 128 + 128) + 24 * 256 * 2560 + AROUND;
        let at = |position: usize| config.flops(position..position + 1, 0, 1);
        assert_eq!(at(0), Flops { weights: 2 * by_hand, mixing: 2 * 2 * 24 * 256 });
        // 2051 visible tokens are 512 blocks and three more: all of them. One more token, and 513 blocks compete.
        assert_eq!(at(2050).mixing, 2 * 2 * 24 * 256 * 2051);
        assert_eq!(at(2051).mixing, 2 * (2 * 24 * 256 * 2048 + 4 * 128 * 513));
        assert_eq!(at(4097).mixing, 2 * (2 * 24 * 256 * 2050 + 4 * 128 * 1024));
        let all = published(&[MixerKind::Qsa { block_tokens: 0 }]).flops(4097..4098, 0, 1);
        assert_eq!(all, Flops { weights: 2 * (by_hand - 2560 * 640), mixing: 2 * 2 * 24 * 256 * 4098 });
    }

    #[test]
    fn logits_are_counted_for_the_rows_that_have_them() {
        let config = published(&[MixerKind::Gdn]);
        let head = config.flops(0..5, 3, 248_320).weights - config.flops(0..5, 0, 248_320).weights;
        assert_eq!(head, 3 * 2 * (2 * 10240 * 320 + 2560 * 248_320));
    }
}
