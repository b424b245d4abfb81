//! From flags to an open model.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use strata_engine::running::{self, Other};
use strata_engine::{
    Calibration, DraftKind, DraftOptions, Engine, EngineError, EngineOptions, GdnForm, Generated, Isa, KvType, Limit,
    Lock, Lookahead, ModelOptions, Plan, RowsWhen, RunKeeper, Sampler, SamplerParams, Streaming, StreamsNorm,
};

use crate::error::CliError;
use crate::flags::{
    self, DraftFlag, DraftFlags, EngineFlags, GdnFlag, IsaFlag, KvFlag, LockFlag, LookaheadFlag, NormFlag, PleFlag,
    RouteFlag, SamplingFlags, StreamingFlags, io_depth, thread_count,
};
use crate::hub::{self, ModelName};
use crate::plan::gib;
use crate::{interrupt, note, priority, route};

/// The model that comes with Strata, seen from the root of the repository.
const SHIPPED_MODEL: &str = "models/strata-mini/strata-mini-iq2xs-q4_0.gguf";
/// What the reference implementation computes of it.
const SHIPPED_REFERENCE: &str = "models/strata-mini/reference.safetensors";
/// Text that the model was not trained on.
const SHIPPED_TEXT: &str = "models/strata-mini/eval.txt";

/// The file or pulled model that a user named, or the model that comes with Strata: below the current directory, or beside the program (its
/// own directory or any above it, such as the repository it was built in).
pub(crate) fn model_path(named: Option<&Path>) -> Result<PathBuf, CliError> {
    if let Some(path) = named {
        let name = path.to_str().filter(|_| !path.exists()).and_then(ModelName::parse);
        return match name.zip(hub::cache()) {
            Some((name, cache)) => hub::resolve(&cache, &name).map_err(CliError::Failed),
            None => Ok(path.to_owned()),
        };
    }
    shipped(SHIPPED_MODEL).ok_or_else(|| {
        CliError::Failed(format!(
            "no model: name one with -m FILE, or run inside the Strata repository, where {SHIPPED_MODEL} is used"
        ))
    })
}

/// What the reference implementation computes of the shipped model, if it is there.
pub(crate) fn reference_path() -> Option<PathBuf> {
    shipped(SHIPPED_REFERENCE)
}

/// The text that comes with Strata, looked for where the model is.
pub(crate) fn text_path() -> Result<PathBuf, CliError> {
    shipped(SHIPPED_TEXT).ok_or_else(|| {
        CliError::Failed(format!(
            "no text: name one with --text FILE, or run inside the Strata repository, where {SHIPPED_TEXT} is used"
        ))
    })
}

fn shipped(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().and_then(|path| path.canonicalize()).unwrap_or_default();
    let beside = program.ancestors().skip(1).map(|dir| dir.join(name));
    std::iter::once(PathBuf::from(name)).chain(beside).find(|path| path.is_file())
}

pub(crate) fn engine_options(flags: &EngineFlags) -> EngineOptions {
    EngineOptions {
        isa: isa(flags.isa),
        threads: flags.threads,
        is_precise: flags.precise,
        is_profiled: false,
        memory_bytes: flags.streaming.memory_gb,
        arena_bytes: flags.streaming.arena_gb,
        pass_tokens: flags.pass,
        heeds_user_files: true,
        route: route::route(flags.route.route),
        moce: route::moce(&flags.route),
        drafts: DraftOptions::default(),
        sequences: 0,
        checkpoints: 0,
        model: ModelOptions {
            context_tokens: flags.context,
            kv: flags.streaming.kv.map(kv),
            strip_rows: flags.strip,
            gdn_form: gdn_form(flags.gdn),
            block_tokens: flags.qsa_block,
            streaming: streaming(&flags.streaming),
            ..ModelOptions::default()
        },
    }
}

/// How a command that writes text drafts it.
pub(crate) fn drafts(flags: &DraftFlags) -> DraftOptions {
    DraftOptions {
        kind: match flags.draft {
            DraftFlag::Off => DraftKind::Off,
            DraftFlag::Lookup => DraftKind::Lookup,
            DraftFlag::Mtp => DraftKind::Mtp,
            DraftFlag::Auto => DraftKind::Auto,
        },
        most: flags.draft_max as usize,
        head: flags.mtp.clone(),
        norm: match flags.mtp_norm {
            NormFlag::One => StreamsNorm::One,
            NormFlag::Grouped => StreamsNorm::Grouped,
        },
    }
}

fn streaming(flags: &StreamingFlags) -> Streaming {
    Streaming {
        depth: flags.io_depth,
        reader: flags.io,
        lookahead: lookahead(flags.lookahead),
        forecast_min: flags.forecast_min,
        rows_when: rows_when(flags.ple),
        lock: match flags.lock {
            LockFlag::Auto => Lock::Try,
            LockFlag::On => Lock::On,
            LockFlag::Off => Lock::Off,
        },
        ..Streaming::default()
    }
}

fn kv(flag: KvFlag) -> KvType {
    match flag {
        KvFlag::F32 => KvType::Float32,
        KvFlag::Bf16 => KvType::Bfloat16,
        KvFlag::Q8_0 => KvType::Q8_0,
    }
}

fn lookahead(flag: LookaheadFlag) -> Lookahead {
    match flag {
        LookaheadFlag::Off => Lookahead::Off,
        LookaheadFlag::Profile => Lookahead::Profile,
        LookaheadFlag::Router => Lookahead::Router,
        LookaheadFlag::Router2 => Lookahead::Router2,
    }
}

fn rows_when(flag: PleFlag) -> RowsWhen {
    match flag {
        PleFlag::Sync => RowsWhen::Before,
        PleFlag::Async => RowsWhen::Beside,
    }
}

/// The instruction set of a flag; `None`: the best.
pub(crate) fn isa(flag: IsaFlag) -> Option<Isa> {
    match flag {
        IsaFlag::Auto => None,
        IsaFlag::Amx => Some(Isa::Amx),
        IsaFlag::Avx512 => Some(Isa::Avx512),
        IsaFlag::Avx2 => Some(Isa::Avx2),
        IsaFlag::Portable => Some(Isa::Portable),
    }
}

/// Changes one option by its name; `None`: there is no such name or value.
pub(crate) fn set_option(options: &mut EngineOptions, key: &str, value: &str) -> Option<()> {
    let number = || value.parse::<usize>().ok();
    let positive = || number().filter(|n| *n > 0);
    match key {
        "threads" => options.threads = thread_count(value).ok()?,
        "isa" => options.isa = isa(IsaFlag::from_str(value, false).ok()?),
        "precise" => options.is_precise = value.parse().ok()?,
        "kv" => options.model.kv = Some(kv(KvFlag::from_str(value, false).ok()?)),
        "context" => options.model.context_tokens = Some(positive()?),
        "pass" => options.pass_tokens = Some(positive()?),
        "strip" => options.model.strip_rows = positive()?,
        "gdn" => options.model.gdn_form = gdn_form(GdnFlag::from_str(value, false).ok()?),
        "memory-gb" => options.memory_bytes = Some(flags::gib(value).ok()?),
        "arena-gb" => options.arena_bytes = Some(flags::gib(value).ok()?),
        "lookahead" => options.model.streaming.lookahead = lookahead(LookaheadFlag::from_str(value, false).ok()?),
        "forecast-min" => options.model.streaming.forecast_min = value.parse().ok()?,
        "ple" => options.model.streaming.rows_when = rows_when(PleFlag::from_str(value, false).ok()?),
        "io" => options.model.streaming.reader = value.parse().ok()?,
        "io-depth" => options.model.streaming.depth = Some(io_depth(value).ok()?),
        "route" => options.route = route::route(RouteFlag::from_str(value, false).ok()?),
        "qsa-block" => options.model.block_tokens = Some(number()?),
        _ => return None,
    }
    Some(())
}

fn gdn_form(flag: GdnFlag) -> GdnForm {
    match flag {
        GdnFlag::Recurrent => GdnForm::Recurrent,
        GdnFlag::Chunked => GdnForm::Chunked,
    }
}

/// [`open`], which first tells how memory will be divided.
pub(crate) fn open_telling(path: &Path, options: &EngineOptions) -> Result<Engine, CliError> {
    let tell = |plan: &Plan| note::line(format_args!("strata: plan: {}", plan_line(plan, path)));
    let engine = ready(Engine::open_telling(path, options, tell).map_err(plan_failed)?)?;
    if let Some(moce) = engine.moce() {
        note::line(format_args!("strata: routes: {}", route::settings(&moce)));
    }
    Ok(engine)
}

/// An error, with the other processes that it may be due to.
pub(crate) fn plan_failed(error: EngineError) -> CliError {
    let others = match error {
        EngineError::Plan(_) => running::others(),
        _ => Vec::new(),
    };
    match (others_line(&others), CliError::from(error)) {
        (Some(others), CliError::Failed(text)) => CliError::Failed(format!("{text}; {others}")),
        (_, error) => error,
    }
}

/// Other processes with open models, if there are any.
pub(crate) fn others_line(others: &[Other]) -> Option<String> {
    let one = |other: &Other| {
        let (plan, to_come) = (gib(other.plan_bytes), gib(other.to_come_bytes()));
        format!("process {} with {} ({plan:.2} GiB, {to_come:.2} of them still to come)", other.pid, other.model)
    };
    let list: Vec<_> = others.iter().map(one).collect();
    (!list.is_empty()).then(|| format!("memory is left to other Strata: {}", list.join(", ")))
}

/// Opens a model, tells the user what is odd about its file, and reads the experts that stay in memory. Ctrl-C ends that
/// reading, and the command.
pub(crate) fn open(path: &Path, options: &EngineOptions) -> Result<Engine, CliError> {
    ready(Engine::open(path, options).map_err(plan_failed)?)
}

fn ready(mut engine: Engine) -> Result<Engine, CliError> {
    for warning in &engine.model().config().warnings {
        note::line(format_args!("strata: warning: {warning}"));
    }
    if engine.plan().slots < engine.plan().experts
        && let Some(warning) = priority::warning()
    {
        note::line(format_args!("strata: warning: {warning}"));
    }
    load_experts(&mut engine)?;
    engine.on_prompt_progress(prompt_bar());
    Ok(engine)
}

/// Shows a bar for prompts that take a while, where somebody looks at it. Is told how much is done, 0 to 1.
pub(crate) fn prompt_bar() -> impl FnMut(f64) + Send {
    let mut shown: Option<(Instant, indicatif::ProgressBar)> = None;
    move |done| {
        let (start, bar) = shown.get_or_insert_with(|| (Instant::now(), indicatif::ProgressBar::hidden()));
        if bar.is_hidden() && start.elapsed() > BAR_AFTER {
            bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            let template = "strata: prompt {bar:30} {percent} %, {eta} left";
            bar.set_style(indicatif::ProgressStyle::with_template(template).expect("a sound template"));
            bar.set_length(1000);
        }
        bar.set_position((1000.0 * done) as u64);
        if done >= 1.0 {
            bar.finish_and_clear();
            shown = None;
        }
    }
}

/// Reads the experts that stay in memory, with a bar where it takes a while.
fn load_experts(engine: &mut Engine) -> Result<(), CliError> {
    let bar = indicatif::ProgressBar::hidden();
    let start = Instant::now();
    let is_stopped = interrupt::stoppable(|stop| {
        let mut is_stopped = false;
        let result = engine.load_experts(|read_bytes, all_bytes| {
            if bar.is_hidden() && start.elapsed() > BAR_AFTER {
                bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
                bar.set_style(bar_style());
            }
            bar.set_length(all_bytes);
            bar.set_position(read_bytes);
            is_stopped = stop.load(Ordering::Relaxed);
            !is_stopped
        });
        result.map(|()| is_stopped)
    })?;
    bar.finish_and_clear();
    if is_stopped { Err(CliError::Interrupted) } else { Ok(()) }
}

/// Keeps which experts were used for the next time. That this fails is no failure of what was asked for.
pub(crate) fn save_usage(engine: &mut Engine) {
    if let Err(error) = engine.save_usage() {
        note::line(format_args!("strata: warning: which experts were used is not kept: {error}"));
    }
}

/// What is over sooner needs no bar.
const BAR_AFTER: Duration = Duration::from_secs(1);

fn bar_style() -> indicatif::ProgressStyle {
    let template = "strata: experts {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    indicatif::ProgressStyle::with_template(template).expect("a sound template")
}

/// Keeps what a run took, for `strata doctor`: tokens and seconds of its prompt, and of tokens that came one by one. That
/// this fails is no failure of what was asked for.
pub(crate) fn save_run(keeper: &RunKeeper, command: &str, prompt: Option<(usize, f64)>, decode: Option<(usize, f64)>) {
    if let Err(error) = keeper.save(command, prompt, decode) {
        note::line(format_args!("strata: warning: how long this took is not kept: {error}"));
    }
}

/// [`save_run`] of what was generated.
pub(crate) fn save_generated(keeper: &RunKeeper, command: &str, generated: &Generated) {
    // The first token comes with the prompt's logits.
    let decoded = generated.tokens.len().saturating_sub(1);
    let read = generated.prompt_tokens - generated.reused_tokens;
    let part = |tokens: usize, time: Duration| Some((tokens, time.as_secs_f64())).filter(|_| !time.is_zero());
    save_run(keeper, command, part(read, generated.prompt_time), part(decoded, generated.decode_time));
}

/// How memory is divided, in a line.
pub(crate) fn plan_line(plan: &Plan, path: &Path) -> String {
    let budget = match (plan.budget_bytes, plan.limit) {
        (u64::MAX, _) | (_, Limit::Nothing) => String::new(),
        (bytes, _) => format!(" of {:.2}", gib(bytes)),
    };
    let arena = match plan.limit {
        Limit::Nothing => format!("all {} experts", plan.experts),
        Limit::Calibrated => {
            let date =
                Calibration::of(path).ok().flatten().map_or_else(String::new, |found| format!(" {}", found.date));
            format!("{} of {} experts, calibrated{date}", plan.slots, plan.experts)
        }
        _ => format!("{} of {} experts", plan.slots, plan.experts),
    };
    // They matter where free memory is what limits.
    let others = match plan.limit {
        Limit::Available => others_line(&running::others()).map_or_else(String::new, |others| format!("; {others}")),
        _ => String::new(),
    };
    format!(
        "{:.2}{budget} GiB of memory: dense {:.2}, context {:.2} ({} tokens), passes {:.2} ({} tokens), arena {:.2} \
         ({arena}), reserve {:.2}{others}",
        gib(plan.total_bytes()),
        gib(plan.dense_bytes),
        gib(plan.state_bytes + plan.cache_bytes + plan.checkpoint_bytes),
        plan.context_tokens,
        gib(plan.workspace_bytes + plan.ple_bytes + plan.side_bytes + plan.step_bytes),
        plan.pass_tokens,
        gib(plan.arena_bytes),
        gib(plan.reserve_bytes),
    )
}

/// The model's file and what computes, for people.
pub(crate) fn describe(engine: &Engine) -> String {
    let name = engine.path().file_name().unwrap_or_default().display();
    format!("{name} on {}", engine.model().describe_backend())
}

/// Refuses what no token can be chosen by, before a model is opened.
pub(crate) fn check_sampling(flags: &SamplingFlags) -> Result<(), CliError> {
    let checked = Sampler::new(sampling(flags, SamplerParams::default()));
    checked.map(|_| ()).map_err(|error| EngineError::from(error).into())
}

/// What the user gave, over what the model's makers recommend.
pub(crate) fn sampling(flags: &SamplingFlags, recommended: SamplerParams) -> SamplerParams {
    SamplerParams {
        temperature: flags.temp.unwrap_or(recommended.temperature),
        top_k: flags.top_k.unwrap_or(recommended.top_k),
        top_p: flags.top_p.unwrap_or(recommended.top_p),
        min_p: flags.min_p.unwrap_or(recommended.min_p),
        seed: flags.seed,
        ..recommended
    }
}
