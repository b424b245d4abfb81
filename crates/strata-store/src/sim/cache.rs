//! Caches of experts, as small as they can be: who gives way when another one comes in. For comparison with the engine's own,
//! which is the [scheduler](crate::scheduler).
//!
//! Experts come in groups, those that a layer of a pass uses: all of a group are in the cache together, so none gives way
//! to another of its group, and what is left behind depends on the group, not on which of it were there.

use std::collections::BTreeSet;

/// Who gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// Who was used longest ago (LRU).
    Recency,
    /// Who came in first, unless it was used since it was last asked (CLOCK).
    Clock,
    /// Who was used longest ago, in two parts (segmented LRU): who is used again is protected, and those that came in and
    /// were not used again give way first. Who has been protected longest without a use is not any more, when there are too
    /// many.
    Segmented {
        /// Slots that are for the protected.
        protected_slots: usize,
    },
    /// Who was used least, in and out of the cache; a use counts half after so many groups (LFU with decay).
    Frequency {
        /// How many groups, at least 1.
        half_life_groups: u32,
    },
}

/// A cache of experts, which are known by numbers.
pub struct Cache {
    eviction: Eviction,
    slots: usize,
    /// Who gives way, the first one first; of a segmented cache, those that are not protected.
    ranked: Ranked,
    /// Who gives way after those.
    protected: Ranked,
    /// By expert: was used since it was last asked.
    is_used: Vec<bool>,
    /// By expert: the logarithm of its uses, those of the first group counting 1 and later ones more.
    log_uses: Vec<f64>,
    /// By expert: the group that it was in last, from 1.
    group_of: Vec<u64>,
    uses: u64,
    groups: u64,
}

impl Cache {
    /// An empty one, for the experts below `experts`.
    pub fn new(eviction: Eviction, slots: usize, experts: usize) -> Self {
        Self {
            eviction,
            slots,
            ranked: Ranked::new(experts),
            protected: Ranked::new(experts),
            is_used: vec![false; experts],
            log_uses: vec![f64::NEG_INFINITY; experts],
            group_of: vec![0; experts],
            uses: 0,
            groups: 0,
        }
    }

    /// Whether an expert is in it.
    pub fn holds(&self, expert: u32) -> bool {
        self.ranked.holds(expert) || self.protected.holds(expert)
    }

    /// A group of distinct experts is used; gives how many of them were there. All are in the cache afterwards, or as many as
    /// fit.
    pub fn use_group(&mut self, group: &[u32]) -> usize {
        self.groups += 1;
        group.iter().for_each(|expert| self.group_of[*expert as usize] = self.groups);
        let hits = group.iter().filter(|expert| self.holds(**expert)).count();
        let mut room = self.slots - self.ranked.len() - self.protected.len();
        while room < group.len() - hits && self.evict() {
            room += 1;
        }
        for expert in group {
            let was_there = self.holds(*expert);
            if was_there || room > 0 {
                room -= usize::from(!was_there);
                self.rank(*expert, was_there);
            }
        }
        hits
    }

    /// An expert of the group is used.
    fn rank(&mut self, expert: u32, was_there: bool) {
        self.uses += 1;
        match self.eviction {
            Eviction::Clock if was_there => self.is_used[expert as usize] = true,
            Eviction::Segmented { protected_slots } if was_there => {
                self.ranked.remove(expert);
                self.protected.put(expert, self.uses);
                if self.protected.len() > protected_slots
                    && let Some(oldest) = self.protected.first(|_| true)
                {
                    self.protected.remove(oldest);
                    self.ranked.put(oldest, self.uses);
                }
            }
            Eviction::Recency | Eviction::Clock | Eviction::Segmented { .. } => self.ranked.put(expert, self.uses),
            Eviction::Frequency { half_life_groups } => {
                let uses = &mut self.log_uses[expert as usize];
                let use_now = self.groups as f64 / f64::from(half_life_groups);
                // log2(2^a + 2^b), with neither power taken.
                *uses = use_now.max(*uses) + (-(use_now - *uses).abs()).exp2().ln_1p() / std::f64::consts::LN_2;
                // Positive numbers are in the order of their bits.
                self.ranked.put(expert, uses.to_bits());
            }
        }
    }

    /// One that is not of the group gives way, if there is any.
    fn evict(&mut self) -> bool {
        let is_other = |expert: u32| self.group_of[expert as usize] != self.groups;
        if self.eviction == Eviction::Clock {
            while let Some(first) = self.ranked.first(is_other).filter(|first| self.is_used[*first as usize]) {
                self.is_used[first as usize] = false;
                self.uses += 1;
                self.ranked.put(first, self.uses);
            }
        }
        if let Some(first) = self.ranked.first(is_other) {
            self.ranked.remove(first);
            return true;
        }
        let first = self.protected.first(is_other);
        first.inspect(|first| self.protected.remove(*first)).is_some()
    }
}

/// Experts in the order of a number, the least first.
struct Ranked {
    order: BTreeSet<(u64, u32)>,
    /// By expert.
    numbers: Vec<Option<u64>>,
}

impl Ranked {
    fn new(experts: usize) -> Self {
        Self { order: BTreeSet::new(), numbers: vec![None; experts] }
    }

    fn len(&self) -> usize {
        self.order.len()
    }

    fn holds(&self, expert: u32) -> bool {
        self.numbers[expert as usize].is_some()
    }

    fn put(&mut self, expert: u32, number: u64) {
        self.remove(expert);
        self.numbers[expert as usize] = Some(number);
        self.order.insert((number, expert));
    }

    fn remove(&mut self, expert: u32) {
        if let Some(number) = self.numbers[expert as usize].take() {
            self.order.remove(&(number, expert));
        }
    }

    fn first(&self, is_meant: impl Fn(u32) -> bool) -> Option<u32> {
        self.order.iter().map(|(_, expert)| *expert).find(|expert| is_meant(*expert))
    }
}

/// The hits of the best of all caches that hold a group together and have room for it, by group: it knows what comes
/// (Belady 1966), and begins with what is best to begin with.
pub(super) fn best_hits(groups: &[Vec<u32>], slots: usize, experts: usize) -> Vec<usize> {
    // When each expert of each group is used next.
    let mut next = vec![u64::MAX; experts];
    let mut nexts: Vec<Vec<u64>> = Vec::with_capacity(groups.len());
    for (at, group) in groups.iter().enumerate().rev() {
        nexts.push(group.iter().map(|expert| std::mem::replace(&mut next[*expert as usize], at as u64)).collect());
    }
    nexts.reverse();

    let mut held = Ranked::new(experts);
    let mut first_uses: Vec<_> = (0u32..).zip(next).filter(|(_, at)| *at != u64::MAX).collect();
    first_uses.sort_by_key(|(expert, at)| (*at, *expert));
    first_uses.iter().take(slots).for_each(|(expert, at)| held.put(*expert, *at));
    let use_group = |(group, nexts): (&Vec<u32>, &Vec<u64>)| {
        let hits = group.iter().filter(|expert| held.holds(**expert)).count();
        // Those of the group are used first of all, now: they are the last to give way.
        for _ in slots..held.len() + group.len() - hits {
            if let Some((_, last)) = held.order.last().copied() {
                held.remove(last);
            }
        }
        group.iter().zip(nexts).for_each(|(expert, at)| held.put(*expert, *at));
        hits
    };
    groups.iter().zip(&nexts).map(use_group).collect()
}
