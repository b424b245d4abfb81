//! From flags to an open model.

use std::path::{Path, PathBuf};

use strata_engine::{Engine, EngineOptions, GdnForm, Isa, ModelOptions, SamplerParams};

use crate::error::CliError;
use crate::flags::{EngineFlags, GdnFlag, IsaFlag, SamplingFlags};
use crate::note;

/// The model that comes with Strata, seen from the root of the repository.
const SHIPPED_MODEL: &str = "models/strata-mini/strata-mini-iq2xs-q4_0.gguf";

/// The file a user named, or the model that comes with Strata: below the current directory, or beside the program (its
/// own directory or any above it, such as the repository it was built in).
pub(crate) fn model_path(named: Option<&Path>) -> Result<PathBuf, CliError> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    let program = std::env::current_exe().and_then(|path| path.canonicalize()).unwrap_or_default();
    let beside = program.ancestors().skip(1).map(|dir| dir.join(SHIPPED_MODEL));
    let mut places = std::iter::once(PathBuf::from(SHIPPED_MODEL)).chain(beside);
    places.find(|path| path.is_file()).ok_or_else(|| {
        CliError::Failed(format!(
            "no model: name one with -m FILE, or run inside the Strata repository, where {SHIPPED_MODEL} is used"
        ))
    })
}

pub(crate) fn engine_options(flags: &EngineFlags) -> EngineOptions {
    EngineOptions {
        isa: match flags.isa {
            IsaFlag::Auto => None,
            IsaFlag::Amx => Some(Isa::Amx),
            IsaFlag::Avx512 => Some(Isa::Avx512),
            IsaFlag::Avx2 => Some(Isa::Avx2),
            IsaFlag::Portable => Some(Isa::Portable),
        },
        threads: flags.threads,
        is_precise: flags.precise,
        model: ModelOptions {
            context_tokens: flags.context,
            pass_tokens: flags.pass,
            strip_rows: flags.strip,
            gdn_form: match flags.gdn {
                GdnFlag::Recurrent => GdnForm::Recurrent,
                GdnFlag::Chunked => GdnForm::Chunked,
            },
            block_tokens: flags.qsa_block,
            keep_details: false,
        },
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
