//! Read-ahead for a single row: which of the experts that the next layer's router names are worth a read.
//!
//! A record that is read for nothing costs time only when it stands in the way of one that is waited for. So choices are
//! read in the order of their ranks, while nothing that is demanded is missing, and as long as the chance that the layer
//! needs them is above a *break-even*. The chance is measured, for each layer and rank, of choices that were not in memory.
//! The break-even is the part of the read that the drive has no time for before the layer's demand comes: nothing while it
//! has time for a whole record, everything when it has none. It is no less than the part of the needed bytes that was read
//! in vain lately, so that guesses get the rarer the worse they are, and there are none above [`MOST_WASTED`].

use super::{Need, Scheduler};
use crate::ExpertId;

/// Ranks that are told apart. What is behind them is not read ahead.
pub(super) const RANKS: usize = 32;
/// No guess is worth a read whose chance is less, however idle the drive.
const LEAST_CHANCE: f64 = 0.2;
/// Bytes that may be read in vain, for each byte that was needed and not in memory.
const MOST_WASTED: f64 = 0.5;
/// What is left of the bytes needed and wasted after each pass: some fifty tokens count.
const KEPT_BYTES: f64 = 0.98;
/// A chance is believed like that of so many choices: that of a rank in all layers until a layer has its own, and one half
/// until there is any.
const BELIEVED_CHOICES: f64 = 8.0;
/// When a rank of a layer was counted so often, older counts are halved.
const MOST_COUNTED: u32 = 256;

/// How often choices of one kind were needed.
#[derive(Clone, Copy, Default)]
struct Hits {
    counted: u32,
    needed: u32,
}

impl Hits {
    fn add(&mut self, is_needed: bool, most_counted: u32) {
        if self.counted == most_counted {
            (self.counted, self.needed) = (self.counted / 2, self.needed / 2);
        }
        self.counted += 1;
        self.needed += u32::from(is_needed);
    }

    /// The part that was needed; `expected` before any were counted.
    fn chance(self, expected: f64) -> f64 {
        (f64::from(self.needed) + BELIEVED_CHOICES * expected) / (f64::from(self.counted) + BELIEVED_CHOICES)
    }
}

/// The forecast at hand, and what was learned from those before it.
pub(super) struct Ahead {
    /// The layer that it is of, if there is one.
    layer: Option<u32>,
    /// Its choices that were not in memory: number of the expert, and rank.
    choices: Vec<(u32, usize)>,
    /// Records that the drive is expected to have time for until the next demand.
    idle_records: f64,
    /// `[layers][RANKS]`.
    of_layer: Vec<Hits>,
    of_rank: [Hits; RANKS],
    /// Bytes of look-ups of single tokens that were not resident, and bytes read ahead of them in vain; older ones count
    /// less.
    needed_bytes: f64,
    wasted_bytes: f64,
    /// One token's records: so much is forgiven at first.
    spare_bytes: f64,
}

impl Ahead {
    pub(super) fn new(layers: usize, token_bytes: u64) -> Self {
        Self {
            layer: None,
            choices: Vec::with_capacity(RANKS),
            idle_records: 0.0,
            of_layer: vec![Hits::default(); layers * RANKS],
            of_rank: [Hits::default(); RANKS],
            needed_bytes: 0.0,
            wasted_bytes: 0.0,
            spare_bytes: token_bytes as f64,
        }
    }

    /// Whether the forecast at hand is of this layer.
    pub(super) fn is_of(&self, layer: u32) -> bool {
        self.layer == Some(layer)
    }

    fn chance(&self, layer: u32, rank: usize) -> f64 {
        self.of_layer[layer as usize * RANKS + rank].chance(self.of_rank[rank].chance(0.5))
    }

    fn learn(&mut self, layer: u32, rank: usize, is_needed: bool) {
        self.of_layer[layer as usize * RANKS + rank].add(is_needed, MOST_COUNTED);
        self.of_rank[rank].add(is_needed, MOST_COUNTED * (self.of_layer.len() / RANKS) as u32);
    }

    /// The chance that a choice must have when the drive has time for so many records beside those under way.
    fn break_even(&self, idle_records: f64) -> f64 {
        let wasted = self.wasted_bytes / (self.needed_bytes + self.spare_bytes);
        if wasted >= MOST_WASTED {
            return 1.0;
        }
        (1.0 - idle_records).clamp(wasted.max(LEAST_CHANCE), 1.0)
    }

    /// Single tokens needed so many bytes that were not in memory.
    pub(super) fn add_needed(&mut self, record_bytes: u64) {
        self.needed_bytes += record_bytes as f64;
    }

    /// So many bytes were read ahead of single tokens in vain.
    pub(super) fn add_wasted(&mut self, record_bytes: u64) {
        self.wasted_bytes += record_bytes as f64;
    }

    /// The pass is over, or given up. `is_step`: it was a step of the text, by which what was counted becomes older.
    pub(super) fn end_pass(&mut self, is_step: bool) {
        self.layer = None;
        self.choices.clear();
        self.idle_records = 0.0;
        if is_step {
            self.needed_bytes *= KEPT_BYTES;
            self.wasted_bytes *= KEPT_BYTES;
        }
    }
}

impl Scheduler {
    /// The only row of the pass is expected to be routed to these experts of a layer that was not demanded yet, the most
    /// likely first. They are read ahead where that is worth it: see [`expect_idle`](Self::expect_idle). A hint, as
    /// [`forecast`](Self::forecast) is. It takes the place of one for another layer.
    pub fn forecast_ranked(&mut self, layer: u32, experts: &[u32]) {
        self.drop_choices();
        if !self.is_in_pass || layer < self.layer || (layer == self.layer && self.is_closed) {
            return;
        }
        self.ahead.layer = Some(layer);
        for (rank, index) in experts.iter().enumerate().take(RANKS) {
            let Some(number) = self.number(ExpertId { layer, index: *index }) else { continue };
            let expert = &mut self.experts[number as usize];
            if !matches!(expert.need, Need::Nothing | Need::Left) || expert.failed_in_pass == Some(self.pass) {
                continue;
            }
            expert.need = Need::Forecast;
            expert.tokens = 1;
            match expert.slot {
                None => {
                    self.unread_ahead[layer as usize] += 1;
                    self.ahead.choices.push((number, rank));
                }
                Some(slot) => self.settle_if_resident(slot),
            }
            self.list(number);
        }
    }

    /// Until the next layer is demanded, the drive is expected to have time for so many records, those under way among
    /// them.
    pub fn expect_idle(&mut self, records: f64) {
        self.ahead.idle_records = records;
    }

    /// Demanded experts of the layer at hand that are not in memory.
    pub fn missing(&self) -> u32 {
        if self.outstanding == 0 {
            0
        } else {
            self.demanded().filter(|number| !self.is_resident(*number)).count() as u32
        }
    }

    /// What was learned of forecasts by another scheduler of the same model.
    pub fn learn_from(&mut self, other: Self) {
        self.ahead = other.ahead;
        self.ahead.end_pass(true);
    }

    /// The choice of the forecast of a layer that is read ahead next.
    pub(super) fn next_choice(&self, layer: u32) -> Option<u32> {
        if self.missing() > 0 {
            return None;
        }
        let break_even = self.ahead.break_even(self.ahead.idle_records - f64::from(self.in_flight));
        let is_worth_it = |(number, rank): &&(u32, usize)| {
            let expert = &self.experts[*number as usize];
            expert.need == Need::Forecast && expert.slot.is_none() && self.ahead.chance(layer, *rank) > break_even
        };
        self.ahead.choices.iter().find(is_worth_it).map(|(number, _)| *number)
    }

    /// The row's demand of a layer is known: learns which of the choices were right, and drops the others.
    pub(super) fn judge_choices(&mut self, layer: u32) {
        for at in 0..self.ahead.choices.len() {
            let (number, rank) = self.ahead.choices[at];
            // What failed in this pass was needed, too, but is no look-up of anything.
            let need = self.experts[number as usize].need;
            self.ahead.learn(layer, rank, matches!(need, Need::Demand | Need::Served));
            self.counts.forecast.named += 1;
            self.counts.forecast.right += u64::from(need == Need::Demand);
        }
        let is_read = |number: &u32| self.experts[*number as usize].slot.is_some_and(|slot| self.is_of_this_pass(slot));
        let missing = self.demanded().filter(|number| !self.is_resident(*number) || is_read(number)).count();
        self.counts.forecast.missing += missing as u64;
        self.drop_choices();
    }

    /// Forgets the forecast at hand: what is not demanded, in memory or not, and also what was on its way when it was made.
    pub(super) fn drop_choices(&mut self) {
        self.ahead.choices.clear();
        let Some(layer) = self.ahead.layer.take() else { return };
        for at in 0..self.wanted[layer as usize].len() {
            let number = self.wanted[layer as usize][at];
            let expert = &self.experts[number as usize];
            if expert.need == Need::Forecast {
                if expert.slot.is_none() {
                    self.unread_ahead[layer as usize] -= 1;
                }
                self.drop_need(number);
            }
        }
    }

    /// Demanded experts of the layer at hand that were not handed out.
    fn demanded(&self) -> impl Iterator<Item = u32> {
        let all = self.wanted[self.layer as usize].iter().copied();
        all.filter(|number| self.experts[*number as usize].need == Need::Demand)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_break_even_is_what_the_drive_has_no_time_for() {
        let mut ahead = Ahead::new(1, 1000);
        for (idle_records, break_even) in [(-1.0, 1.0), (0.0, 1.0), (0.4, 0.6), (0.75, 0.25), (1.0, 0.2), (9.0, 0.2)] {
            assert!((ahead.break_even(idle_records) - break_even).abs() < 1e-12, "{idle_records}");
        }
        // 900 of 2,000 and the 1,000 that are forgiven: three tenths in vain.
        ahead.add_needed(2000);
        ahead.add_wasted(900);
        assert!((ahead.break_even(9.0) - 0.3).abs() < 1e-12 && (ahead.break_even(0.5) - 0.5).abs() < 1e-12);
        ahead.add_wasted(600);
        assert_eq!(ahead.break_even(9.0), 1.0, "one half");
        ahead.end_pass(false);
        (0..50).for_each(|_| ahead.end_pass(true));
        assert!(
            (ahead.break_even(9.0) - 1500.0 * 0.98_f64.powi(50) / (2000.0 * 0.98_f64.powi(50) + 1000.0)).abs() < 1e-12
        );
    }

    #[test]
    fn a_chance_is_that_of_the_rank_until_the_layer_has_its_own() {
        let mut ahead = Ahead::new(2, 1);
        assert_eq!(ahead.chance(1, 3), 0.5);
        // By hand: eight that are believed, half of them right, and eight that were all right.
        (0..8).for_each(|_| ahead.learn(1, 3, true));
        assert_eq!(ahead.of_rank[3].chance(0.5), 0.75);
        assert_eq!(ahead.chance(1, 3), (8.0 + 8.0 * 0.75) / 16.0);
        assert_eq!((ahead.chance(0, 3), ahead.chance(0, 4)), (0.75, 0.5));
        (0..1000).for_each(|_| ahead.learn(0, 3, false));
        assert!(ahead.chance(0, 3) < 0.02 && ahead.of_layer[3].counted <= MOST_COUNTED);
    }
}
