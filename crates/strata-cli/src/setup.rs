//! From flags to an open model.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use strata_engine::{Engine, EngineOptions, GdnForm, Isa, ModelOptions, SamplerParams};

use crate::error::CliError;
use crate::flags::{EngineFlags, GdnFlag, IsaFlag, SamplingFlags, thread_count};
use crate::note;

/// The model that comes with Strata, seen from the root of the repository.
const SHIPPED_MODEL: &str = "models/strata-mini/strata-mini-iq2xs-q4_0.gguf";
/// Text that the model was not trained on.
const SHIPPED_TEXT: &str = "models/strata-mini/eval.txt";

/// The file a user named, or the model that comes with Strata: below the current directory, or beside the program (its
/// own directory or any above it, such as the repository it was built in).
pub(crate) fn model_path(named: Option<&Path>) -> Result<PathBuf, CliError> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    shipped(SHIPPED_MODEL).ok_or_else(|| {
        CliError::Failed(format!(
            "no model: name one with -m FILE, or run inside the Strata repository, where {SHIPPED_MODEL} is used"
        ))
    })
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
        model: ModelOptions {
            context_tokens: flags.context,
            pass_tokens: flags.pass,
            strip_rows: flags.strip,
            gdn_form: gdn_form(flags.gdn),
            block_tokens: flags.qsa_block,
            ..ModelOptions::default()
        },
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
        "context" => options.model.context_tokens = Some(positive()?),
        "pass" => options.model.pass_tokens = positive()?,
        "strip" => options.model.strip_rows = positive()?,
        "gdn" => options.model.gdn_form = gdn_form(GdnFlag::from_str(value, false).ok()?),
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

/// Opens a model and tells the user what is odd about its file.
pub(crate) fn open(path: &Path, options: &EngineOptions) -> Result<Engine, CliError> {
    let engine = Engine::open(path, options)?;
    for warning in &engine.model().config().warnings {
        note::line(format_args!("strata: warning: {warning}"));
    }
    Ok(engine)
}

/// The model's file and what computes, for people.
pub(crate) fn describe(engine: &Engine) -> String {
    let name = engine.path().file_name().unwrap_or_default().display();
    format!("{name} on {}", engine.model().describe_backend())
}

/// What the user gave, over what the model's makers recommend.
pub(crate) fn sampling(flags: &SamplingFlags, recommended: SamplerParams) -> SamplerParams {
    SamplerParams {
        temperature: flags.temp.unwrap_or(recommended.temperature),
        top_k: flags.top_k.unwrap_or(recommended.top_k),
        top_p: flags.top_p.unwrap_or(recommended.top_p),
        min_p: flags.min_p.unwrap_or(recommended.min_p),
        seed: flags.seed,
    }
}
