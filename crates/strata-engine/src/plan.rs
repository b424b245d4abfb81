//! The memory plan of a model file on this machine. Only the file's tables are read.

use std::path::Path;

use strata_backend::{Arithmetic, Isa, KvType};
use strata_gguf::Gguf;
use strata_model::qwen4exp::{Config, add_draft_head, memory_shape, window_bytes};
use strata_store::plan::{Drive, MachineFacts, Plan, Request};

use crate::{DraftKind, EngineError, EngineOptions, Machine, Memory};

/// The plan by which a file's model would be opened on this machine. `drive_bytes_per_second` is what the drive reads, if
/// that is known.
///
/// # Errors
/// When the file is no model that can be run, or memory does not suffice.
pub fn plan(path: &Path, options: &EngineOptions, drive_bytes_per_second: Option<u64>) -> Result<Plan, EngineError> {
    plan_of(&Gguf::open(path)?, path, options, drive_bytes_per_second)
}

/// Records on their way at a time, at least, unless the user says how many.
const LEAST_DEPTH: u32 = 8;

pub(crate) fn plan_of(
    gguf: &Gguf,
    path: &Path,
    options: &EngineOptions,
    drive_bytes_per_second: Option<u64>,
) -> Result<Plan, EngineError> {
    let load = |source| EngineError::Load { path: path.to_owned(), source };
    let config = Config::read(gguf, options.model.block_tokens).map_err(load)?;
    let context_tokens = options.model.context_tokens.unwrap_or_else(|| config.default_context_tokens());
    let strip_rows = options.model.strip_rows.min(context_tokens);
    let isa = options.isa.unwrap_or_else(Isa::best);
    let arithmetic = if options.is_precise { Arithmetic::Float32 } else { isa.fastest_arithmetic() };
    let kv = options.model.kv.unwrap_or(KvType::of(arithmetic));
    let mut shape = memory_shape(gguf, &config, strip_rows, kv).map_err(load)?;
    if let Some(head) = &options.model.draft_head {
        add_draft_head(&mut shape, gguf, &config, head, strip_rows, kv).map_err(load)?;
    }
    if options.drafts.kind != DraftKind::Off {
        shape.state_bytes += window_bytes(&config);
    }
    // The latency of a drive is not known before it is measured.
    let drive = drive_bytes_per_second.map(|bytes_per_second| Drive { bytes_per_second, latency_ns: 0 });
    let threads = if options.threads == 0 { None } else { Some(options.threads as u64) };
    let machine = facts(&Machine::detect(), threads, drive);
    let request = Request {
        memory_bytes: options.memory_bytes,
        arena_bytes: options.arena_bytes,
        context_tokens: context_tokens as u64,
        pass_tokens: options.pass_tokens.map(|tokens| tokens as u64),
        io_depth: u64::from(options.model.streaming.depth.unwrap_or(LEAST_DEPTH)),
    };
    Ok(strata_store::plan::plan(&shape, &machine, &request)?)
}

fn facts(machine: &Machine, threads: Option<u64>, drive: Option<Drive>) -> MachineFacts {
    let Memory { total_bytes, available_bytes, group, lock_limit_bytes, page_bytes } = machine.memory;
    MachineFacts {
        total_bytes,
        available_bytes,
        group_limit_bytes: group.map(|group| group.limit_bytes),
        group_used_bytes: group.map_or(0, |group| group.used_bytes),
        lock_limit_bytes,
        page_bytes,
        threads: threads.unwrap_or(machine.threads as u64),
        drive,
    }
}
