//! Who has which text, and what to do about it: no model, no clock, no files.
//!
//! A *place* is one sequence of the host. A *mark* is a point of a text whose checkpoint is kept; its *holders* are the
//! places whose caches have the rows before it, of which there may be several after forks. A mark without a holder is of
//! no use and dropped.

use super::worth;

/// What kind of point a mark is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The end of the first turn: what conversations with the same system prompt have in common.
    Root,
    /// A point within a prompt, or the end of an answer.
    Within,
    /// The end of a prompt: where an answer is written anew from.
    Prompt,
}

/// One sequence of the host.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// What it has taken, or will have when its prompt is read.
    pub(super) text: Vec<u32>,
    pub(super) is_busy: bool,
    /// Its state is that after the last token of its text.
    is_whole: bool,
    /// When it was used last.
    pub(super) used: u64,
    /// Tokens of its last prompt.
    pub(super) prompt_tokens: usize,
    /// Tokens at the beginning that another place has, too.
    shared_tokens: usize,
    /// Checkpoints on the way, which will be marks.
    coming: usize,
}

/// A point of a text whose checkpoint is kept.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) id: u64,
    pub(super) text: Vec<u32>,
    pub(super) point: Point,
    /// The logits after its last token are kept, too.
    pub(super) has_logits: bool,
    pub(super) holders: Vec<usize>,
    /// Prompts that began here.
    pub(super) uses: u32,
}

/// How a prompt begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The place that it gets.
    pub place: usize,
    /// Tokens at its beginning that are not read again.
    pub reused_tokens: usize,
    pub(super) how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Anew.
    Cold,
    /// From the end of what the place has.
    GoOn,
    /// From a mark that the place holds.
    Return { mark: u64 },
    /// From a mark that another place holds.
    Fork { mark: u64, from: usize },
    /// From a file.
    Load { file: usize },
}

impl Start {
    /// The place whose sequence is copied from, if there is one.
    pub fn source(&self) -> Option<usize> {
        match self.how {
            How::Fork { from, .. } => Some(from),
            _ => None,
        }
    }
}

/// A file with the beginning of a prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) file: usize,
    /// How many tokens it has.
    pub(super) tokens: usize,
}

/// Copying rows is cheap beside reading tokens: so many are as dear as one token.
const COPIED_AS_ONE: f64 = 64.0;
/// Reading a file is dearer, and so much before it begins.
const LOADED_AS_ONE: f64 = 16.0;
const LOADING: f64 = 32.0;
/// A root from which so many prompts began is not given up while anything else can be.
const POPULAR_USES: u32 = 2;
const MUCH: f64 = 1e12;

/// All places and marks.
#[derive(Clone, Debug)]
pub(super) struct Book {
    pub(super) places: Vec<Place>,
    pub(super) marks: Vec<Mark>,
    /// Marks that there may be.
    budget: usize,
    /// Prompts that began.
    pub(super) clock: u64,
    next_id: u64,
}

/// What became of a mark that was to be made.
pub(super) struct Added {
    /// `None`: it is not worth its memory.
    pub(super) id: Option<u64>,
    /// Others that were dropped for it.
    pub(super) dropped: Vec<u64>,
    /// It was there already, with all that is needed.
    pub(super) is_there: bool,
}

impl Book {
    pub(super) fn new(places: usize, budget: usize) -> Self {
        let places = vec![Place { is_whole: true, ..Place::default() }; places];
        Self { places, marks: Vec::new(), budget, clock: 0, next_id: 0 }
    }

    /// Marks that there may be.
    pub(super) fn budget(&self) -> usize {
        self.budget
    }

    /// The cheapest way to begin a prompt: tokens to be read, and what is lost for it. `None`: all places are busy.
    pub(super) fn choose(&self, prompt: &[u32], found: Option<Found>) -> Option<Start> {
        let mut best: Option<(f64, Start)> = None;
        let mut offer = |cost: f64, place: usize, reused_tokens: usize, how: How| {
            let cost = cost + (prompt.len() - reused_tokens) as f64;
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, Start { place, reused_tokens, how }));
            }
        };
        let usable: Vec<&Mark> = self.marks.iter().filter(|mark| mark.begins(prompt)).collect();
        for (at, place) in self.places.iter().enumerate().filter(|(_, place)| !place.is_busy) {
            let taken = place.text.len();
            if place.is_whole && taken > 0 && taken < prompt.len() && prompt.starts_with(&place.text) {
                offer(0.0, at, taken, How::GoOn);
            }
            for mark in usable.iter().filter(|mark| mark.holders.contains(&at)) {
                let tokens = mark.text.len();
                offer(self.loss(at, tokens), at, tokens, How::Return { mark: mark.id });
            }
            let loss = self.loss(at, 0);
            for mark in &usable {
                if let Some(from) = mark.holders.iter().find(|holder| **holder != at) {
                    let (tokens, how) = (mark.text.len(), How::Fork { mark: mark.id, from: *from });
                    offer(loss + tokens as f64 / COPIED_AS_ONE, at, tokens, how);
                }
            }
            if let Some(Found { file, tokens }) = found {
                offer(loss + LOADING + tokens as f64 / LOADED_AS_ONE, at, tokens, How::Load { file });
            }
            offer(loss, at, 0, How::Cold);
        }
        best.map(|(_, start)| start)
    }

    /// What is lost when a place keeps no more than the first `kept` tokens, in tokens: those that nobody else has, the less
    /// the longer they were not used.
    fn loss(&self, at: usize, kept: usize) -> f64 {
        let place = &self.places[at];
        let lost = place.text.len().saturating_sub(kept.max(place.shared_tokens));
        let is_last = |mark: &&Mark| mark.text.len() > kept && mark.holders == [at];
        let is_popular = |mark: &Mark| mark.point == Point::Root && mark.uses >= POPULAR_USES;
        let popular = self.marks.iter().filter(is_last).filter(|mark| is_popular(mark)).count();
        lost as f64 / (2 + self.clock - place.used) as f64 + MUCH * popular as f64
    }

    /// A place takes a prompt. Marks are dropped whose last holder it was; their ids come back.
    pub(super) fn begin(&mut self, start: &Start, prompt: &[u32]) -> Vec<u64> {
        self.clock += 1;
        let at = start.place;
        let kept = match start.how {
            How::GoOn | How::Return { .. } => start.reused_tokens,
            How::Cold | How::Fork { .. } | How::Load { .. } => 0,
        };
        let dropped = self.cut(at, kept);
        if let How::Return { mark } | How::Fork { mark, .. } = start.how {
            self.marks.iter_mut().filter(|other| other.id == mark).for_each(|mark| mark.uses += 1);
        }
        if let How::Fork { from, .. } = start.how {
            // The rows of the other place up to there are this one's now.
            let is_common = |mark: &&mut Mark| mark.text.len() <= start.reused_tokens && mark.holders.contains(&from);
            let common = self.marks.iter_mut().filter(is_common);
            common.filter(|mark| prompt.starts_with(&mark.text)).for_each(|mark| mark.holders.push(at));
        }
        let (text, prompt_tokens) = (prompt.to_vec(), prompt.len());
        self.places[at] = Place { text, is_busy: true, used: self.clock, prompt_tokens, ..Place::default() };
        self.compare();
        dropped
    }

    /// A place is free again, and has this text. `is_whole`: its state is that after the last token.
    pub(super) fn end(&mut self, at: usize, text: &[u32], is_whole: bool) -> Vec<u64> {
        let common = common_tokens(&self.places[at].text, text);
        let dropped = self.cut(at, common);
        let prompt_tokens = self.places[at].prompt_tokens;
        self.places[at] = Place { text: text.to_vec(), is_whole, used: self.clock, prompt_tokens, ..Place::default() };
        self.compare();
        dropped
    }

    /// A place has no more than the first tokens of its text.
    fn cut(&mut self, at: usize, tokens: usize) -> Vec<u64> {
        let is_gone = |mark: &&mut Mark| mark.text.len() > tokens;
        self.marks.iter_mut().filter(is_gone).for_each(|mark| mark.holders.retain(|holder| *holder != at));
        let dropped = self.marks.iter().filter(|mark| mark.holders.is_empty()).map(|mark| mark.id).collect();
        self.marks.retain(|mark| !mark.holders.is_empty());
        dropped
    }

    /// What each place has in common with others.
    fn compare(&mut self) {
        let shared = |at: usize| {
            let others = self.places.iter().enumerate().filter(|(other, _)| *other != at);
            others.map(|(_, other)| common_tokens(&self.places[at].text, &other.text)).max().unwrap_or(0)
        };
        let shared: Vec<usize> = (0..self.places.len()).map(shared).collect();
        self.places.iter_mut().zip(shared).for_each(|(place, shared)| place.shared_tokens = shared);
    }

    /// Checkpoints that are on the way.
    pub(super) fn coming(&self) -> usize {
        self.places.iter().map(|place| place.coming).sum()
    }

    #[cfg(test)]
    pub(super) fn coming_of(&self, at: usize) -> usize {
        self.places[at].coming
    }

    /// A place will have up to so many more marks: how many there will be room for. Others give way, but none that begins
    /// or ends a text at work; for one there is always room.
    pub(super) fn expect(&mut self, at: usize, wanted: usize) -> (usize, Vec<u64>) {
        self.places[at].coming = 0;
        let mut dropped = Vec::new();
        let room = loop {
            let room = self.budget.saturating_sub(self.marks.len() + self.coming());
            if room >= wanted || self.marks.is_empty() {
                break room;
            }
            let (least, guard) = worth::least(self, Some(at));
            if guard > 0 && room > 0 {
                break room;
            }
            dropped.push(self.marks.swap_remove(least).id);
        };
        self.places[at].coming = room.min(wanted);
        (room.min(wanted), dropped)
    }

    /// The text that a place has taken so far becomes a mark, if it is worth it.
    pub(super) fn add(&mut self, at: usize, text: &[u32], point: Point, has_logits: bool) -> Added {
        let mut dropped = Vec::new();
        let place = &mut self.places[at];
        place.coming = place.coming.saturating_sub(1);
        if !place.text.starts_with(text) {
            place.text = text.to_vec();
        }
        if let Some(mark) = self.marks.iter_mut().find(|mark| mark.text == text) {
            if point != Point::Within {
                mark.point = if mark.point == Point::Root { Point::Root } else { point };
            }
            if mark.holders.contains(&at) && (mark.has_logits || !has_logits) {
                return Added { id: Some(mark.id), dropped, is_there: true };
            }
            // The same text in another place, or now with logits: the later one stands for both.
            mark.holders = vec![at];
            mark.has_logits = has_logits;
            return Added { id: Some(mark.id), dropped, is_there: false };
        }
        let id = self.next_id;
        self.next_id += 1;
        self.marks.push(Mark { id, text: text.to_vec(), point, has_logits, holders: vec![at], uses: 0 });
        while self.marks.len() + self.coming() > self.budget && !self.marks.is_empty() {
            dropped.push(self.marks.swap_remove(worth::least(self, Some(at)).0).id);
        }
        let is_kept = !dropped.contains(&id);
        dropped.retain(|other| *other != id);
        Added { id: is_kept.then_some(id), dropped, is_there: false }
    }

    /// The last of a place's marks of which something is true.
    pub(super) fn last(&self, at: usize, is_so: impl Fn(&Mark) -> bool) -> Option<&Mark> {
        let all = self.marks.iter().filter(|mark| mark.holders.contains(&at) && is_so(mark));
        all.max_by_key(|mark| mark.text.len())
    }

    /// A mark is no more.
    pub(super) fn remove(&mut self, id: u64) {
        self.marks.retain(|mark| mark.id != id);
    }

    /// There may be so many marks from now on.
    pub(super) fn set_budget(&mut self, budget: usize) -> Vec<u64> {
        self.budget = budget;
        let mut dropped = Vec::new();
        while self.marks.len() > budget {
            dropped.push(self.marks.swap_remove(worth::least(self, None).0).id);
        }
        dropped
    }
}

impl Mark {
    /// Whether a prompt can begin here: at least its last token is read, unless what it gave is known.
    fn begins(&self, prompt: &[u32]) -> bool {
        let is_enough = self.has_logits || self.text.len() < prompt.len();
        is_enough && prompt.starts_with(&self.text)
    }
}

/// Tokens at the beginning that two texts have in common.
fn common_tokens(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
