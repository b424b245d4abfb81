//! Passes that are left between two layers, while others go on, and come back.
//!
//! What a pass that was left expects is neither read meanwhile nor forgotten: what is in memory gives way after all that
//! nobody needs, what is on its way arrives, and the rest is asked for again when the pass comes back.

use super::{Need, PassKind, PassNumber, Scheduler};

/// A pass that was left.
pub(super) struct Left {
    pass: PassNumber,
    kind: PassKind,
    layer: u32,
    is_partial: bool,
    forecast_min: u32,
    /// Experts that later layers are expected to demand, and rows.
    expected: Vec<(u32, u32)>,
}

impl Scheduler {
    /// The pass at hand, if there is one.
    pub fn pass(&self) -> Option<PassNumber> {
        self.is_in_pass.then_some(PassNumber(self.pass))
    }

    /// What the pass at hand is, or the last one was.
    pub fn kind(&self) -> PassKind {
        self.kind
    }

    /// Whether a pass was left, and neither resumed nor forgotten.
    pub fn is_left(&self, pass: PassNumber) -> bool {
        self.left.iter().any(|left| left.pass == pass)
    }

    /// Leaves the pass at hand, if there is one, until it is [resumed](Self::resume_pass) or [forgotten](Self::forget_left).
    ///
    /// # Panics
    /// When it is within a layer.
    pub fn leave_pass(&mut self) {
        let Some(pass) = self.pass() else { return };
        assert!(self.outstanding == 0 && self.strips == 0 && !self.is_closed, "a pass within layer {}", self.layer);
        let mut expected = Vec::new();
        for layer in 0..self.wanted.len() {
            self.wanted[layer].sort_unstable();
            // Guesses for one row are worth little later.
            let is_ranked = self.ahead.when(layer as u32).is_some();
            for at in 0..self.wanted[layer].len() {
                let number = self.wanted[layer][at];
                let expert = &mut self.experts[number as usize];
                expert.is_listed = false;
                if expert.need == Need::Forecast && !is_ranked {
                    expected.push((number, expert.tokens));
                    expert.need = Need::Left;
                    expert.is_forecast = false;
                    if let Some(slot) = expert.slot {
                        self.settle_if_resident(slot);
                    }
                } else {
                    self.drop_need(number);
                }
            }
            self.wanted[layer].clear();
        }
        self.ahead.end_pass(false);
        self.unread_ahead.fill(0);
        self.is_in_pass = false;
        let Self { kind, layer, is_partial, forecast_min, .. } = *self;
        self.left.push(Left { pass, kind, layer, is_partial, forecast_min, expected });
    }

    /// Goes on with a pass that was left.
    ///
    /// # Panics
    /// When a pass is under way, or this one was not left.
    pub fn resume_pass(&mut self, pass: PassNumber) {
        assert!(!self.is_in_pass, "a pass is under way");
        let left = self.take_left(pass).expect("a pass that was left");
        self.is_in_pass = true;
        self.pass = pass.0;
        self.kind = left.kind;
        self.layer = left.layer;
        self.is_partial = left.is_partial;
        self.forecast_min = left.forecast_min;
        self.strips = 0;
        self.is_closed = false;
        for (number, tokens) in left.expected {
            let layer = self.id(number).layer as usize;
            let expert = &mut self.experts[number as usize];
            if expert.failed_in_pass == Some(self.pass) {
                self.drop_need(number);
                continue;
            }
            expert.need = Need::Forecast;
            expert.tokens = tokens;
            expert.is_forecast = true;
            match expert.slot {
                None => self.unread_ahead[layer] += 1,
                Some(slot) => self.settle_if_resident(slot),
            }
            self.list(number);
        }
    }

    /// Forgets a pass that was left, if it was: what it expected is needed no more.
    pub fn forget_left(&mut self, pass: PassNumber) {
        let Some(left) = self.take_left(pass) else { return };
        for (number, _) in left.expected {
            if self.experts[number as usize].need == Need::Left {
                self.drop_need(number);
            }
        }
    }

    fn take_left(&mut self, pass: PassNumber) -> Option<Left> {
        let at = self.left.iter().position(|left| left.pass == pass)?;
        Some(self.left.swap_remove(at))
    }
}
