//! The memory plan of a model file on this machine. Only the file's tables are read.

use std::path::Path;

use strata_backend::{Arithmetic, Isa};
use strata_gguf::Gguf;
use strata_model::qwen4exp::{Config, memory_shape};
use strata_store::plan::{Drive, MachineFacts, Plan, Request};

use crate::{EngineError, Machine, Memory, ModelOptions};

/// What a user asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanRequest {
    /// The most memory of the whole process; `None`: what the machine can spare.
    pub memory_bytes: Option<u64>,
    /// The most memory of the experts' arena; `None`: what is left.
    pub arena_bytes: Option<u64>,
    /// Tokens of context; `None`: the smaller of the model's own and 32,768.
    pub context_tokens: Option<usize>,
    /// Tokens of a pass; `None`: as memory allows.
    pub pass_tokens: Option<usize>,
    /// Whether everything is computed, and the context kept, in float32.
    pub is_precise: bool,
    /// What the drive reads in a second, if that is known.
    pub drive_bytes_per_second: Option<u64>,
}

/// The plan of a file's model on this machine.
///
/// # Errors
/// When the file is no model that can be run, or memory does not suffice.
pub fn plan(path: &Path, request: &PlanRequest) -> Result<Plan, EngineError> {
    let gguf = Gguf::open(path)?;
    let load = |source| EngineError::Load { path: path.to_owned(), source };
    let config = Config::read(&gguf, None).map_err(load)?;
    let shape = memory_shape(&gguf, &config, ModelOptions::default().strip_rows).map_err(load)?;
    // The latency of a drive is not known before it is measured.
    let drive = request.drive_bytes_per_second.map(|bytes_per_second| Drive { bytes_per_second, latency_ns: 0 });
    let machine = facts(&Machine::detect(), drive);
    let request = Request {
        memory_bytes: request.memory_bytes,
        arena_bytes: request.arena_bytes,
        context_tokens: request.context_tokens.unwrap_or_else(|| config.default_context_tokens()) as u64,
        pass_tokens: request.pass_tokens.map(|tokens| tokens as u64),
        is_precise: request.is_precise || Isa::best().fastest_arithmetic() == Arithmetic::Float32,
        ..Request::default()
    };
    Ok(strata_store::plan::plan(&shape, &machine, &request)?)
}

fn facts(machine: &Machine, drive: Option<Drive>) -> MachineFacts {
    let Memory { total_bytes, available_bytes, group, lock_limit_bytes, page_bytes } = machine.memory;
    MachineFacts {
        total_bytes,
        available_bytes,
        group_limit_bytes: group.map(|group| group.limit_bytes),
        group_used_bytes: group.map_or(0, |group| group.used_bytes),
        lock_limit_bytes,
        page_bytes,
        threads: machine.threads as u64,
        drive,
    }
}
