//! A model: its files and their drive, the plan, tokenizer and chat template.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use strata_engine::bench::drive::DriveBench;
use strata_engine::{
    ChatOptions, Engine, EngineError, EngineOptions, FilePlace, Machine, ModelOptions, Plan, Stop, Work,
};

use super::{Report, speed};
use crate::error::CliError;
use crate::flags::DoctorFlags;
use crate::plan::{self, gib};
use crate::{probe, setup};

/// The longest that the drive is measured: for reads of experts, and of rows.
const PROBE_SECONDS: [f64; 2] = [2.6, 0.4];
/// Files are measured for a second of each so many bytes: a small one has few places that were not read yet.
const PROBED_BYTES_A_SECOND: f64 = 400e6;
/// A drive below this is slower than what Strata is made for.
const SLOW_BYTES_PER_SECOND: f64 = 500e6;
/// Part of a machine's memory that a plan should find.
const LEAST_FREE: f64 = 0.5;
/// Characters of a rendered conversation that are shown.
const SHOWN_CHARACTERS: usize = 300;
/// The conversation.
const MESSAGES: [(&str, &str); 3] =
    [("user", "Say hello."), ("assistant", "Hello!"), ("user", "What is a compiler, in one sentence?")];

/// Context and pass of the model that is opened to be measured: the arena and dense weights are what matters.
const MEASURED_CONTEXT: usize = 512;
const MEASURED_PASS: usize = 128;
/// Its arena, at most: filling a large one takes longer than all the rest.
const MEASURED_ARENA_BYTES: u64 = 1 << 30;

pub(super) fn check(report: &mut Report, flags: &DoctorFlags, stop: &Stop) -> Result<(), CliError> {
    let named = flags.model.model.as_deref();
    let Ok(path) = setup::model_path(named) else {
        return report.line("model", "none: -m FILE names one");
    };
    let options = EngineOptions {
        memory_bytes: flags.memory_gb,
        arena_bytes: flags.arena_gb,
        heeds_user_files: true,
        model: ModelOptions { context_tokens: flags.context, ..ModelOptions::default() },
        ..EngineOptions::default()
    };
    report.set("model", path.display().to_string());
    let work = match Work::of(&path, &options) {
        Ok(work) => work,
        Err(error) => {
            let advice = match &error {
                EngineError::Plan(_) => "use a smaller --context, close other programs, or a machine with more memory",
                _ => "see docs/model-files.md; `strata inspect` shows what a file holds; a copy may be incomplete",
            };
            let text = setup::plan_failed(error).text().unwrap_or_default().to_owned();
            report.line("model", &format!("{}: cannot be opened", path.display()))?;
            report.broken(text, advice);
            return Ok(());
        }
    };
    let drive_bytes_per_second = files(report, &work, stop)?;
    planned(report, &work, &path)?;
    let mut engine = match open_small(&path, &options, work.plan(), stop) {
        Ok(engine) => engine,
        Err(error) if error.is_cancelled() => return Err(error.into()),
        Err(error) => {
            report
                .broken(setup::plan_failed(error).text().unwrap_or_default(), "without it nothing else can be checked");
            return Ok(());
        }
    };
    for warning in &engine.model().config().warnings {
        report.warn(warning, "");
    }
    chat(report, &engine)?;
    speed::check(report, &mut engine, &work, drive_bytes_per_second, stop)
}

/// The model with a small arena, in which computation alone can be measured.
fn open_small(path: &Path, options: &EngineOptions, plan: &Plan, stop: &Stop) -> Result<Engine, EngineError> {
    let mut options = options.clone();
    options.arena_bytes = Some(plan.arena_bytes.min(MEASURED_ARENA_BYTES.max(plan.smallest_slots * plan.slot_bytes)));
    options.model.context_tokens = Some(MEASURED_CONTEXT.min(plan.context_tokens as usize));
    options.pass_tokens = Some(MEASURED_PASS);
    let mut engine = Engine::open(path, &options)?;
    engine.load_experts(|_, _| !stop.load(std::sync::atomic::Ordering::Relaxed))?;
    Ok(engine)
}

/// Where the files lie, and what their drive gives: bytes a second, of experts.
fn files(report: &mut Report, work: &Work, stop: &Stop) -> Result<Option<f64>, CliError> {
    let mut places = Vec::new();
    for path in work.files() {
        let place = match FilePlace::of(path) {
            Ok(place) => place,
            Err(error) => {
                report.broken(format!("{}: {error}", path.display()), "it must be readable as long as a model is open");
                return Ok(None);
            }
        };
        check_place(report, path, &place);
        places.push((path, place));
    }
    let bytes: u64 = places.iter().map(|(_, place)| place.len_bytes).sum();
    let kinds: Vec<&str> = places.iter().filter_map(|(_, place)| place.file_system.as_deref()).collect();
    let name = work.files()[0].file_name().unwrap_or_default().display().to_string();
    let many = if places.len() > 1 { format!(" in {} files", places.len()) } else { String::new() };
    report.line(
        "model",
        &format!("{name}, {:.2} GiB{many}, file system {}", gib(bytes), kinds.first().unwrap_or(&"unknown")),
    )?;
    let file = |(path, place): &(&std::path::PathBuf, FilePlace)| {
        json!({
            "path": path.display().to_string(), "bytes": place.len_bytes, "stored_bytes": place.stored_bytes,
            "file_system": place.file_system, "remote": place.is_remote, "compressed": place.is_compressed,
        })
    };
    report.set("files", places.iter().map(file).collect::<Vec<Value>>());
    let Some((path, place)) = places.iter().max_by_key(|(_, place)| place.len_bytes) else { return Ok(None) };
    drive(report, path, place, work.plan(), stop)
}

fn check_place(report: &mut Report, path: &Path, place: &FilePlace) {
    let name = path.display();
    let system = place.file_system.as_deref().unwrap_or_default();
    if place.is_remote {
        report.warn(
            format!("{name} lies on a network ({system}): every expert that is not in memory comes through it"),
            "copy the model to a drive of this machine",
        );
    }
    if place.is_compressed {
        report.warn(
            format!(
                "{name} lies on a file system that compresses ({system}): reads go through the processor and the page \
                     cache"
            ),
            "put the model where nothing is compressed; on btrfs, `chattr +C` a folder and copy it there",
        );
    }
    // A file system's own records are less than this.
    if place.missing_bytes() > place.len_bytes / 100 {
        report.warn(
            format!(
                "{name} has holes: {:.2} of {:.2} GiB are not on the drive",
                gib(place.missing_bytes()),
                gib(place.len_bytes)
            ),
            "a download may not be complete, or the file was compressed: compare its checksum, and copy it anew",
        );
    }
}

fn drive(
    report: &mut Report,
    path: &Path,
    place: &FilePlace,
    plan: &Plan,
    stop: &Stop,
) -> Result<Option<f64>, CliError> {
    let measure = || {
        let record = |error: std::io::Error| EngineError::Record { path: path.to_owned(), problem: error.to_string() };
        let mut bench = DriveBench::open(path, File::open(path).map_err(record)?)?;
        let most = place.len_bytes as f64 / PROBED_BYTES_A_SECOND;
        let mut rates = Vec::new();
        for (read_bytes, seconds) in [probe::EXPERT_READ_BYTES, probe::ROW_READ_BYTES].into_iter().zip(PROBE_SECONDS) {
            rates.extend(bench.measure(read_bytes, Duration::from_secs_f64(seconds.min(most)), stop)?);
        }
        Ok::<_, EngineError>((bench, rates))
    };
    let (bench, rates) = match measure() {
        Ok(measured) => measured,
        Err(error) if error.is_cancelled() => return Err(error.into()),
        Err(error) => {
            report.line("drive", &format!("cannot be measured: {error}"))?;
            report.broken(format!("the model's drive cannot be read: {error}"), "look at the system's log (`dmesg`)");
            return Ok(None);
        }
    };
    let device = bench.device();
    let name = device.name.as_deref().unwrap_or("unknown");
    let kind = match (place.is_memory, device.is_rotational) {
        (true, _) => "memory",
        (_, Some(true)) => "says that it turns",
        (_, Some(false)) => "no moving parts",
        (_, None) => "kind unknown",
    };
    let best = probe::best_of(&rates, probe::EXPERT_READ_BYTES);
    let small = probe::small_read(&rates).map(|rate| rate.seconds.median);
    let streams = plan.slots < plan.experts;
    let told = match best {
        Some(rate) => format!(
            "{:.2} GB/s past the page cache, by {} with {} reads of {} KiB at a time",
            rate.bytes_per_second / 1e9,
            rate.kind,
            rate.depth,
            rate.read_bytes >> 10
        ),
        None if streams => "nothing certain was measured: only what memory may have given".to_owned(),
        None => "not measured: the file is too small, or memory has it; all experts fit into memory".to_owned(),
    };
    let small_told = small.map_or_else(String::new, |seconds| format!("; a small read takes {:.3} ms", seconds * 1e3));
    report.line("drive", &format!("{name} ({kind}): {told}{small_told}"))?;
    let warnings = probe::warnings(device, &rates);
    report.set(
        "drive",
        json!({
            "name": device.name, "rotational": device.is_rotational, "removable": device.is_removable,
            "bytes_per_second": best.map(|rate| rate.bytes_per_second), "reader": best.map(|rate| rate.kind.name()),
            "depth": best.map(|rate| rate.depth), "small_read_seconds": small,
        }),
    );
    warnings.into_iter().for_each(|warning| report.warn(warning, ""));
    match best {
        Some(rate) if streams && rate.bytes_per_second < SLOW_BYTES_PER_SECOND => report.warn(
            format!("the drive gives {:.2} GB/s: experts come slowly", rate.bytes_per_second / 1e9),
            "use an NVMe drive in this machine; see `strata probe` for what it gives with other reads",
        ),
        None if streams => report.warn(
            "what the drive gives is not known: no direct reads past the page cache were seen",
            "measure a file that is larger than memory with `strata probe`; see docs/drive.md",
        ),
        _ => {}
    }
    Ok(best.map(|rate| rate.bytes_per_second))
}

fn planned(report: &mut Report, work: &Work, path: &Path) -> Result<(), CliError> {
    let plan = work.plan();
    report.line("plan", &setup::plan_line(plan, path))?;
    report.set("plan", plan::to_json(plan));
    if plan.slots == plan.experts {
        return Ok(());
    }
    let machine = Machine::detect();
    let (total, spare) = (machine.memory.total_bytes, machine.memory.spare_bytes());
    if let (Some(total), Some(spare)) = (total, spare)
        && (spare as f64) < LEAST_FREE * total as f64
    {
        report.warn(
            format!(
                "only {:.2} of {:.2} GiB of memory can be had: the arena is smaller for it",
                gib(spare),
                gib(total)
            ),
            "other programs, or a control group, have the rest: close them, or raise the limit",
        );
    }
    if machine.swap.is_some() && !plan.can_lock {
        report.warn(
            "there is swap, and the arena cannot be locked: under pressure the system may swap experts out",
            "allow this user to lock memory: `ulimit -l unlimited` (limits.conf: memlock)",
        );
    }
    Ok(())
}

/// Tokenizer and template: a conversation as the model would see it.
fn chat(report: &mut Report, engine: &Engine) -> Result<(), CliError> {
    let is_synthetic = engine.named_ids().is_some();
    let rendered = engine.tokenizer().and_then(|tokenizer| {
        let message = |(role, content): (&str, &str)| json!({ "role": role, "content": content });
        let text = engine.template()?.render(&MESSAGES.map(message), &ChatOptions::default())?;
        let is_token = |mark: &&str| tokenizer.encode(mark, true).is_ok_and(|ids| ids.len() == 1);
        let foreign: Vec<String> = marks(&text).into_iter().filter(|mark| !is_token(mark)).map(str::to_owned).collect();
        Ok((tokenizer.encode(&text, true)?.len(), foreign, tokenizer.end_of_turn_ids().len(), text))
    });
    let (tokens, foreign, ends, text) = match rendered {
        Ok(rendered) => rendered,
        Err(error) => {
            let error = error.to_string();
            report.set("chat", json!({ "ok": false, "error": error }));
            if is_synthetic {
                return report.line("chat", "none: this file is made for measuring, with neither words nor a template");
            }
            report.line("chat", "cannot be rendered")?;
            report.broken(error, "`strata chat` refuses this file, and `strata run` needs --raw: use a file with both");
            return Ok(());
        }
    };
    let shown: String = text.chars().take(SHOWN_CHARACTERS).collect();
    let cut = if shown.len() < text.len() { " ..." } else { "" };
    report.line("chat", &format!("{tokens} tokens, ends of turns known: {ends}: {shown:?}{cut}"))?;
    let lost: Vec<&str> = MESSAGES.into_iter().map(|(_, words)| words).filter(|words| !text.contains(words)).collect();
    let is_ok = lost.is_empty() && foreign.is_empty();
    report.set("chat", json!({ "ok": is_ok, "tokens": tokens, "ends_of_turns": ends, "text": text }));
    if !lost.is_empty() {
        report.broken(
            format!("the chat template loses what was said: {lost:?} is not in what it makes"),
            "it is another kind of template: use a file whose template is made for conversations",
        );
    }
    if !foreign.is_empty() {
        report.broken(
            format!(
                "the chat template marks turns with {}: no tokens of this model, answers would leak them",
                foreign.join(" ")
            ),
            "the template is another model's: use a file with its own",
        );
    }
    if ends == 0 {
        report.warn(
            "the file names no token that ends a turn: answers may go on until --tokens",
            "use a file with `tokenizer.ggml.eos_token_id`",
        );
    }
    Ok(())
}

/// What looks like the name of a special token, `<|...|>`, each once.
fn marks(text: &str) -> Vec<&str> {
    let mut marks = Vec::new();
    for (at, _) in text.match_indices("<|") {
        let Some(end) = text[at..].find("|>") else { break };
        let mark = &text[at..at + end + 2];
        if !mark.contains(char::is_whitespace) && !marks.contains(&mark) {
            marks.push(mark);
        }
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::marks;

    #[test]
    fn marks_of_turns_are_found_once_each() {
        let text = "<|im_start|>user\nHi <| there |><|im_end|>\n<|im_start|>assistant\n<|";
        assert_eq!(marks(text), ["<|im_start|>", "<|im_end|>"]);
        assert!(marks("### Instruction:").is_empty());
    }
}
