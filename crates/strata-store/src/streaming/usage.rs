//! How much each expert is used: which experts are worth keeping, and which a layer is likely to need.

use crate::{Demand, ExpertId, Records};

/// Rows that each expert was used for, older ones counting less.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Experts of a layer.
    experts: usize,
    /// `[layers][experts]`.
    counts: Vec<u32>,
    /// The sum of all.
    total: u64,
}

/// When an expert was used for so many rows on average, all counts are halved.
const MOST_MEAN_COUNT: u64 = 1 << 16;

impl Usage {
    /// None so far.
    pub fn new(records: &Records) -> Self {
        let experts = records.layers.iter().map(|layer| layer.experts as usize).max().unwrap_or(0);
        Self::sized(records.layers.len(), experts)
    }

    /// None so far, of so many layers of so many experts.
    pub fn sized(layers: usize, experts: usize) -> Self {
        Self { experts, counts: vec![0; layers * experts], total: 0 }
    }

    /// `[layers][experts]`.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// That of an earlier run; `None` when it is of another model.
    pub fn with_counts(&self, counts: Vec<u32>) -> Option<Self> {
        let total = counts.iter().map(|count| u64::from(*count)).sum();
        (counts.len() == self.counts.len()).then_some(Self { experts: self.experts, counts, total })
    }

    /// Rows were routed to these experts of a layer, all of which exist.
    pub(crate) fn add(&mut self, layer: u32, experts: &[Demand]) {
        for demand in experts {
            let count = &mut self.counts[layer as usize * self.experts + demand.expert as usize];
            *count = count.saturating_add(demand.tokens);
            self.total += u64::from(demand.tokens);
        }
        if self.total > MOST_MEAN_COUNT * self.counts.len() as u64 {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().map(|count| u64::from(*count)).sum();
        }
    }

    /// The experts used most, the hottest first. Where nothing is known, all layers get as many.
    pub fn hottest(&self, most: usize) -> Vec<ExpertId> {
        let mut all: Vec<(u32, usize)> = self.counts.iter().copied().zip(0..).collect();
        all.sort_by_key(|&(count, number)| (std::cmp::Reverse(count), number % self.experts, number / self.experts));
        let id =
            |number: usize| ExpertId { layer: (number / self.experts) as u32, index: (number % self.experts) as u32 };
        all.into_iter().take(most).map(|(_, number)| id(number)).collect()
    }

    /// The experts of a layer that were used, most first, at most so many.
    pub(super) fn ranking(&self, layer: u32, most: usize, ranking: &mut Vec<Demand>) {
        ranking.clear();
        let Some(counts) = self.counts.chunks_exact(self.experts.max(1)).nth(layer as usize) else { return };
        let used = (0..).zip(counts).filter(|(_, count)| **count > 0);
        ranking.extend(used.map(|(expert, tokens)| Demand { expert, tokens: *tokens }));
        ranking.sort_unstable_by_key(|demand| (std::cmp::Reverse(demand.tokens), demand.expert));
        ranking.truncate(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LayerRecords, PartRange};

    fn usage(layers: usize, experts: u32) -> Usage {
        let part = || PartRange { file: 0, offset: 0, stride_bytes: 1, len_bytes: 1 };
        let layer = || LayerRecords { experts, parts: [part(), part(), part()] };
        Usage::new(&Records { layers: (0..layers).map(|_| layer()).collect(), top_k: 1 })
    }

    fn id(layer: u32, index: u32) -> ExpertId {
        ExpertId { layer, index }
    }

    #[test]
    fn the_hottest_are_those_used_most_and_else_spread_over_the_layers() {
        let mut usage = usage(3, 4);
        assert_eq!(usage.hottest(5), [id(0, 0), id(1, 0), id(2, 0), id(0, 1), id(1, 1)]);
        usage.add(1, &[Demand { expert: 3, tokens: 5 }, Demand { expert: 2, tokens: 1 }]);
        usage.add(2, &[Demand { expert: 0, tokens: 5 }]);
        assert_eq!(usage.hottest(4), [id(2, 0), id(1, 3), id(1, 2), id(0, 0)]);
        let mut ranking = Vec::new();
        usage.ranking(1, 9, &mut ranking);
        assert_eq!(ranking, [Demand { expert: 3, tokens: 5 }, Demand { expert: 2, tokens: 1 }]);
        usage.ranking(1, 1, &mut ranking);
        assert_eq!(ranking, [Demand { expert: 3, tokens: 5 }]);
        usage.ranking(7, 9, &mut ranking);
        assert!(ranking.is_empty());
    }

    #[test]
    fn counts_are_halved_before_they_overflow() {
        let mut usage = usage(1, 2);
        for _ in 0..100 {
            usage.add(0, &[Demand { expert: 0, tokens: 3 << 14 }, Demand { expert: 1, tokens: 1 << 14 }]);
        }
        let [a, b] = usage.counts() else { panic!() };
        assert!(*a < 1 << 18 && (2.9..3.1).contains(&(f64::from(*a) / f64::from(*b))), "{a} {b}");
        assert_eq!(usage.with_counts(vec![1]), None);
        assert_eq!(usage.with_counts(vec![1, 2]).unwrap().counts(), [1, 2]);
    }
}
