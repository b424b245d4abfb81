//! Orders of slots: a few chains over the same members, each member in at most one of them. Every operation takes constant
//! time and no memory.

/// No member.
const NONE: u32 = u32::MAX;

/// Chains over the members `0..members`.
pub(super) struct Chains {
    links: Vec<Link>,
    ends: Vec<Ends>,
}

#[derive(Clone, Copy)]
struct Link {
    chain: u32,
    before: u32,
    after: u32,
}

#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
}

impl Chains {
    /// `chains` empty ones.
    pub(super) fn new(chains: usize, members: usize) -> Self {
        let alone = Link { chain: NONE, before: NONE, after: NONE };
        Self { links: vec![alone; members], ends: vec![Ends { first: NONE, last: NONE }; chains] }
    }

    /// Its first member.
    pub(super) fn first(&self, chain: usize) -> Option<u32> {
        Some(self.ends[chain].first).filter(|member| *member != NONE)
    }

    /// Its last member.
    pub(super) fn last(&self, chain: usize) -> Option<u32> {
        Some(self.ends[chain].last).filter(|member| *member != NONE)
    }

    /// Its members, from the first to the last.
    pub(super) fn forwards(&self, chain: usize) -> impl Iterator<Item = u32> {
        std::iter::successors(self.first(chain), |member| {
            Some(self.links[*member as usize].after).filter(|after| *after != NONE)
        })
    }

    /// Its members, from the last to the first.
    pub(super) fn backwards(&self, chain: usize) -> impl Iterator<Item = u32> {
        std::iter::successors(self.last(chain), |member| {
            Some(self.links[*member as usize].before).filter(|before| *before != NONE)
        })
    }

    /// Makes a member its first one, wherever it was before.
    pub(super) fn push_first(&mut self, chain: usize, member: u32) {
        self.remove(member);
        let after = std::mem::replace(&mut self.ends[chain].first, member);
        self.links[member as usize] = Link { chain: chain as u32, before: NONE, after };
        match after {
            NONE => self.ends[chain].last = member,
            after => self.links[after as usize].before = member,
        }
    }

    /// Makes a member its last one, wherever it was before.
    pub(super) fn push_last(&mut self, chain: usize, member: u32) {
        self.remove(member);
        let before = std::mem::replace(&mut self.ends[chain].last, member);
        self.links[member as usize] = Link { chain: chain as u32, before, after: NONE };
        match before {
            NONE => self.ends[chain].first = member,
            before => self.links[before as usize].after = member,
        }
    }

    /// Takes a member out of the chain that it is in, if any.
    pub(super) fn remove(&mut self, member: u32) {
        let Link { chain, before, after } = self.links[member as usize];
        if chain == NONE {
            return;
        }
        match before {
            NONE => self.ends[chain as usize].first = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => self.ends[chain as usize].last = before,
            after => self.links[after as usize].before = before,
        }
        self.links[member as usize].chain = NONE;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chains_agree_with_queues(steps in prop::collection::vec((0..3_u8, 0..2_usize, 0..6_u32), 0..60)) {
            let mut chains = Chains::new(2, 6);
            let mut queues = [VecDeque::new(), VecDeque::new()];
            for (what, chain, member) in steps {
                queues.iter_mut().for_each(|queue| queue.retain(|m| *m != member));
                match what {
                    0 => {
                        chains.push_first(chain, member);
                        queues[chain].push_front(member);
                    }
                    1 => {
                        chains.push_last(chain, member);
                        queues[chain].push_back(member);
                    }
                    _ => chains.remove(member),
                }
                for (chain, queue) in queues.iter().enumerate() {
                    prop_assert_eq!(chains.first(chain), queue.front().copied());
                    prop_assert_eq!(chains.last(chain), queue.back().copied());
                    let walked: Vec<_> = chains.backwards(chain).collect();
                    prop_assert_eq!(walked, queue.iter().rev().copied().collect::<Vec<_>>());
                    prop_assert!(chains.forwards(chain).eq(queue.iter().copied()));
                }
            }
        }
    }
}
