//! Whether drafts pay: seconds per token with them against without, as measured.
//!
//! Of both kinds of passes a mean is kept in which older ones count less. Drafts begin after a few tokens without; after
//! [`TRIAL_PASSES`] passes with drafts they are judged, and from then on after each. When a token takes longer with them than
//! without, they rest for [`FIRST_REST`] tokens, and for twice as many each time that they fail again, up to
//! [`LONGEST_REST`]. As long as they pay, a few tokens without them now and then keep the comparison fresh.
//! This decides whether there are drafts, never what is written.

/// Tokens without drafts before the first.
const FIRST_PLAIN: usize = 4;
/// Passes with drafts before they are judged.
const TRIAL_PASSES: usize = 8;
/// Passes with drafts after which a few tokens without are measured, and how many.
const CHECK_PASSES: usize = 64;
const CHECK_PLAIN: usize = 2;
/// Tokens without drafts after the first failure, and at most.
const FIRST_REST: usize = 32;
const LONGEST_REST: usize = 1024;
/// What a pass counts against the one after it.
const KEEP: f64 = 15.0 / 16.0;

/// A mean in which older passes count less.
#[derive(Clone, Copy, Default)]
struct Mean {
    seconds: f64,
    tokens: f64,
}

impl Mean {
    fn add(&mut self, seconds: f64, tokens: usize) {
        self.seconds = KEEP * self.seconds + seconds;
        self.tokens = KEEP * self.tokens + tokens as f64;
    }

    fn per_token(&self) -> f64 {
        self.seconds / self.tokens
    }
}

pub(super) struct Worth {
    plain: Mean,
    drafted: Mean,
    /// Tokens still to be written without drafts.
    rest: usize,
    next_rest: usize,
    /// Passes with drafts since the last rest, and since the last check.
    passes: usize,
    unchecked: usize,
}

impl Worth {
    pub(super) fn new() -> Self {
        Self {
            plain: Mean::default(),
            drafted: Mean::default(),
            rest: FIRST_PLAIN,
            next_rest: FIRST_REST,
            passes: 0,
            unchecked: 0,
        }
    }

    /// Whether the next pass shall have drafts.
    pub(super) fn wants_drafts(&self) -> bool {
        self.rest == 0
    }

    /// A pass without drafts wrote a token.
    pub(super) fn plain(&mut self, seconds: f64) {
        self.plain.add(seconds, 1);
        self.rest = self.rest.saturating_sub(1);
    }

    /// A pass with drafts, making them included, wrote so many tokens.
    pub(super) fn drafted(&mut self, seconds: f64, tokens: usize) {
        self.drafted.add(seconds, tokens);
        self.passes += 1;
        self.unchecked += 1;
        if self.passes < TRIAL_PASSES {
            return;
        }
        if self.drafted.per_token() > self.plain.per_token() {
            self.rest = self.next_rest;
            self.next_rest = (2 * self.next_rest).min(LONGEST_REST);
            (self.drafted, self.passes, self.unchecked) = (Mean::default(), 0, 0);
        } else {
            self.next_rest = FIRST_REST;
            if self.unchecked >= CHECK_PASSES {
                (self.rest, self.unchecked) = (CHECK_PLAIN, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens written without drafts, and passes with drafts, in turns, when a plain token takes a second and a pass with
    /// drafts what `drafted` says of the number of tokens written so far: seconds and tokens.
    fn turns(all_tokens: usize, drafted: impl Fn(usize) -> (f64, usize)) -> Vec<usize> {
        let (mut worth, mut turns, mut was_drafted, mut written) = (Worth::new(), vec![0], false, 0);
        while written < all_tokens {
            let is_drafted = worth.wants_drafts();
            if is_drafted != was_drafted {
                turns.push(0);
                was_drafted = is_drafted;
            }
            *turns.last_mut().unwrap() += 1;
            if is_drafted {
                let (seconds, tokens) = drafted(written);
                worth.drafted(seconds, tokens);
                written += tokens;
            } else {
                worth.plain(1.0);
                written += 1;
            }
        }
        turns
    }

    #[test]
    fn drafts_that_pay_stay_on() {
        assert_eq!(turns(400, |_| (1.2, 2)), [4, 64, 2, 64, 2, 64, 2, 3]);
    }

    #[test]
    fn drafts_that_do_not_pay_rest_longer_and_longer() {
        assert_eq!(turns(600, |_| (2.5, 2)), [4, 8, 32, 8, 64, 8, 128, 8, 256, 8, 36]);
        let long = turns(6000, |_| (2.5, 2));
        assert_eq!(long[10..15], [512, 8, 1024, 8, 1024]);
    }

    #[test]
    fn drafts_that_begin_to_pay_are_found_and_those_that_cease_to_are_left() {
        let turns = turns(2000, |written| if (300..900).contains(&written) { (1.0, 3) } else { (3.0, 1) });
        assert_eq!(turns[..13], [4, 8, 32, 8, 64, 8, 128, 8, 256, 64, 2, 64, 2]);
        // By then 900 tokens are written. Half of what a mean counts are about eleven passes.
        assert!((9..=13).contains(&turns[13]), "{turns:?}");
        assert_eq!(turns[14..17], [32, 8, 64]);
    }
}
