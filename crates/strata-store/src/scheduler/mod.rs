//! Which record is read next, into which slot: the core of a store that is smaller than the model.
//!
//! Owns: who is in which slot, what the layer at hand demands, what is expected, and the counts. Promises: an expert is
//! never read while it is in memory or on its way; what a layer demands is handed out exactly once, or reported as failed;
//! a slot that is out or being filled is never given to another record; any arena of at least [`Limits::least_slots`]
//! slots makes progress; the same events give the same answers; nothing is allocated after [`Scheduler::new`], but where
//! passes are left.
//! Refuses: threads, clocks, files and bytes. It is driven: events come in by methods, and the driver pulls what is to be
//! done by [`Scheduler::next_read`] and [`Scheduler::next_outcome`].
//!
//! A read is decided when it is pulled, never before. So nothing waits in the order in which it was asked for: demand
//! overtakes read-ahead, and read-ahead that turns out not to be needed is dropped, without any queue.

mod ahead;
mod chains;
mod counts;
mod events;
mod leave;
mod shrink;
mod slots;

use std::collections::VecDeque;

use thiserror::Error;

pub use counts::{ByClass, Counts, Forecasts, Tally};

use crate::ExpertId;
use ahead::{Ahead, When};
use chains::Chains;
use leave::Left;

/// The fixed sizes of a scheduler.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of one record, for each layer.
    pub record_bytes: Vec<u64>,
    /// Experts of a layer.
    pub experts: u32,
    /// Experts that one token is routed to.
    pub top_k: u32,
    /// Slots of the arena, at first: it can [shrink](Scheduler::shrink).
    pub slots: u32,
    /// Most reads at a time.
    pub depth: u32,
}

/// Part of the arena that is not for the hot set.
const RING_PERCENT: u32 = 15;

impl Limits {
    /// The smallest legal arena: the routes of two layers, and slots to be filled meanwhile.
    pub fn least_slots(&self) -> u32 {
        self.top_k.saturating_mul(2).saturating_add(self.depth)
    }

    /// Slots through which a pass streams what is not in the hot set: at most a sixth or so of the arena, but what progress
    /// needs, and no more than two layers of experts.
    pub fn ring_slots(&self) -> u32 {
        (self.slots / 100 * RING_PERCENT).min(self.experts.saturating_mul(2)).max(self.least_slots()).min(self.slots)
    }

    /// Slots of the hot set: those that the ring leaves, or all where every expert has one.
    pub fn hot_slots(&self) -> u32 {
        let experts = self.record_bytes.len() as u64 * u64::from(self.experts);
        if u64::from(self.slots) >= experts { self.slots } else { self.slots - self.ring_slots() }
    }
}

/// The arena is smaller than the smallest legal one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the arena has {slots} slots; at least {least_slots} are needed: twice the experts of a token, and one for each read \
     at a time"
)]
pub struct ArenaTooSmall {
    /// Slots given.
    pub slots: u32,
    /// Slots needed.
    pub least_slots: u32,
}

/// What a pass is, which decides what it leaves in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassKind {
    /// A part of a prompt: a sweep over nearly all experts. What it has used gives way first, because a sweep comes back
    /// to it last, and the hot set is left alone.
    Prompt,
    /// One token or a few: what is used enters the hot set, whose member used longest ago leaves it. Of those that left
    /// first, the one used least gives way.
    Decode,
}

impl PassKind {
    /// The most rows of a pass that counts as writing, not as reading a prompt: one token, or a few that were guessed.
    pub const DECODE_ROWS: usize = 8;

    /// What a pass of so many rows is.
    pub fn of_rows(rows: usize) -> Self {
        if rows <= Self::DECODE_ROWS { Self::Decode } else { Self::Prompt }
    }
}

/// Names a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassNumber(u64);

/// Why a record is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The layer at hand needs it.
    Demand = 0,
    /// A forecast says that a layer will need it.
    ReadAhead = 1,
    /// It belongs to the hot set, which is loaded when there is nothing else to read.
    HotSet = 2,
}

impl Class {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Demand, Self::ReadAhead, Self::HotSet];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Demand => "demand",
            Self::ReadAhead => "ahead",
            Self::HotSet => "hot",
        }
    }
}

/// A slot, and which filling of it is meant: the generation changes whenever the slot is given to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId {
    /// Index in the arena.
    pub index: u32,
    /// Counts the records that the slot was given to.
    pub generation: u32,
}

/// A read to be started now. It is known by its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Where the record goes.
    pub slot: SlotId,
    /// Whose record it is.
    pub expert: ExpertId,
    /// Why it is read.
    pub class: Class,
    /// Whose record was in the slot, and is overwritten.
    pub evicted: Option<ExpertId>,
}

/// What became of a demanded expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in memory. The slot is pinned until it is given back by [`Scheduler::release`].
    Ready {
        /// The expert.
        expert: ExpertId,
        /// Its slot.
        slot: SlotId,
    },
    /// Its record could not be read in this pass.
    Failed {
        /// The expert.
        expert: ExpertId,
    },
}

/// What the pass wants of an expert.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Nothing,
    /// A pass that was left expected it. It is kept as long as there is room, and not read.
    Left,
    /// Its layer is expected to demand it.
    Forecast,
    /// Its layer, the one at hand, demands it.
    Demand,
    /// It was demanded, and has been handed out or has failed.
    Served,
}

#[derive(Clone, Copy)]
struct Expert {
    need: Need,
    /// Rows that need it, or are expected to.
    tokens: u32,
    /// A forecast asked for it in this pass, before it was demanded.
    is_forecast: bool,
    /// It is in the list of what its layer wants.
    is_listed: bool,
    /// The strip that demanded it first, when nobody had asked for it before.
    surprise: Option<u32>,
    is_hot: bool,
    /// The logarithm, to base 2, of its uses in decode: one in pass 0 counts 1, and later ones more.
    log_uses: f64,
    /// The pass in which its read failed last.
    failed_in_pass: Option<u64>,
    /// Where its record is, or will be.
    slot: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotState {
    Free,
    Reading,
    Resident,
}

#[derive(Clone, Copy)]
struct Slot {
    generation: u32,
    state: SlotState,
    /// Number of the expert in the table; of no meaning while the slot is free.
    expert: u32,
    /// Claims that are out.
    pins: u32,
    class: Class,
    /// The pass in which its read was started, and what that was.
    read_in_pass: u64,
    kind: PassKind,
    /// It was read for a pass that has not used it yet.
    is_unused: bool,
    /// Of read-ahead: when it was forecast.
    ahead: Option<When>,
}

/// Chains of slots. Those that are in none are being read, are out, belong to the hot set, or were given up.
mod chain {
    /// Empty.
    pub(super) const FREE: usize = 0;
    /// Resident and not needed, the next to give way first.
    pub(super) const COLD: usize = 1;
    /// Resident and forecast, the most useful first: in order of arrival.
    pub(super) const AHEAD: usize = 2;
    /// Resident, demanded and not handed out yet, in order of arrival.
    pub(super) const READY: usize = 3;
    /// Given up, and the driver was not told yet.
    pub(super) const RETIRED: usize = 4;
    pub(super) const COUNT: usize = 5;
}

/// The state machine. For the order of events see [`begin_pass`](Self::begin_pass).
pub struct Scheduler {
    limits: Limits,
    /// `[layers][experts]`.
    experts: Vec<Expert>,
    /// For each layer, the experts that the pass demands, expects, or did so; from when the layer is closed in order.
    wanted: Vec<Vec<u32>>,
    slots: Vec<Slot>,
    chains: Chains,
    /// The resident ones of the hot set, in the one chain that there is, the coldest first.
    hot: Chains,
    /// Hot set to be loaded: what is left from `hot_loaded` on.
    hot_list: Vec<u32>,
    hot_loaded: usize,
    /// Slots that are not free and do not hold a member of the hot set, and how many there may be: the other slots are
    /// kept for the hot set.
    ring_used: u32,
    ring_slots: u32,
    /// Slots that the arena still has and must give up, because it shrank.
    surplus: u32,
    in_flight: u32,
    kind: PassKind,
    /// Number of the pass, from 1.
    pass: u64,
    /// Passes that were begun.
    passes: u64,
    /// Passes that were left between two layers.
    left: Vec<Left>,
    /// Passes that were steps of a text.
    age: u64,
    /// The pass leaves out layers.
    is_partial: bool,
    is_in_pass: bool,
    /// The layer at hand.
    layer: u32,
    /// Strips of it that were routed.
    strips: u32,
    is_closed: bool,
    /// Demanded experts that have not been handed out.
    outstanding: u32,
    /// Of these, those for which no read was started.
    unread_demand: u32,
    /// Forecast experts for which no read was started, for each layer.
    unread_ahead: Vec<u32>,
    /// Demanded experts that failed and were not reported yet.
    failed: VecDeque<u32>,
    /// Rows that must be expected to need an expert before it is read ahead.
    forecast_min: u32,
    ahead: Ahead,
    counts: Counts,
}

impl Scheduler {
    /// An empty arena. The members of `hot`, the hottest first, are to be loaded and to stay; as many are taken as leave
    /// the smallest legal arena to all others, or all when every expert has a slot, and those that do not exist are skipped.
    ///
    /// # Errors
    /// When there are fewer than [`Limits::least_slots`] slots, and fewer than experts.
    ///
    /// # Panics
    /// When reads are limited to none at a time, or the experts are too many to be numbered.
    pub fn new(limits: Limits, hot: &[ExpertId]) -> Result<Self, ArenaTooSmall> {
        assert!(limits.depth > 0, "at least one read at a time");
        let layers = limits.record_bytes.len();
        let experts = layers * limits.experts as usize;
        assert!(u32::try_from(experts).is_ok(), "experts are numbered in 32 bits");
        // Where every expert has a slot, none ever has to give way.
        let least_slots = if limits.slots as usize >= experts { 0 } else { limits.least_slots() };
        if limits.slots < least_slots {
            return Err(ArenaTooSmall { slots: limits.slots, least_slots });
        }
        let expert = Expert {
            need: Need::Nothing,
            tokens: 0,
            is_forecast: false,
            is_listed: false,
            surprise: None,
            is_hot: false,
            log_uses: f64::NEG_INFINITY,
            failed_in_pass: None,
            slot: None,
        };
        let slot = Slot {
            generation: 0,
            state: SlotState::Free,
            expert: 0,
            pins: 0,
            class: Class::HotSet,
            read_in_pass: 0,
            kind: PassKind::Prompt,
            is_unused: false,
            ahead: None,
        };
        let slots = limits.slots as usize;
        let token_bytes = limits.record_bytes.iter().sum::<u64>() * u64::from(limits.top_k);
        let mut scheduler = Self {
            experts: vec![expert; experts],
            wanted: std::iter::repeat_with(|| Vec::with_capacity(limits.experts as usize)).take(layers).collect(),
            slots: vec![slot; slots],
            chains: Chains::new(chain::COUNT, slots),
            hot: Chains::new(1, slots),
            hot_list: Vec::new(),
            hot_loaded: 0,
            ring_used: 0,
            ring_slots: 0,
            surplus: 0,
            in_flight: 0,
            kind: PassKind::Prompt,
            pass: 0,
            passes: 0,
            left: Vec::new(),
            age: 0,
            is_partial: false,
            is_in_pass: false,
            layer: 0,
            strips: 0,
            is_closed: false,
            outstanding: 0,
            unread_demand: 0,
            unread_ahead: vec![0; layers],
            failed: VecDeque::with_capacity(limits.experts as usize),
            forecast_min: 1,
            ahead: Ahead::new(layers, token_bytes),
            counts: Counts::default(),
            limits,
        };
        (0..scheduler.limits.slots).for_each(|slot| scheduler.chains.push_last(chain::FREE, slot));
        for id in hot {
            let Some(number) = scheduler.number(*id) else { continue };
            let expert = &mut scheduler.experts[number as usize];
            let room = scheduler.hot_list.len() < (scheduler.limits.slots - least_slots) as usize;
            if room && !std::mem::replace(&mut expert.is_hot, true) {
                scheduler.hot_list.push(number);
            }
        }
        scheduler.ring_slots = scheduler.limits.slots - scheduler.hot_list.len() as u32;
        Ok(scheduler)
    }

    /// What was counted so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Forgets what was counted since `counts` were all.
    pub(crate) fn set_counts(&mut self, counts: Counts) {
        self.counts = counts;
    }

    /// Demanded experts that have not been handed out or reported as failed.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Experts of a layer that are to be read ahead, and whose reads were not started.
    pub fn unread_ahead(&self, layer: u32) -> usize {
        if layer as usize >= self.limits.record_bytes.len() {
            return 0;
        }
        let experts = self.wanted[layer as usize].iter().map(|number| &self.experts[*number as usize]);
        let is_unread = |expert: &&Expert| {
            expert.need == Need::Forecast && expert.slot.is_none() && expert.tokens >= self.forecast_min
        };
        experts.filter(is_unread).count()
    }

    /// Rows that the layer at hand needs an expert for, as far as they were told.
    pub fn tokens(&self, id: ExpertId) -> u32 {
        self.number(id).map_or(0, |number| self.experts[number as usize].tokens)
    }

    /// Members of the hot set that are in memory, the hottest first.
    pub fn hot_set(&self) -> impl Iterator<Item = ExpertId> {
        self.hot.backwards(0).map(|slot| self.id(self.slots[slot as usize].expert))
    }

    /// Members of the hot set that are still to be loaded, the hottest first.
    pub fn hot_to_load(&self) -> impl Iterator<Item = ExpertId> {
        let left = self.hot_list[self.hot_loaded..].iter();
        left.map(|number| (self.id(*number), &self.experts[*number as usize]))
            .filter(|(_, expert)| expert.is_hot && expert.slot.is_none())
            .map(|(id, _)| id)
    }

    /// Experts in memory that nobody is filling or has evicted, with their slots.
    pub fn resident(&self) -> impl Iterator<Item = (ExpertId, SlotId)> {
        let slots = (0..).zip(&self.slots).filter(|(_, slot)| slot.state == SlotState::Resident);
        slots.map(|(index, slot)| (self.id(slot.expert), SlotId { index, generation: slot.generation }))
    }

    /// Whether any slot is out.
    pub fn is_any_out(&self) -> bool {
        self.slots.iter().any(|slot| slot.pins > 0)
    }

    /// Whether an expert is in memory.
    pub fn holds(&self, id: ExpertId) -> bool {
        self.number(id).is_some_and(|number| self.is_resident(number))
    }

    /// Slots that the arena has.
    pub fn slots(&self) -> u32 {
        self.limits.slots
    }

    /// Slots in which nothing is.
    pub fn free_slots(&self) -> impl Iterator<Item = u32> {
        self.chains.backwards(chain::FREE)
    }

    /// Only experts that so many rows are expected to need are read ahead, from now on.
    pub fn set_forecast_min(&mut self, tokens: u32) {
        self.forecast_min = tokens;
    }

    /// Place in the table of an expert, if it exists.
    fn number(&self, id: ExpertId) -> Option<u32> {
        let exists = (id.layer as usize) < self.limits.record_bytes.len() && id.index < self.limits.experts;
        exists.then(|| id.layer * self.limits.experts + id.index)
    }

    fn id(&self, number: u32) -> ExpertId {
        ExpertId { layer: number / self.limits.experts, index: number % self.limits.experts }
    }

    /// Puts an expert on the list of what its layer wants.
    fn list(&mut self, number: u32) {
        let layer = self.id(number).layer as usize;
        if !std::mem::replace(&mut self.experts[number as usize].is_listed, true) {
            self.wanted[layer].push(number);
        }
    }

    fn is_resident(&self, number: u32) -> bool {
        let slot = self.experts[number as usize].slot;
        slot.is_some_and(|slot| self.slots[slot as usize].state == SlotState::Resident)
    }

    /// Whether what is in a slot, or on its way there, was read for the pass at hand.
    fn is_of_this_pass(&self, slot: u32) -> bool {
        let slot = &self.slots[slot as usize];
        slot.read_in_pass == self.pass && slot.class != Class::HotSet
    }

    fn record_bytes(&self, number: u32) -> u64 {
        self.limits.record_bytes[self.id(number).layer as usize]
    }
}
