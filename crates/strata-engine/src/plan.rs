//! The memory plan of a model file on this machine. Only the file's tables are read.

use std::path::Path;

use strata_backend::{Arithmetic, Isa, KvType};
use strata_model::qwen4exp::{Config, add_draft_head, checkpoint_bytes, memory_shape, window_bytes};
use strata_store::plan::{Drive, Limit, MachineFacts, ModelShape, Plan, Request};

use crate::kept::{self, ModelFile};
use crate::running::{self, Other};
use crate::{Calibration, DraftKind, EngineError, EngineOptions, Machine, Memory, Route};

/// The plan by which a file's model would be opened on this machine. `drive_bytes_per_second` is what the drive reads, if
/// that is known.
///
/// # Errors
/// When the file is no model that can be run, or memory does not suffice.
pub fn plan(path: &Path, options: &EngineOptions, drive_bytes_per_second: Option<u64>) -> Result<Plan, EngineError> {
    plan_of(&ModelFile::open(path)?, path, options, drive_bytes_per_second)
}

/// [`plan`] as if no arena had been found best yet ([`Calibration`]). Other running processes keep their memory.
///
/// # Errors
/// As [`plan`].
pub fn plan_uncalibrated(path: &Path, options: &EngineOptions) -> Result<Plan, EngineError> {
    let Question { shape, machine, request, .. } = Question::of(&ModelFile::open(path)?, path, options, None)?;
    Ok(strata_store::plan::plan(&shape, &machine, &request)?)
}

/// Records on their way at a time, at least, unless the user says how many.
const LEAST_DEPTH: u32 = 8;

pub(crate) fn plan_of(
    file: &ModelFile,
    path: &Path,
    options: &EngineOptions,
    drive_bytes_per_second: Option<u64>,
) -> Result<Plan, EngineError> {
    let Question { shape, machine, request, .. } = Question::of(file, path, options, drive_bytes_per_second)?;
    let plan = strata_store::plan::plan(&shape, &machine, &request)?;
    let is_told = request.memory_bytes.is_some() || request.arena_bytes.is_some();
    if is_told || !options.heeds_user_files {
        return Ok(plan);
    }
    // What was found best when more was free must not be more than there is now.
    let least_bytes = plan.smallest_slots * plan.slot_bytes;
    let best_bytes = kept::load::<Calibration>(file).map(|calibration| calibration.arena_bytes.max(least_bytes));
    match best_bytes.filter(|bytes| *bytes < plan.arena_bytes) {
        None => Ok(plan),
        Some(_) => {
            let plan = strata_store::plan::plan(&shape, &machine, &Request { arena_bytes: best_bytes, ..request })?;
            Ok(Plan { limit: Limit::Calibrated, ..plan })
        }
    }
}

/// All that a plan depends on.
pub(crate) struct Question {
    pub(crate) config: Config,
    pub(crate) shape: ModelShape,
    pub(crate) machine: MachineFacts,
    pub(crate) request: Request,
}

impl Question {
    pub(crate) fn of(
        file: &ModelFile,
        path: &Path,
        options: &EngineOptions,
        drive_bytes_per_second: Option<u64>,
    ) -> Result<Self, EngineError> {
        let load = |source| EngineError::Load { path: path.to_owned(), source };
        let config = Config::read(file, options.model.block_tokens).map_err(load)?;
        let context_tokens = options.model.context_tokens.unwrap_or_else(|| config.default_context_tokens());
        let strip_rows = options.model.strip_rows.min(context_tokens);
        let isa = options.isa.unwrap_or_else(Isa::best);
        let arithmetic = if options.is_precise { Arithmetic::Float32 } else { isa.fastest_arithmetic() };
        let kv = options.model.kv.unwrap_or(KvType::of(arithmetic));
        let mut shape = memory_shape(file, &config, strip_rows, kv).map_err(load)?;
        if let Some(head) = &options.model.draft_head {
            add_draft_head(&mut shape, file, &config, head, strip_rows, kv).map_err(load)?;
        }
        if options.drafts.kind != DraftKind::Off {
            shape.state_bytes = shape.state_bytes.saturating_add(window_bytes(&config));
        }
        if options.route == Route::Cached && options.moce.kl_every > 0 {
            shape.state_bytes = shape.state_bytes.saturating_add(checkpoint_bytes(&config));
        }
        // The latency of a drive is not known before it is measured.
        let drive = drive_bytes_per_second.map(|bytes_per_second| Drive { bytes_per_second, latency_ns: 0 });
        let threads = if options.threads == 0 { None } else { Some(options.threads as u64) };
        let mut machine = facts(&Machine::detect(), threads, drive);
        if options.heeds_user_files {
            let promised = running::others().iter().map(Other::to_come_bytes).fold(0, u64::saturating_add);
            machine.available_bytes = machine.available_bytes.map(|bytes| bytes.saturating_sub(promised));
            // They may be in the same group.
            machine.group_used_bytes = machine.group_used_bytes.saturating_add(promised);
        }
        let request = Request {
            memory_bytes: options.memory_bytes,
            arena_bytes: options.arena_bytes,
            context_tokens: context_tokens as u64,
            pass_tokens: options.pass_tokens.map(|tokens| tokens as u64),
            io_depth: u64::from(options.model.streaming.depth.unwrap_or(LEAST_DEPTH)),
            sequences: options.sequences as u64,
            side_rows: (options.side_workspaces() * strip_rows) as u64,
            step_rows: options.step_rows() as u64,
            checkpoints: options.checkpoints as u64,
        };
        Ok(Self { config, shape, machine, request })
    }
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

#[cfg(test)]
mod tests {
    use strata_store::plan::{Limit, ModelShape};

    use super::*;
    use crate::Group;

    #[test]
    fn field_report_04_a_control_group_sets_the_budget_of_a_larger_machine() {
        const GIB: u64 = 1 << 30;
        let group = Some(Group { limit_bytes: 32 * GIB, used_bytes: 2 * GIB });
        let memory = Memory {
            total_bytes: Some(256 * GIB),
            available_bytes: Some(200 * GIB),
            group,
            lock_limit_bytes: None,
            page_bytes: 4096,
        };
        let machine = |memory: &Memory| Machine {
            processor: None,
            cores: None,
            threads: 2,
            memory: memory.clone(),
            load: None,
            swap: None,
        };
        // 100 GiB of experts.
        let shape = ModelShape {
            experts: 512,
            top_k: 10,
            part_bytes: vec![[512 * 1024, 512 * 1024, 3 * 1024 * 1024]; 50],
            pass_token_bytes: 100_000,
            ..ModelShape::default()
        };
        let plan = |memory: &Memory, request: &Request| {
            strata_store::plan::plan(&shape, &facts(&machine(memory), None, None), request)
        };
        let free = plan(&memory, &Request::default()).unwrap();
        // What the group leaves, less a sixteenth.
        assert_eq!((free.budget_bytes, free.limit), (30 * GIB / 16 * 15, Limit::ControlGroup));
        assert!(free.total_bytes() <= free.budget_bytes && free.slots < free.experts);
        let asked = |gib: u64| Request { memory_bytes: Some(gib * GIB), ..Request::default() };
        assert_eq!(plan(&memory, &asked(30)).unwrap().budget_bytes, 30 * GIB);
        let error = plan(&memory, &asked(31)).unwrap_err().to_string();
        assert!(error.contains("this process's control group has only 30.00 GiB"), "{error}");
        // What other programs leave counts when it is less, and the machine's memory when nothing else is known.
        let busy = Memory { available_bytes: Some(8 * GIB), ..memory.clone() };
        let of_busy = plan(&busy, &Request::default()).unwrap();
        assert_eq!((of_busy.budget_bytes, of_busy.limit), (8 * GIB / 16 * 15, Limit::Available));
        let alone = Memory { available_bytes: None, group: None, total_bytes: Some(16 * GIB), ..memory };
        let of_alone = plan(&alone, &Request::default()).unwrap();
        assert_eq!((of_alone.budget_bytes, of_alone.limit), (15 * GIB, Limit::Machine));
    }
}
