//! The memory plan: how a budget is divided between what must be in memory and the arena of experts.
//!
//! Owns: the division, and what it lets a prompt expect of the drive. Promises: a pure function of its arguments; the
//! parts sum to at most the budget; more budget never gives fewer slots; no number makes it panic; an error names the
//! smallest budget that works. Refuses: to look at files, at the machine or at a clock.

mod error;
mod expected;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

pub use error::PlanError;
pub(crate) use expected::CONCENTRATION;
pub use expected::{Expected, expected, touched_experts};

use crate::{Area, RowTable};

/// The numbers of a model that its memory depends on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelShape {
    /// Weights that stay in memory: all but the routed experts and the n-gram table.
    pub dense_bytes: u64,
    /// Experts in a layer.
    pub experts: u64,
    /// Experts that a token uses in a layer.
    pub top_k: u64,
    /// Bytes of the three parts of a record, by layer.
    pub part_bytes: Vec<[u64; 3]>,
    /// What a sequence keeps, whatever its length.
    pub state_bytes: u64,
    /// A copy of where a sequence was.
    pub checkpoint_bytes: u64,
    /// Logits of a row.
    pub logits_bytes: u64,
    /// Attention cache and indexer keys of a token of context.
    pub cache_token_bytes: u64,
    /// Workspace that grows with the context, for each of its tokens.
    pub context_token_bytes: u64,
    /// Workspace of a strip, and of one row of logits.
    pub strip_bytes: u64,
    /// Workspace of a thread.
    pub thread_bytes: u64,
    /// What a token of a pass takes: streams, layer input, expert outputs, routes.
    pub pass_token_bytes: u64,
    /// What a token takes in a room where an expert gathers its rows, a piece of [`ROOM_TOKENS`] at a time.
    pub room_token_bytes: u64,
    /// Rows of the n-gram table that a token uses.
    pub ple_rows: u64,
    /// Bytes of such a row.
    pub ple_row_bytes: u64,
    /// Bytes of the table, should it be kept in memory.
    pub ple_table_bytes: u64,
}

/// What is known of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineFacts {
    /// Memory of the machine.
    pub total_bytes: Option<u64>,
    /// Memory that can be had without others losing theirs.
    pub available_bytes: Option<u64>,
    /// The tightest limit of the process's control groups.
    pub group_limit_bytes: Option<u64>,
    /// What that group uses of it and would not give back.
    pub group_used_bytes: u64,
    /// Memory that this process may lock.
    pub lock_limit_bytes: Option<u64>,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Threads that compute.
    pub threads: u64,
    /// The drive, once measured.
    pub drive: Option<Drive>,
}

/// What a drive can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drive {
    /// Bytes that it reads in a second.
    pub bytes_per_second: u64,
    /// Time from asking to having, for a small read.
    pub latency_ns: u64,
}

/// What a user asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The most memory of the whole process; `None`: what the machine can spare.
    pub memory_bytes: Option<u64>,
    /// The most memory of the arena; `None`: what is left.
    pub arena_bytes: Option<u64>,
    /// Tokens of context.
    pub context_tokens: u64,
    /// Tokens of a pass; `None`: chosen.
    pub pass_tokens: Option<u64>,
    /// Records on their way at a time, at least.
    pub io_depth: u64,
    /// Texts at a time, each with a context of its own.
    pub sequences: u64,
    /// Rows of all workspaces for prompts that are read beside the one with the largest passes.
    pub side_rows: u64,
    /// Rows of the workspace in which texts are written together.
    pub step_rows: u64,
    /// Checkpoints that are kept at a time.
    pub checkpoints: u64,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            memory_bytes: None,
            arena_bytes: None,
            context_tokens: 32_768,
            pass_tokens: None,
            io_depth: 32,
            sequences: 1,
            side_rows: 0,
            step_rows: 0,
            checkpoints: 0,
        }
    }
}

/// What keeps an arena from being larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Nothing: every expert has a slot.
    Nothing,
    /// The memory asked for.
    Memory,
    /// The arena asked for.
    Arena,
    /// The arena that was found to be the fastest.
    Calibrated,
    /// The memory of the machine.
    Machine,
    /// What other programs leave of it.
    Available,
    /// The limit of the control group.
    ControlGroup,
}

/// How memory is divided. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The most that the process may use; `u64::MAX` when only the arena was limited and the machine is unknown.
    pub budget_bytes: u64,
    /// Dense weights.
    pub dense_bytes: u64,
    /// States of all sequences.
    pub state_bytes: u64,
    /// Attention caches and indexer keys of full contexts.
    pub cache_bytes: u64,
    /// Rows of a pass, scratch of a strip and of threads.
    pub workspace_bytes: u64,
    /// Rows of the n-gram table: of this pass and the next, and windows of reads.
    pub ple_bytes: u64,
    /// Workspaces of prompts that are read beside the one with the largest passes, with their rows of the n-gram table.
    pub side_bytes: u64,
    /// The workspace in which texts are written together, with its logits.
    pub step_bytes: u64,
    /// Checkpoints that are kept, with the logits of their last tokens.
    pub checkpoint_bytes: u64,
    /// What is not counted: program, tokenizer, tables, stacks, the allocator's losses.
    pub reserve_bytes: u64,
    /// All slots.
    pub arena_bytes: u64,
    /// One slot: room for the largest record, each part in a page-aligned window.
    pub slot_bytes: u64,
    /// Slots of the arena.
    pub slots: u64,
    /// Experts of the model.
    pub experts: u64,
    /// Slots of the smallest arena that can make progress.
    pub smallest_slots: u64,
    /// Areas that the arena consists of.
    pub areas: u64,
    /// Slots of every area but the last.
    pub area_slots: u64,
    /// Texts at a time.
    pub sequences: u64,
    /// Tokens of context of each.
    pub context_tokens: u64,
    /// Tokens of a pass.
    pub pass_tokens: u64,
    /// What keeps the arena from being larger.
    pub limit: Limit,
    /// Whether the arena may be locked in memory.
    pub can_lock: bool,
    /// What prompts may expect of the drive, those that the context has room for.
    pub prompts: Vec<Expected>,
}

impl Plan {
    /// The sum of all parts.
    pub fn total_bytes(&self) -> u64 {
        let parts = [
            self.dense_bytes,
            self.state_bytes,
            self.cache_bytes,
            self.workspace_bytes,
            self.ple_bytes,
            self.side_bytes,
            self.step_bytes,
            self.checkpoint_bytes,
            self.reserve_bytes,
            self.arena_bytes,
        ];
        sum(&parts)
    }

    /// Share of the experts that have a slot, 0 to 1.
    pub fn share(&self) -> f64 {
        if self.experts == 0 { 1.0 } else { self.slots as f64 / self.experts as f64 }
    }
}

/// What is not counted, besides threads' stacks.
pub const RESERVE_BYTES: u64 = 256 << 20;
/// Stack of a thread and what it keeps of its own.
pub const THREAD_RESERVE_BYTES: u64 = 4 << 20;
/// The most tokens in a room where an expert gathers its rows.
pub const ROOM_TOKENS: u64 = 256;
/// Part of what a machine can spare that is left to others, unless the user says how much may be used.
const SPARED_PART: u64 = 16;
/// The largest pass that is chosen: beyond it nearly every pass needs every expert once, and gains are small.
const MOST_PASS_TOKENS: u64 = 8192;
/// The largest pass that is chosen when every expert has a slot: a larger one saves no reads.
const RESIDENT_PASS_TOKENS: u64 = 1024;
/// The smallest pass that is chosen.
const LEAST_PASS_TOKENS: u64 = 256;
/// Passes are whole strips of this many tokens where they are larger than one.
const STRIP_TOKENS: u64 = 256;
/// Part of the room for pass and arena that a pass may take while experts are missing.
const PASS_PART: u64 = 8;
/// Prompts whose reads are foretold.
const PROMPTS: [u64; 3] = [1024, 4096, 32_768];

/// Divides memory.
///
/// # Errors
/// When the request is more than the machine has, or less than one token needs.
pub fn plan(shape: &ModelShape, machine: &MachineFacts, request: &Request) -> Result<Plan, PlanError> {
    let context_tokens = request.context_tokens.max(1);
    let sequences = request.sequences.max(1);
    let io_depth = request.io_depth.max(1);
    let slot_bytes = slot_bytes(shape, machine.page_bytes);
    let experts = (shape.part_bytes.len() as u64).saturating_mul(shape.experts);
    let smallest_slots = shape.top_k.saturating_mul(2).saturating_add(io_depth).min(experts);
    let asked_slots = request.arena_bytes.map(|bytes| bytes / slot_bytes);
    if let (Some(arena_bytes), Some(slots)) = (request.arena_bytes, asked_slots)
        && slots < smallest_slots
    {
        let needed_bytes = countable(smallest_slots.saturating_mul(slot_bytes));
        return Err(PlanError::ArenaTooSmall { arena_bytes, needed_bytes, smallest_slots });
    }
    let (budget_bytes, bound) = budget(machine, request)?;

    // What does not depend on the size of a pass.
    let state_bytes = sequences.saturating_mul(shape.state_bytes);
    let cache_token_bytes = sequences.saturating_mul(shape.cache_token_bytes);
    let cache_bytes = context_tokens.saturating_mul(cache_token_bytes);
    // With the logits of its last token, by which a text that ends there goes on.
    let kept_bytes = shape.checkpoint_bytes.saturating_add(shape.logits_bytes);
    let checkpoint_bytes = request.checkpoints.saturating_mul(kept_bytes);
    let context_work_bytes = context_tokens.saturating_mul(shape.context_token_bytes);
    let reserve_bytes = RESERVE_BYTES.saturating_add(machine.threads.saturating_mul(THREAD_RESERVE_BYTES));
    // Rooms of threads that each compute a piece of an expert, and of a group of pieces too few to give each thread two.
    let rooms = machine.threads.saturating_mul(3).saturating_sub(1);
    let room_bytes = rooms.saturating_mul(ROOM_TOKENS).saturating_mul(shape.room_token_bytes);
    let thread_bytes = machine.threads.saturating_mul(shape.thread_bytes);
    let work_bytes = sum(&[shape.strip_bytes, thread_bytes, room_bytes, context_work_bytes]);
    // A table on the drive is read in windows, by this pass and the next.
    let (ple_fixed_bytes, ple_passes) = match (shape.ple_rows, shape.ple_table_bytes) {
        (0, _) => (0, 0),
        (_, 0) => ((RowTable::READS as u64).saturating_mul(window_bytes(shape.ple_row_bytes, machine.page_bytes)), 2),
        (_, table_bytes) => (table_bytes, 1),
    };

    // What a token of a pass takes.
    let token_work_bytes = shape.pass_token_bytes;
    let token_ple_bytes = shape.ple_rows.saturating_mul(shape.ple_row_bytes).saturating_mul(ple_passes);
    let token_bytes = token_work_bytes.saturating_add(token_ple_bytes).max(1);

    let side_bytes = request.side_rows.saturating_mul(token_bytes);
    // Logits of all rows, where they are computed and where they are wanted.
    let step_row_bytes = token_bytes.saturating_add(shape.logits_bytes.saturating_mul(2));
    let step_bytes = request.step_rows.saturating_mul(step_row_bytes);
    let fixed_bytes = sum(&[
        shape.dense_bytes,
        state_bytes,
        cache_bytes,
        work_bytes,
        ple_fixed_bytes,
        side_bytes,
        step_bytes,
        checkpoint_bytes,
        reserve_bytes,
    ]);

    let (least_pass, most_pass) = match request.pass_tokens {
        Some(tokens) => (tokens.clamp(1, context_tokens), tokens.clamp(1, context_tokens)),
        None => (LEAST_PASS_TOKENS.min(context_tokens), MOST_PASS_TOKENS.min(context_tokens)),
    };
    let least_slots = asked_slots.map_or(smallest_slots, |slots| slots.min(experts));
    let least_pass_bytes = least_pass.saturating_mul(token_bytes);
    let needed_bytes = sum(&[fixed_bytes, least_pass_bytes, least_slots.saturating_mul(slot_bytes)]);
    if needed_bytes == u64::MAX || needed_bytes > budget_bytes {
        let token_context_bytes = cache_token_bytes.saturating_add(shape.context_token_bytes);
        return Err(PlanError::DoesNotFit {
            budget_bytes,
            bound,
            needed_bytes: countable(needed_bytes),
            context_tokens,
            shorter_context_tokens: shorter(budget_bytes, needed_bytes, context_tokens, token_context_bytes),
        });
    }

    // Every term below grows with the room, so that more budget never gives fewer slots.
    let room_bytes = budget_bytes - fixed_bytes;
    let beside = |pass_tokens: u64| room_bytes.saturating_sub(pass_tokens.saturating_mul(token_bytes)) / slot_bytes;
    let by_part = (room_bytes - room_bytes / PASS_PART) / slot_bytes;
    let slots = match asked_slots {
        Some(_) => least_slots,
        None => by_part.max(beside(most_pass)).min(beside(least_pass)).min(experts).max(smallest_slots),
    };
    let arena_bytes = slots.saturating_mul(slot_bytes);
    let fitting = (room_bytes - arena_bytes) / token_bytes;
    let most_pass = match request.pass_tokens {
        None if slots == experts => most_pass.min(RESIDENT_PASS_TOKENS),
        _ => most_pass,
    };
    let pass_tokens = match fitting.min(most_pass) {
        tokens if tokens > STRIP_TOKENS && tokens < most_pass => tokens - tokens % STRIP_TOKENS,
        tokens => tokens,
    };
    let area_slots = (Area::MAX_BYTES as u64 / slot_bytes).max(1);
    let mut plan = Plan {
        budget_bytes,
        dense_bytes: shape.dense_bytes,
        state_bytes,
        cache_bytes,
        workspace_bytes: work_bytes + pass_tokens * token_work_bytes,
        ple_bytes: ple_fixed_bytes + pass_tokens * token_ple_bytes,
        side_bytes,
        step_bytes,
        checkpoint_bytes,
        reserve_bytes,
        arena_bytes,
        slot_bytes,
        slots,
        experts,
        smallest_slots,
        areas: slots.div_ceil(area_slots),
        area_slots,
        sequences,
        context_tokens,
        pass_tokens,
        limit: match asked_slots {
            _ if slots == experts => Limit::Nothing,
            Some(_) => Limit::Arena,
            None => bound,
        },
        can_lock: machine.lock_limit_bytes.is_some_and(|limit| limit >= arena_bytes),
        prompts: Vec::new(),
    };
    let told = PROMPTS.iter().filter(|tokens| **tokens <= context_tokens);
    plan.prompts = told.map(|tokens| expected::expected(shape, machine, io_depth, &plan, *tokens)).collect();
    Ok(plan)
}

/// The most that the process may use, and what says so.
fn budget(machine: &MachineFacts, request: &Request) -> Result<(u64, Limit), PlanError> {
    let group = machine.group_limit_bytes.map(|limit| limit.saturating_sub(machine.group_used_bytes));
    let bounds = [
        (group, Limit::ControlGroup),
        (machine.available_bytes, Limit::Available),
        (machine.total_bytes, Limit::Machine),
    ];
    let most = bounds.into_iter().filter_map(|(bytes, limit)| Some((bytes?, limit))).min_by_key(|(bytes, _)| *bytes);
    match (request.memory_bytes, most) {
        (Some(memory_bytes), Some((most_bytes, bound))) if memory_bytes > most_bytes => {
            Err(PlanError::MoreThanThereIs { memory_bytes, most_bytes, bound })
        }
        (Some(memory_bytes), _) => Ok((memory_bytes, Limit::Memory)),
        (None, Some((most_bytes, bound))) => Ok((most_bytes - most_bytes / SPARED_PART, bound)),
        // Only the arena is limited.
        (None, None) if request.arena_bytes.is_some() => Ok((u64::MAX, Limit::Arena)),
        (None, None) => Err(PlanError::UnknownMachine),
    }
}

/// Room for the largest record of any layer.
fn slot_bytes(shape: &ModelShape, page_bytes: u64) -> u64 {
    let record = |parts: &[u64; 3]| sum(&parts.map(|part| window_bytes(part, page_bytes)));
    shape.part_bytes.iter().map(record).max().unwrap_or(0).max(1)
}

/// The most that whole pages around a range take, wherever it begins.
fn window_bytes(len_bytes: u64, page_bytes: u64) -> u64 {
    round_up(len_bytes, page_bytes).saturating_add(page_bytes)
}

fn round_up(len_bytes: u64, page_bytes: u64) -> u64 {
    len_bytes.checked_next_multiple_of(page_bytes.max(1)).unwrap_or(u64::MAX)
}

/// The longest context that fits, when a shorter one helps.
fn shorter(budget_bytes: u64, needed_bytes: u64, context_tokens: u64, token_bytes: u64) -> Option<u64> {
    let over_bytes = countable(needed_bytes)?.checked_sub(budget_bytes)?;
    let tokens = context_tokens.checked_sub(over_bytes.div_ceil(token_bytes.max(1)))?;
    (token_bytes > 0 && tokens > 0).then_some(tokens)
}

/// A sum of sizes; `u64::MAX` when it is no number.
fn sum(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |sum, part| sum.saturating_add(*part))
}

/// A size, unless its sum was none.
fn countable(bytes: u64) -> Option<u64> {
    (bytes < u64::MAX).then_some(bytes)
}
