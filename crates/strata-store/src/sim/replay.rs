//! The decode routes of a trace, looked up in caches: what the arena does with them, what others would do, and what is the
//! best that any could.

use super::cache::{Cache, Eviction, best_hits};
use super::{Strip, Trace};
use crate::ExpertId;
use crate::scheduler::{ArenaTooSmall, Limits, Outcome, PassKind, Scheduler};

/// Look-ups: distinct experts that a layer of a pass uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Of experts that were in memory.
    pub hits: u64,
    /// Of all others.
    pub misses: u64,
}

impl Lookups {
    /// Hits of all, 0 to 1; 0 when there are none.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }
}

impl std::iter::Sum for Lookups {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self { hits: a.hits + b.hits, misses: a.misses + b.misses })
    }
}

/// What became of the decode routes of a trace: `[passes][layers]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay(Vec<Vec<Lookups>>);

impl Replay {
    /// All look-ups.
    pub fn all(&self) -> Lookups {
        self.first_passes(usize::MAX)
    }

    /// Those of the first passes.
    pub fn first_passes(&self, passes: usize) -> Lookups {
        self.0.iter().take(passes).flatten().copied().sum()
    }

    /// Those of each layer.
    pub fn layers(&self) -> Vec<Lookups> {
        let layers = self.0.first().map_or(0, Vec::len);
        (0..layers).map(|layer| self.0.iter().map(|pass| pass[layer]).sum()).collect()
    }
}

/// An arena as a trace meets it.
#[derive(Clone, Copy, Debug)]
pub struct Arena<'a> {
    /// Its slots.
    pub slots: u32,
    /// Most reads at a time, at least 1.
    pub depth: u32,
    /// Most tokens of a pass of the text.
    pub pass_tokens: u32,
    /// Experts that stay in memory, the hottest first: as many as there are slots for are loaded before the text.
    pub hot: &'a [ExpertId],
}

/// The arena of the engine, by the engine's own scheduler: the text passes through it, then what came after. Nothing is
/// read ahead, and every read ends at once.
///
/// # Errors
/// When the arena is smaller than the smallest legal one.
///
/// # Panics
/// When no read may be under way.
pub fn arena(trace: &Trace, arena: &Arena<'_>) -> Result<Replay, ArenaTooSmall> {
    let limits = Limits {
        record_bytes: vec![1; trace.layers as usize],
        experts: trace.experts,
        top_k: trace.top_k,
        slots: arena.slots,
        depth: arena.depth,
    };
    let hot = &arena.hot[..arena.hot.len().min(limits.hot_slots() as usize)];
    let mut scheduler = Scheduler::new(limits, hot)?;
    read_all(&mut scheduler);
    for strips in trace.passes(arena.pass_tokens) {
        pass(&mut scheduler, strips);
    }
    Ok(Replay(trace.decode.iter().map(|strip| pass(&mut scheduler, std::slice::from_ref(strip))).collect()))
}

/// One pass; its look-ups, layer by layer.
fn pass(scheduler: &mut Scheduler, strips: &[Strip]) -> Vec<Lookups> {
    let rows: u32 = strips.iter().map(|strip| strip.rows).sum();
    scheduler.begin_pass(PassKind::of_rows(rows as usize));
    let layers = (0u32..).zip(0..strips[0].layers.len());
    let lookups = layers.map(|(layer, at)| {
        for strip in strips {
            scheduler.demand(layer, &strip.layers[at].demand).expect("a trace names experts that exist");
            read_all(scheduler);
        }
        let before = *scheduler.counts();
        scheduler.close(layer);
        let after = *scheduler.counts();
        while scheduler.outstanding() > 0 {
            while let Some(Outcome::Ready { slot, .. }) = scheduler.next_outcome() {
                scheduler.release(slot);
            }
            read_all(scheduler);
        }
        scheduler.layer_done(layer);
        let missed = (after.missed + after.ahead) - (before.missed + before.ahead);
        Lookups { hits: (after.resident - before.resident).records, misses: missed.records }
    });
    let lookups = lookups.collect();
    scheduler.end_pass();
    lookups
}

/// Reads what can be read.
fn read_all(scheduler: &mut Scheduler) {
    while let Some(read) = scheduler.next_read() {
        scheduler.read_done(read.slot);
    }
}

/// A cache of so many slots, which begins with the first of `hot` and does not see the text.
pub fn cache(trace: &Trace, eviction: Eviction, slots: u32, hot: &[ExpertId]) -> Replay {
    let mut cache = Cache::new(eviction, slots as usize, experts(trace));
    for id in hot[..hot.len().min(slots as usize)].iter().rev() {
        cache.use_group(&[id.layer * trace.experts + id.index]);
    }
    by_pass(trace, groups(trace).iter().map(|group| cache.use_group(group)))
}

/// The best that an arena of so many slots could do, whatever it began with.
pub fn best(trace: &Trace, slots: u32) -> Replay {
    by_pass(trace, best_hits(&groups(trace), slots as usize, experts(trace)).into_iter())
}

fn experts(trace: &Trace) -> usize {
    trace.layers as usize * trace.experts as usize
}

/// The experts of each layer of each pass, by number.
fn groups(trace: &Trace) -> Vec<Vec<u32>> {
    let layer = |(layer, demand): (u32, &[crate::Demand])| {
        demand.iter().map(|demand| layer * trace.experts + demand.expert).collect()
    };
    let pass = |strip: &Strip| -> Vec<Vec<u32>> {
        (0u32..).zip(strip.layers.iter().map(|routes| &routes.demand[..])).map(layer).collect()
    };
    trace.decode.iter().flat_map(pass).collect()
}

fn by_pass(trace: &Trace, mut hits: impl Iterator<Item = usize>) -> Replay {
    let pass = |strip: &Strip| {
        let layers = strip.layers.iter().zip(&mut hits);
        let lookups = |(routes, hits): (&super::LayerRoutes, usize)| Lookups {
            hits: hits as u64,
            misses: (routes.demand.len() - hits) as u64,
        };
        layers.map(lookups).collect()
    };
    Replay(trace.decode.iter().map(pass).collect())
}
