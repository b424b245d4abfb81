//! `strata models`: the models that are here, and how each would run on this machine.
//!
//! Promises: a file that is damaged, or that this program cannot run, is a line that says so, never a failure.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use strata_engine::{EngineError, EngineOptions, MetadataValue, ModelOptions, Rates, Work, inspect};

use crate::error::CliError;
use crate::flags::ModelsFlags;
use crate::plan::gib;
use crate::{hub, note};

pub(crate) fn models(flags: &ModelsFlags) -> Result<(), CliError> {
    let options = EngineOptions {
        heeds_user_files: true,
        model: ModelOptions { context_tokens: flags.context, ..ModelOptions::default() },
        ..EngineOptions::default()
    };
    let found: Vec<Model> = places(flags.folder.as_deref())?
        .into_iter()
        .map(|(name, path)| {
            let (files, architecture, state) = look(&path, &options);
            Model { name, path, files, architecture, state }
        })
        .collect();
    let mut out = std::io::stdout().lock();
    if flags.json {
        let models: Vec<Value> = found.iter().map(Model::to_json).collect();
        writeln!(out, "{}", json!({ "models": models }))?;
    } else if found.is_empty() {
        note::line("strata: no models here: `strata pull OWNER/REPO` gets one, --folder DIR looks into a folder");
    } else {
        let width = found.iter().map(|model| note::visible(&model.name).chars().count()).max().unwrap_or(0);
        writeln!(out, "{:<width$}  {:>9}  {:<12}  on this machine", "model", "GB", "architecture")?;
        for model in &found {
            let size = model.bytes() as f64 / 1e9;
            let architecture = model.architecture.as_deref().unwrap_or("-");
            let (name, architecture) = (note::visible(&model.name), note::visible(architecture));
            writeln!(out, "{name:<width$}  {size:>9.3}  {architecture:<12}  {}", note::visible(&model.state.text()))?;
        }
    }
    Ok(())
}

/// Models by the names that other commands take, each once.
fn places(folder: Option<&Path>) -> Result<Vec<(String, PathBuf)>, CliError> {
    let mut found = Vec::new();
    for repo in hub::cache().iter().flat_map(hub::cached_repos) {
        for snapshot in &repo.snapshots {
            let models = hub::models_in(snapshot, hub::DEPTH);
            let named = |model: &hub::Choice| (format!("{}:{}", repo.name, model.name()), snapshot.join(model.name()));
            found.extend(models.iter().map(named));
        }
    }
    if let Some(folder) = folder {
        fs::read_dir(folder).map_err(|error| CliError::Failed(format!("{}: {error}", folder.display())))?;
        let paths = hub::models_in(folder, hub::DEPTH).into_iter().map(|model| folder.join(model.name()));
        found.extend(paths.map(|path| (path.display().to_string(), path)));
    }
    // Folders below the current one may be anybody's.
    let here = hub::models_in(Path::new("."), 0);
    found.extend(here.iter().map(|model| (model.name().to_owned(), PathBuf::from(model.name()))));
    // A file may be found in several ways, and what was pulled earlier may have been replaced at the hub.
    let (mut paths, mut names) = (HashSet::new(), HashSet::new());
    found.retain(|(name, path)| {
        paths.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) && names.insert(name.clone())
    });
    Ok(found)
}

struct Model {
    name: String,
    path: PathBuf,
    /// Files and their bytes.
    files: Vec<(PathBuf, u64)>,
    architecture: Option<String>,
    state: State,
}

/// How a model would run.
enum State {
    Runs(Fit),
    /// Memory does not suffice.
    TooLarge(String),
    /// Not by this program.
    NotSupported(String),
    Damaged(String),
}

struct Fit {
    plan_bytes: u64,
    slots: u64,
    experts: u64,
    /// Tokens a second, one after another, where rates were measured.
    tokens_per_second: Option<f64>,
}

fn look(path: &Path, options: &EngineOptions) -> (Vec<(PathBuf, u64)>, Option<String>, State) {
    let inspection = match inspect(path) {
        Ok(inspection) => inspection,
        Err(error) => {
            let len_bytes = fs::metadata(path).map_or(0, |found| found.len());
            return (vec![(path.to_owned(), len_bytes)], None, State::Damaged(error.to_string()));
        }
    };
    let architecture = inspection.metadata.iter().find(|(key, _)| key == "general.architecture");
    let architecture = architecture.and_then(|(_, value)| match value {
        MetadataValue::Text(text) => Some(text.clone()),
        _ => None,
    });
    let state = match Work::of(path, options) {
        Ok(work) => {
            let rates = Rates::of(path).ok().flatten();
            let token_s = rates.and_then(|rates| work.token_s(&rates)).filter(|seconds| *seconds > 0.0);
            let plan = work.plan();
            State::Runs(Fit {
                plan_bytes: plan.total_bytes(),
                slots: plan.slots,
                experts: plan.experts,
                tokens_per_second: token_s.map(f64::recip),
            })
        }
        Err(error @ EngineError::Plan(_)) => State::TooLarge(error.to_string()),
        Err(error) => State::NotSupported(error.to_string()),
    };
    (inspection.files, architecture, state)
}

impl State {
    fn text(&self) -> String {
        match self {
            Self::Runs(fit) => {
                let held = match fit.slots >= fit.experts {
                    true => "all experts".to_owned(),
                    false => format!("{:.1} % of the experts", 100.0 * fit.slots as f64 / fit.experts as f64),
                };
                let speed = match fit.tokens_per_second {
                    Some(rate) => format!("about {rate:.1} tok/s"),
                    None => "`strata doctor` measures its speed".to_owned(),
                };
                format!("{:.2} GiB with {held} in memory, {speed}", gib(fit.plan_bytes))
            }
            Self::TooLarge(problem) => format!("does not fit: {problem}"),
            Self::NotSupported(problem) => format!("cannot be run: {problem}"),
            Self::Damaged(problem) => format!("damaged: {problem}"),
        }
    }
}

impl Model {
    fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes).sum()
    }

    fn to_json(&self) -> Value {
        let (state, problem) = match &self.state {
            State::Runs(_) => ("runs", None),
            State::TooLarge(problem) => ("too large", Some(problem)),
            State::NotSupported(problem) => ("not supported", Some(problem)),
            State::Damaged(problem) => ("damaged", Some(problem)),
        };
        let fit = match &self.state {
            State::Runs(fit) => json!({
                "plan_bytes": fit.plan_bytes, "slots": fit.slots, "experts": fit.experts,
                "tokens_per_second": fit.tokens_per_second,
            }),
            _ => Value::Null,
        };
        json!({
            "name": self.name, "path": self.path.display().to_string(), "bytes": self.bytes(),
            "files": self.files.len(), "architecture": self.architecture, "state": state, "problem": problem, "fit": fit,
        })
    }
}
