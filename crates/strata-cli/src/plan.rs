//! `strata plan`: how memory would be divided.

use std::io::Write;

use serde_json::{Value, json};
use strata_engine::{Limit, Plan, plan as plan_memory, running};

use crate::error::CliError;
use crate::flags::PlanFlags;
use crate::{note, setup};

pub(crate) fn plan(flags: &PlanFlags) -> Result<(), CliError> {
    let path = setup::model_path(flags.model.model.as_deref())?;
    let plan = plan_memory(&path, &setup::engine_options(&flags.engine), flags.drive_gb).map_err(setup::plan_failed)?;
    let mut out = std::io::stdout().lock();
    match flags.json {
        true => writeln!(out, "{}", to_json(&plan))?,
        false => write_table(&mut out, &plan)?,
    }
    if let (Limit::Available, Some(others)) = (plan.limit, setup::others_line(&running::others())) {
        note::line(format_args!("strata: {others}"));
    }
    Ok(())
}

fn write_table(out: &mut impl Write, plan: &Plan) -> Result<(), CliError> {
    let parts = [
        ("dense weights", plan.dense_bytes, String::new()),
        ("state", plan.state_bytes, texts(plan)),
        ("cache", plan.cache_bytes, format!("{} tokens of context{}", plan.context_tokens, each(plan))),
        ("workspace", plan.workspace_bytes, format!("passes of {} tokens", plan.pass_tokens)),
        ("n-gram rows", plan.ple_bytes, String::new()),
        ("other prompts", plan.side_bytes, "read beside the first".to_owned()),
        ("steps", plan.step_bytes, "of all texts together".to_owned()),
        ("checkpoints", plan.checkpoint_bytes, "of prefixes".to_owned()),
        ("reserve", plan.reserve_bytes, "program, tokenizer, stacks".to_owned()),
        ("arena", plan.arena_bytes, arena(plan)),
        ("all", plan.total_bytes(), budget(plan)),
    ];
    writeln!(out, "{:<14}{:>9}", "memory", "GiB")?;
    let is_beside = |name| ["other prompts", "steps", "checkpoints"].contains(&name);
    for (name, bytes, note) in parts.into_iter().filter(|(name, bytes, _)| *bytes > 0 || !is_beside(*name)) {
        let line = format!("{name:<14}{:>9.3}  {note}", gib(bytes));
        writeln!(out, "{}", line.trim_end())?;
    }
    let areas = if plan.areas == 1 { "area" } else { "areas" };
    writeln!(
        out,
        "\nslots of {} bytes in {} {areas}; at least {} are needed; {}",
        plan.slot_bytes,
        plan.areas,
        plan.smallest_slots,
        if plan.can_lock { "they can be locked in memory" } else { "they cannot be locked in memory" }
    )?;
    if plan.prompts.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{:<14}{:>9}{:>14}{:>14}{:>10}", "prompt", "passes", "experts GiB", "n-gram GiB", "seconds")?;
    for prompt in &plan.prompts {
        let seconds = prompt.seconds.map_or_else(|| "unknown".to_owned(), |seconds| format!("{seconds:.2}"));
        writeln!(
            out,
            "{:<14}{:>9}{:>14.2}{:>14.2} {seconds:>9}",
            format!("{} tokens", prompt.prompt_tokens),
            prompt.passes,
            gib(prompt.expert_bytes),
            gib(prompt.ple_bytes)
        )?;
    }
    Ok(())
}

fn texts(plan: &Plan) -> String {
    match plan.sequences {
        1 => "of a text, whatever its length".to_owned(),
        texts => format!("of {texts} texts, whatever their length"),
    }
}

fn each(plan: &Plan) -> &'static str {
    if plan.sequences == 1 { "" } else { " each" }
}

fn arena(plan: &Plan) -> String {
    let share = 100.0 * plan.share();
    match plan.limit {
        Limit::Nothing => format!("all {} experts", plan.experts),
        Limit::Arena => format!("{} of {} experts ({share:.1} %), as asked for", plan.slots, plan.experts),
        Limit::Calibrated => format!("{} of {} experts ({share:.1} %), as calibrated", plan.slots, plan.experts),
        _ => format!("{} of {} experts ({share:.1} %)", plan.slots, plan.experts),
    }
}

fn budget(plan: &Plan) -> String {
    let what = match plan.limit {
        // Then the machine is unknown, or there is more than enough.
        Limit::Nothing | Limit::Arena | Limit::Calibrated => "may be used",
        Limit::Memory => "asked for",
        Limit::Machine => "of this machine can be spared",
        Limit::Available => "of this machine are free and can be spared",
        Limit::ControlGroup => "are left by the control group",
    };
    match plan.budget_bytes {
        u64::MAX => String::new(),
        bytes => format!("{:.3} {what}", gib(bytes)),
    }
}

pub(crate) fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

pub(crate) fn to_json(plan: &Plan) -> Value {
    let limit = match plan.limit {
        Limit::Nothing => "nothing",
        Limit::Memory => "memory",
        Limit::Arena => "arena",
        Limit::Calibrated => "calibrated",
        Limit::Machine => "machine",
        Limit::Available => "available",
        Limit::ControlGroup => "control group",
    };
    let prompts = plan.prompts.iter().map(|prompt| {
        json!({
            "tokens": prompt.prompt_tokens,
            "passes": prompt.passes,
            "expert_bytes": prompt.expert_bytes,
            "ple_bytes": prompt.ple_bytes,
            "drive_s": prompt.seconds,
        })
    });
    json!({
        "plan_bytes": plan.total_bytes(),
        "budget_bytes": (plan.budget_bytes < u64::MAX).then_some(plan.budget_bytes),
        "limit": limit,
        "dense_bytes": plan.dense_bytes,
        "state_bytes": plan.state_bytes,
        "cache_bytes": plan.cache_bytes,
        "workspace_bytes": plan.workspace_bytes,
        "ple_bytes": plan.ple_bytes,
        "side_bytes": plan.side_bytes,
        "step_bytes": plan.step_bytes,
        "checkpoint_bytes": plan.checkpoint_bytes,
        "reserve_bytes": plan.reserve_bytes,
        "arena_bytes": plan.arena_bytes,
        "slot_bytes": plan.slot_bytes,
        "slots": plan.slots,
        "smallest_slots": plan.smallest_slots,
        "experts": plan.experts,
        "areas": plan.areas,
        "area_slots": plan.area_slots,
        "can_lock": plan.can_lock,
        "sequences": plan.sequences,
        "context_tokens": plan.context_tokens,
        "pass_tokens": plan.pass_tokens,
        "prompts": prompts.collect::<Vec<_>>(),
    })
}
