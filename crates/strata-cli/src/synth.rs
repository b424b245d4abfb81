//! `strata synth`: writes a model of random weights, and says how its routing behaves.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use strata_engine::{Routing, Synth, SynthError, SynthOptions, SynthShape, SynthStatistics};

use crate::error::CliError;
use crate::flags::{RoutingFlags, ShapeFlag, SynthFlags};
use crate::{interrupt, note};

/// Ids of the prompt that are shown.
const SHOWN_IDS: usize = 12;

pub(crate) fn synth(flags: &SynthFlags) -> Result<(), CliError> {
    let synth = Synth::plan(&options(flags))?;
    let dir = match flags.output.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    };
    check_free_space(dir, synth.needed_bytes()?)?;
    if let Some(path) = &flags.save_ids {
        save_ids(path, synth.prompt_ids())?;
    }
    interrupt::install()?;
    let (paths, statistics) = interrupt::stoppable(|stop| {
        let start = Instant::now();
        let bar = ProgressBar::new(synth.data_bytes()).with_style(style());
        let paths = synth.write(&flags.output, stop, &mut |bytes| bar.inc(bytes));
        bar.finish_and_clear();
        let paths = paths?;
        let (gb, seconds) = (synth.data_bytes() as f64 / 1e9, start.elapsed().as_secs_f64());
        note::line(format_args!("[written: {gb:.2} GB, {:.2} GB/s; measuring the routing on a cut]", gb / seconds));
        Ok::<_, SynthError>((paths, synth.measure(dir, stop)?))
    })?;
    let mut out = std::io::stdout().lock();
    if flags.json {
        writeln!(out, "{}", to_json(&synth, &paths, &statistics))?;
        return Ok(());
    }
    for path in &paths {
        writeln!(out, "{}", path.display())?;
    }
    write_statistics(&mut out, &statistics)?;
    let shown: Vec<_> = synth.prompt_ids().iter().take(SHOWN_IDS).map(u32::to_string).collect();
    let count = synth.prompt_ids().len();
    writeln!(out, "prompt: {count} ids in `strata.synth.prompt_ids`: {},...", shown.join(","))?;
    Ok(())
}

fn options(flags: &SynthFlags) -> SynthOptions {
    let default = Routing::default();
    let &RoutingFlags { skew, domain, topic, topic_tokens, drift, gate } = &flags.routing;
    SynthOptions {
        shape: match flags.shape {
            ShapeFlag::FlashNextIq2 => SynthShape::FlashNextIq2,
            ShapeFlag::Small => SynthShape::Small,
        },
        layers: flags.layers,
        experts: flags.experts,
        table_rows: if flags.no_table { Some(0) } else { flags.table_rows },
        split: flags.split,
        seed: flags.seed,
        routing: Routing {
            skew: skew.unwrap_or(default.skew),
            domain: domain.unwrap_or(default.domain),
            topic: topic.unwrap_or(default.topic),
            topic_tokens: topic_tokens.unwrap_or(default.topic_tokens),
            drift: drift.unwrap_or(default.drift),
            gate: gate.unwrap_or(default.gate),
        },
    }
}

fn check_free_space(dir: &Path, needed_bytes: u64) -> Result<(), CliError> {
    let free_bytes = fs4::available_space(dir)
        .map_err(|error| CliError::Failed(format!("{}: cannot ask for free space: {error}", dir.display())))?;
    if free_bytes >= needed_bytes {
        return Ok(());
    }
    let gb = |bytes: u64| bytes as f64 / 1e9;
    Err(CliError::Failed(format!(
        "{}: {:.1} GB are free, but the model and its measurement take {:.1} GB: make room, write to another drive, or \
         use --layers, --experts or --table-rows",
        dir.display(),
        gb(free_bytes),
        gb(needed_bytes)
    )))
}

fn save_ids(path: &Path, ids: &[u32]) -> Result<(), CliError> {
    let text: Vec<_> = ids.iter().map(u32::to_string).collect();
    std::fs::write(path, text.join(",") + "\n")
        .map_err(|error| CliError::Failed(format!("{}: cannot write the ids: {error}", path.display())))
}

/// The bar; where standard error is no terminal it is not drawn.
fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left")
        .expect("the template is valid")
}

fn write_statistics(out: &mut impl Write, s: &SynthStatistics) -> Result<(), CliError> {
    // A model of one layer has no next router.
    let percent = |share: f64| if share.is_nan() { "-".to_owned() } else { format!("{:.0} %", 100.0 * share) };
    writeln!(out, "routing of {} rows, mean of {} layers", s.rows, s.layers)?;
    for (name, value) in [
        ("distinct experts", format!("{:.0} of {}", s.distinct, s.experts)),
        ("of them among the most popular half", percent(s.popular_share)),
        ("of those not resident, forecast", percent(s.forecast_share)),
        ("of a token's experts, forecast", percent(s.recall)),
        ("decode: hits of a least-recently-used cache", percent(s.lru_share)),
    ] {
        writeln!(out, "  {name:<44} {value:>12}")?;
    }
    writeln!(out, "  ({} slots a layer)", s.slots)?;
    Ok(())
}

fn to_json(synth: &Synth, paths: &[PathBuf], s: &SynthStatistics) -> serde_json::Value {
    json!({
        "files": paths,
        "data_bytes": synth.data_bytes(),
        "prompt_ids": synth.prompt_ids(),
        "layers": s.layers, "rows": s.rows, "experts": s.experts, "slots": s.slots,
        "distinct": s.distinct, "popular_share": s.popular_share, "forecast_share": s.forecast_share,
        "recall": s.recall, "lru_share": s.lru_share,
    })
}

impl From<SynthError> for CliError {
    fn from(error: SynthError) -> Self {
        match error {
            SynthError::Cancelled => Self::Interrupted,
            SynthError::Cut { .. } | SynthError::TableRows { .. } | SynthError::Routing(_) => {
                Self::Usage(error.to_string())
            }
            error => Self::Failed(error.to_string()),
        }
    }
}
