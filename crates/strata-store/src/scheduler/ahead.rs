//! Read-ahead for a single row: which of the experts that the next layer's router names are worth a read.
//!
//! A record that is read for nothing costs time only when it stands in the way of one that is waited for. So choices are
//! read in the order of their ranks, while nothing that is demanded is missing, and as long as the chance that the layer
//! needs them is above a *break-even*. The chance is measured, for each layer and rank, of choices that were not in memory.
//! The break-even is the part of the read that the drive has no time for before the layer's demand comes: nothing while it
//! has time for a whole record, everything when it has none. It is no less than the part of the needed bytes that was read
//! in vain lately, so that guesses get the rarer the worse they are, and there are none above [`MOST_WASTED`].
//!
//! Where the drive has time for more than that, the router after the next one may be asked, too: an *early* forecast. Its
//! choices have chances of their own, come after all of the next layer's that are worth it, and make those no rarer when
//! they are wrong. The layer's later forecast takes its place.

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

/// When a forecast is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// In the layer before.
    Next = 0,
    /// In the layer before that one.
    Early = 1,
}

impl When {
    const ALL: [Self; 2] = [Self::Next, Self::Early];
}

/// A forecast at hand.
struct Forecast {
    /// The layer that it is of, if there is one.
    layer: Option<u32>,
    /// Its choices that were not in memory before the pass: number of the expert, and rank.
    choices: Vec<(u32, usize)>,
}

/// What was learned from forecasts that were made at the same time.
struct Learned {
    /// `[layers][RANKS]`.
    of_layer: Vec<Hits>,
    of_rank: [Hits; RANKS],
    /// Bytes read ahead of single tokens in vain; older ones count less.
    wasted_bytes: f64,
}

/// The forecasts at hand, and what was learned from those before them.
pub(super) struct Ahead {
    /// By [`When`], those of even and of odd layers: an early one is at hand until its layer is demanded, when there is
    /// already the next layer's.
    at_hand: [[Forecast; 2]; 2],
    learned: [Learned; 2],
    /// Records that the drive is expected to have time for until the next demand.
    idle_records: f64,
    /// Bytes of look-ups of single tokens that were not resident; older ones count less.
    needed_bytes: f64,
    /// One token's records: so much is forgiven at first.
    spare_bytes: f64,
}

impl Ahead {
    pub(super) fn new(layers: usize, token_bytes: u64) -> Self {
        let forecast = || Forecast { layer: None, choices: Vec::with_capacity(RANKS) };
        let learned = || Learned {
            of_layer: vec![Hits::default(); layers * RANKS],
            of_rank: [Hits::default(); RANKS],
            wasted_bytes: 0.0,
        };
        Self {
            at_hand: When::ALL.map(|_| [forecast(), forecast()]),
            learned: When::ALL.map(|_| learned()),
            idle_records: 0.0,
            needed_bytes: 0.0,
            spare_bytes: token_bytes as f64,
        }
    }

    /// When the forecast at hand of this layer was made, if there is one; the later one, if there are two.
    pub(super) fn when(&self, layer: u32) -> Option<When> {
        When::ALL.into_iter().find(|when| self.forecast(*when, layer).layer == Some(layer))
    }

    fn forecast(&self, when: When, layer: u32) -> &Forecast {
        &self.at_hand[when as usize][layer as usize % 2]
    }

    fn forecast_mut(&mut self, when: When, layer: u32) -> &mut Forecast {
        &mut self.at_hand[when as usize][layer as usize % 2]
    }

    fn chance(&self, when: When, layer: u32, rank: usize) -> f64 {
        let learned = &self.learned[when as usize];
        learned.of_layer[layer as usize * RANKS + rank].chance(learned.of_rank[rank].chance(0.5))
    }

    fn learn(&mut self, when: When, layer: u32, rank: usize, is_needed: bool) {
        let learned = &mut self.learned[when as usize];
        learned.of_layer[layer as usize * RANKS + rank].add(is_needed, MOST_COUNTED);
        learned.of_rank[rank].add(is_needed, MOST_COUNTED * (learned.of_layer.len() / RANKS) as u32);
    }

    /// The part of the needed bytes that was read in vain lately: for early guesses that of all guesses, for the others
    /// their own, so that early ones never stand in their way.
    fn wasted(&self, when: When) -> f64 {
        let wasted_bytes: f64 = self.learned[..=when as usize].iter().map(|learned| learned.wasted_bytes).sum();
        wasted_bytes / (self.needed_bytes + self.spare_bytes)
    }

    /// The chance that a choice must have when the drive has time for so many records beside those under way.
    fn break_even(&self, when: When, idle_records: f64) -> f64 {
        let wasted = self.wasted(when);
        if wasted >= MOST_WASTED {
            return 1.0;
        }
        (1.0 - idle_records).clamp(wasted.max(LEAST_CHANCE), 1.0)
    }

    /// Single tokens needed so many bytes that were not in memory.
    pub(super) fn add_needed(&mut self, record_bytes: u64) {
        self.needed_bytes += record_bytes as f64;
    }

    /// So many bytes were read ahead of single tokens in vain, by a forecast that was made then.
    pub(super) fn add_wasted(&mut self, when: When, record_bytes: u64) {
        self.learned[when as usize].wasted_bytes += record_bytes as f64;
    }

    /// The pass is over, or given up. `is_step`: it was a step of the text, by which what was counted becomes older.
    pub(super) fn end_pass(&mut self, is_step: bool) {
        for forecast in self.at_hand.as_flattened_mut() {
            forecast.layer = None;
            forecast.choices.clear();
        }
        self.idle_records = 0.0;
        if is_step {
            self.needed_bytes *= KEPT_BYTES;
            self.learned.iter_mut().for_each(|learned| learned.wasted_bytes *= KEPT_BYTES);
        }
    }
}

impl Scheduler {
    /// The only row of the pass is expected to be routed to these experts of a layer that was not demanded yet, the most
    /// likely first. They are read ahead where that is worth it: see [`expect_idle`](Self::expect_idle). A hint, as
    /// [`forecast`](Self::forecast) is; of the layer at hand, the next one, or the one after it. It takes the place of an
    /// earlier one of its layer: of what that one named, only what is in memory or on its way is kept until the layer is
    /// demanded.
    pub fn forecast_ranked(&mut self, layer: u32, experts: &[u32]) {
        if !self.is_in_pass || layer < self.layer || layer > self.layer + 2 || (layer == self.layer && self.is_closed) {
            return;
        }
        self.drop_unread(layer);
        let when = if layer == self.layer + 2 { When::Early } else { When::Next };
        let forecast = self.ahead.forecast_mut(when, layer);
        forecast.layer = Some(layer);
        forecast.choices.clear();
        for (rank, index) in experts.iter().enumerate().take(RANKS) {
            let Some(number) = self.number(ExpertId { layer, index: *index }) else { continue };
            let expert = &mut self.experts[number as usize];
            let slot = expert.slot;
            match expert.need {
                Need::Demand | Need::Served => continue,
                Need::Nothing | Need::Left if expert.failed_in_pass == Some(self.pass) => continue,
                Need::Nothing | Need::Left => {
                    expert.need = Need::Forecast;
                    expert.tokens = 1;
                    match slot {
                        None => self.unread_ahead[layer as usize] += 1,
                        Some(slot) => self.settle_if_resident(slot),
                    }
                }
                // An early forecast has brought it.
                Need::Forecast => {}
            }
            let is_of_this_pass = slot.is_none_or(|slot| self.is_of_this_pass(slot));
            let choices = &mut self.ahead.forecast_mut(when, layer).choices;
            if is_of_this_pass && choices.iter().all(|(other, _)| *other != number) {
                choices.push((number, rank));
            }
            self.list(number);
        }
    }

    /// Until the next layer is demanded, the drive is expected to have time for so many records, those under way among
    /// them.
    pub fn expect_idle(&mut self, records: f64) {
        self.ahead.idle_records = records;
    }

    /// Whether a forecast of the layer after the next one is of use: between what the layer at hand demands and what the next
    /// one will, the drive has time for so many records, and for one more than the next layer's guesses that are worth it.
    pub fn has_time_for_early(&self, idle_records: f64) -> bool {
        let next = self.layer + 1;
        let under_way = self.in_flight.saturating_sub(self.missing());
        let mut left_records = idle_records - f64::from(under_way);
        if self.ahead.when(next) == Some(When::Next) {
            for (_, rank) in self.unread_choices(When::Next, next) {
                let is_worth_it =
                    self.ahead.chance(When::Next, next, rank) > self.ahead.break_even(When::Next, left_records);
                left_records -= f64::from(u8::from(is_worth_it));
            }
        }
        left_records >= 1.0 && self.ahead.wasted(When::Early) < MOST_WASTED
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

    /// Choices of a forecast at hand for which no read was started, with their ranks.
    fn unread_choices(&self, when: When, layer: u32) -> impl Iterator<Item = (u32, usize)> {
        self.ahead.forecast(when, layer).choices.iter().copied().filter(|(number, _)| {
            let expert = &self.experts[*number as usize];
            expert.need == Need::Forecast && expert.slot.is_none()
        })
    }

    /// The choice of the forecast of a layer that is read ahead next.
    pub(super) fn next_choice(&self, when: When, layer: u32) -> Option<u32> {
        if self.missing() > 0 {
            return None;
        }
        let break_even = self.ahead.break_even(when, self.ahead.idle_records - f64::from(self.in_flight));
        let is_worth_it = |(_, rank): &(u32, usize)| self.ahead.chance(when, layer, *rank) > break_even;
        self.unread_choices(when, layer).find(is_worth_it).map(|(number, _)| number)
    }

    /// The row's demand of a layer is known: learns which of the choices were right, and forgets the others, in memory or
    /// not, and also what was on its way when they were made.
    pub(super) fn judge_choices(&mut self, layer: u32) {
        let is_read = |number: &u32| self.experts[*number as usize].slot.is_some_and(|slot| self.is_of_this_pass(slot));
        let missing = self.demanded().filter(|number| !self.is_resident(*number) || is_read(number)).count() as u64;
        for when in When::ALL {
            if self.ahead.forecast(when, layer).layer != Some(layer) {
                continue;
            }
            let counts = match when {
                When::Next => &mut self.counts.forecast,
                When::Early => &mut self.counts.early_forecast,
            };
            counts.missing += missing;
            for at in 0..self.ahead.forecast(when, layer).choices.len() {
                let (number, rank) = self.ahead.forecast(when, layer).choices[at];
                // What failed in this pass was needed, too, but is no look-up of anything.
                let need = self.experts[number as usize].need;
                self.ahead.learn(when, layer, rank, matches!(need, Need::Demand | Need::Served));
                counts.named += 1;
                counts.right += u64::from(need == Need::Demand);
            }
            self.ahead.forecast_mut(when, layer).layer = None;
        }
        self.drop_unread(layer);
        for at in 0..self.wanted[layer as usize].len() {
            let number = self.wanted[layer as usize][at];
            if self.experts[number as usize].need == Need::Forecast {
                self.drop_need(number);
            }
        }
    }

    /// Nothing of a layer that is expected is read ahead any more.
    fn drop_unread(&mut self, layer: u32) {
        for at in 0..self.wanted.get(layer as usize).map_or(0, Vec::len) {
            let expert = &mut self.experts[self.wanted[layer as usize][at] as usize];
            if expert.need == Need::Forecast && expert.slot.is_none() {
                expert.need = Need::Nothing;
                expert.is_forecast = false;
                self.unread_ahead[layer as usize] -= 1;
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
            assert!((ahead.break_even(When::Next, idle_records) - break_even).abs() < 1e-12, "{idle_records}");
        }
        // 900 of 2,000 and the 1,000 that are forgiven: three tenths in vain.
        ahead.add_needed(2000);
        ahead.add_wasted(When::Next, 900);
        assert!(
            (ahead.break_even(When::Next, 9.0) - 0.3).abs() < 1e-12
                && (ahead.break_even(When::Next, 0.5) - 0.5).abs() < 1e-12
        );
        ahead.add_wasted(When::Next, 600);
        assert_eq!(ahead.break_even(When::Next, 9.0), 1.0, "one half");
        ahead.end_pass(false);
        (0..50).for_each(|_| ahead.end_pass(true));
        assert!(
            (ahead.break_even(When::Next, 9.0) - 1500.0 * 0.98_f64.powi(50) / (2000.0 * 0.98_f64.powi(50) + 1000.0))
                .abs()
                < 1e-12
        );
    }

    #[test]
    fn a_chance_is_that_of_the_rank_until_the_layer_has_its_own() {
        let mut ahead = Ahead::new(2, 1);
        assert_eq!(ahead.chance(When::Next, 1, 3), 0.5);
        // By hand: eight that are believed, half of them right, and eight that were all right.
        (0..8).for_each(|_| ahead.learn(When::Next, 1, 3, true));
        assert_eq!(ahead.learned[0].of_rank[3].chance(0.5), 0.75);
        assert_eq!(ahead.chance(When::Next, 1, 3), (8.0 + 8.0 * 0.75) / 16.0);
        assert_eq!((ahead.chance(When::Next, 0, 3), ahead.chance(When::Next, 0, 4)), (0.75, 0.5));
        (0..1000).for_each(|_| ahead.learn(When::Next, 0, 3, false));
        assert!(ahead.chance(When::Next, 0, 3) < 0.02 && ahead.learned[0].of_layer[3].counted <= MOST_COUNTED);
    }

    #[test]
    fn early_guesses_have_chances_of_their_own_and_make_no_others_rarer() {
        let mut ahead = Ahead::new(2, 1000);
        (0..8).for_each(|_| ahead.learn(When::Early, 1, 3, true));
        assert_eq!((ahead.chance(When::Early, 1, 3), ahead.chance(When::Next, 1, 3)), (0.875, 0.5));
        // By hand: 300 of the 1,000 that are forgiven, then 300 and 100 of them.
        ahead.add_wasted(When::Early, 300);
        assert_eq!([When::Next, When::Early].map(|when| ahead.break_even(when, 9.0)), [0.2, 0.3]);
        ahead.add_wasted(When::Next, 100);
        assert_eq!([When::Next, When::Early].map(|when| ahead.break_even(when, 9.0)), [0.2, 0.4]);
        ahead.add_wasted(When::Next, 200);
        assert_eq!([When::Next, When::Early].map(|when| ahead.break_even(when, 9.0)), [0.3, 1.0]);
        ahead.end_pass(true);
        let early = 0.98 * 600.0 / 1000.0;
        assert!(
            (ahead.wasted(When::Early) - early).abs() < 1e-12 && (ahead.wasted(When::Next) - early / 2.0).abs() < 1e-12
        );
    }
}
