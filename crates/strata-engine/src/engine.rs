//! A model file opened for use: weights, tokenizer and chat template.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use serde_json::json;
use strata_backend::{Backend, BackendError, CpuBackend, Isa, Profile, ProfiledBackend, SharedProfile, UnavailableIsa};
use strata_gguf::{Gguf, GgufError, Metadata, MetadataError, Optional};
use strata_kernels::Cpu;
use strata_model::ModelError;
use strata_model::qwen4exp::{Config, DECODE_ROWS, Lock, Model, Options as ModelOptions};
use strata_store::StoreError;
use strata_store::plan::{Limit, Plan, PlanError};
use thiserror::Error;

use crate::generate::OnProgress;
use crate::kept::ModelFile;
use crate::plan::plan_of;
use crate::routes::KlSampler;
use crate::running::{Entry, Turn};
use crate::{
    ChatOptions, ChatPrompt, ChatTemplate, DraftOptions, FormError, MoceOptions, Route, SamplerParams, SamplingError,
    TemplateError, Tokenizer, TokenizerError, Vocabulary, routes, usage,
};

/// What can go wrong between a model file and text.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The file is no GGUF file, or is damaged.
    #[error(transparent)]
    File(#[from] GgufError),
    /// The file is not a model that can be run, or running it failed.
    #[error("{}: {source}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ModelError,
    },
    /// Running the model failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// This machine cannot run the kernels asked for.
    #[error(transparent)]
    Isa(#[from] UnavailableIsa),
    /// The file's tokenizer or chat template cannot be used: in its own words.
    #[error("{0}")]
    Unusable(String),
    /// A text could not be encoded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A chat could not be rendered.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// No token could be chosen.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// An answer cannot be held to a form.
    #[error(transparent)]
    Form(#[from] FormError),
    /// Nothing to go on from.
    #[error("the prompt is empty: there is nothing to continue")]
    EmptyPrompt,
    /// The model and the machine's memory do not fit together.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A file of an exactness tool could not be read or written.
    #[error("{}: {problem}", path.display())]
    Record {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The model gave a logit that is no number.
    #[error(
        "the logits of position {position} are not all finite numbers: the model's arithmetic or its file is broken"
    )]
    NotFinite {
        /// Position in the text.
        position: usize,
    },
    /// More logical slots than the arena can follow.
    #[error(
        "{slots} logical slots a layer were asked for, but the arena keeps {most_slots} experts of a layer: ask for no \
         more, or give it more memory"
    )]
    MoceSlots {
        /// Asked for.
        slots: usize,
        /// What the arena keeps.
        most_slots: usize,
    },
    /// A text too short for what was asked.
    #[error("the text has {got_tokens} tokens, but {needed_tokens} are needed")]
    TextTooShort {
        /// Tokens there are.
        got_tokens: usize,
        /// Tokens there must be.
        needed_tokens: usize,
    },
}

impl EngineError {
    /// What went wrong with a file: its name once.
    fn load(path: &Path, source: ModelError) -> Self {
        match source {
            ModelError::File(error) => Self::File(error),
            ModelError::Store(StoreError::Open { .. } | StoreError::Read { .. } | StoreError::EndOfFile { .. }) => {
                Self::Model(source)
            }
            source => Self::Load { path: path.to_owned(), source },
        }
    }

    /// Whether the caller's own request to stop is all that happened.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Model(ModelError::Cancelled))
    }

    /// Whether there was no room for so many tokens.
    pub fn is_context_full(&self) -> bool {
        matches!(
            self,
            Self::Model(ModelError::Backend(BackendError::ContextFull { .. }))
                | Self::Tokenizer(TokenizerError::TooLong { .. })
        )
    }
}

/// How a model is to be opened.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Kernels; `None`: the best this machine can run.
    pub isa: Option<Isa>,
    /// Threads; 0: as many as the machine has.
    pub threads: usize,
    /// Whether to compute in float32 where the machine has something faster.
    pub is_precise: bool,
    /// Whether to measure where the time goes ([`Engine::profile`]).
    pub is_profiled: bool,
    /// The most memory of the whole process; `None`: what the machine can spare.
    pub memory_bytes: Option<u64>,
    /// The most memory of the experts' arena; `None`: what is left.
    pub arena_bytes: Option<u64>,
    /// Tokens of a prompt that go through the layers together; `None`: as memory allows.
    pub pass_tokens: Option<usize>,
    /// Texts that are at work at a time on one model, each with a context of its own; 0: one after the other, by an
    /// [`Engine`] itself. The plan counts what they need: states and caches, a workspace for their
    /// [steps](Self::step_rows), and [others](Self::side_workspaces) for their prompts.
    pub sequences: usize,
    /// Checkpoints that are kept at a time ([`crate::prefix`]), besides those of drafts.
    pub checkpoints: usize,
    /// Whether what lies in the user's folders counts: the arena that was found best ([`crate::Calibration`]), and the
    /// memory that plans of other running processes promise them ([`crate::running`]), which are told of this one, too.
    pub heeds_user_files: bool,
    /// How tokens are drafted.
    pub drafts: DraftOptions,
    /// How the experts of written tokens are chosen.
    pub route: Route,
    /// How much [`Route::Cached`] prefers experts that are likely in memory.
    pub moce: MoceOptions,
    /// How the model is run. Tokens of context and of a pass, the slots of the arena and cache-aware routing are set by
    /// the plan and the options above.
    pub model: ModelOptions,
}

impl EngineOptions {
    /// Rows of a step in which all [`sequences`](Self::sequences) write: each a token and the drafts after it.
    pub fn step_rows(&self) -> usize {
        DECODE_ROWS.saturating_mul(self.sequences)
    }

    /// Workspaces of one strip each, for the prompts that are read beside the one that has the largest passes.
    pub fn side_workspaces(&self) -> usize {
        self.sequences.saturating_sub(1)
    }

    /// The processor as these options use it.
    ///
    /// # Errors
    /// When this machine cannot run the kernels asked for.
    pub fn cpu(&self) -> Result<Cpu, UnavailableIsa> {
        let isa = self.isa.unwrap_or_else(Isa::best);
        if self.is_precise { Cpu::precise(isa, self.threads) } else { Cpu::fast(isa, self.threads) }
    }
}

/// A model ready for use.
pub struct Engine {
    pub(crate) model: Model,
    pub(crate) kl_sampler: KlSampler,
    path: PathBuf,
    plan: Plan,
    entry: Option<Entry>,
    pub(crate) gguf: Arc<ModelFile>,
    pub(crate) options: EngineOptions,
    profile: Option<SharedProfile>,
    pub(crate) on_progress: Option<OnProgress>,
    // Made when they are first asked for, since a run on ids needs neither. Failures are kept as words: they are told to
    // everyone who asks.
    tokenizer: OnceLock<Result<Arc<Tokenizer>, String>>,
    template: OnceLock<Result<Arc<ChatTemplate>, String>>,
    form_vocabulary: OnceLock<Result<Arc<Vocabulary>, FormError>>,
}

impl Engine {
    /// Opens the model of a file, or of the set of files that it belongs to, within the memory that its
    /// [plan](Self::plan) says. Experts come into memory when they are first used, or by
    /// [`load_experts`](Self::load_experts).
    ///
    /// # Errors
    /// When the file cannot be read or is no model that can be run, or memory does not suffice. A tokenizer, a template or recommendations that cannot
    /// be used are an error only when they are needed.
    pub fn open(path: &Path, options: &EngineOptions) -> Result<Self, EngineError> {
        Self::open_telling(path, options, |_| {})
    }

    /// [`open`](Self::open), which tells `on_plan` how memory will be divided before anything is loaded.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_telling(
        path: &Path,
        options: &EngineOptions,
        on_plan: impl FnOnce(&Plan),
    ) -> Result<Self, EngineError> {
        Self::open_loading(path, options, on_plan, Model::load)
    }

    /// [`open_telling`](Self::open_telling) with another way to load the model.
    pub(crate) fn open_loading(
        path: &Path,
        options: &EngineOptions,
        on_plan: impl FnOnce(&Plan),
        load_model: impl FnOnce(&Gguf, Box<dyn Backend>, ModelOptions) -> Result<Model, ModelError>,
    ) -> Result<Self, EngineError> {
        let gguf = Arc::new(ModelFile::open(path)?);
        let mut options = options.clone();
        options.model.draft_head = options.drafts.open_head(&gguf, options.model.gdn_form)?;
        let turn = options.heeds_user_files.then(Turn::take);
        let plan = plan_of(&gguf, path, &options, None)?;
        let entry = if turn.is_some() { Entry::make(path, plan.total_bytes()) } else { None };
        drop(turn);
        on_plan(&plan);
        let load = |source| EngineError::load(path, source);
        let config = Config::read(&gguf, options.model.block_tokens).map_err(load)?;
        let moce = routes::moce(&plan, &config, &options)?;
        let isa = options.isa.unwrap_or_else(Isa::best);
        let cpu_backend = match options.is_precise {
            true => CpuBackend::precise(isa, options.threads)?,
            false => CpuBackend::fast(isa, options.threads)?,
        };
        let mut backend: Box<dyn Backend> = Box::new(cpu_backend);
        let mut profile = None;
        if options.is_profiled || options.model.timeline.is_on() {
            let (profiled, shared) = ProfiledBackend::new(backend, options.model.timeline.clone());
            (backend, profile) = (Box::new(profiled), options.is_profiled.then_some(shared));
        }
        options.model.context_tokens = Some(plan.context_tokens as usize);
        options.model.pass_tokens = plan.pass_tokens as usize;
        options.model.streaming.slots = Some(plan.slots as usize);
        options.model.moce = moce;
        if options.model.streaming.lock == Lock::Try && !plan.can_lock {
            options.model.streaming.lock = Lock::Off;
        }
        if plan.slots < plan.experts && options.model.streaming.usage.is_empty() {
            options.model.streaming.usage = usage::load(&gguf, plan.experts, config.moe.experts as u64);
        }
        let model = load_model(&gguf, backend, options.model.clone()).map_err(load)?;
        let path = path.to_owned();
        let kl_sampler = KlSampler::new(&options);
        Ok(Self {
            model,
            kl_sampler,
            path,
            plan,
            entry,
            gguf,
            options,
            profile,
            on_progress: None,
            tokenizer: OnceLock::new(),
            template: OnceLock::new(),
            form_vocabulary: OnceLock::new(),
        })
    }

    /// Where the time went since it was last asked; `None` unless it is measured ([`EngineOptions::is_profiled`]).
    pub fn take_profile(&mut self) -> Option<Profile> {
        let profile = self.profile.as_ref()?;
        Some(std::mem::take(&mut *profile.lock().unwrap_or_else(std::sync::PoisonError::into_inner)))
    }

    /// Makes `profile` what was measured so far: what came after [`take_profile`](Self::take_profile) is forgotten.
    pub(crate) fn put_profile(&mut self, profile: Option<Profile>) {
        if let (Some(shared), Some(profile)) = (&self.profile, profile) {
            *shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = profile;
        }
    }

    /// How memory is divided.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Reads the experts that stay in memory. `progress` is told bytes read and bytes in all; it may end the reading by
    /// `false`, and what is missing then comes when it is used, or when the drive has nothing else to do.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn load_experts(&mut self, mut progress: impl FnMut(u64, u64) -> bool) -> Result<(), EngineError> {
        Ok(self.model.load_experts(&mut progress)?)
    }

    /// Makes the arena of experts smaller, between answers, and gives its memory back to the system: when other programs
    /// need some. More than it has changes nothing. Texts stay the same; the [plan](Self::plan) says what is left.
    ///
    /// # Errors
    /// When so little is not enough, or reads under way do not end.
    pub fn shrink(&mut self, arena_bytes: u64) -> Result<(), EngineError> {
        let slots = arena_bytes / self.plan.slot_bytes;
        if slots < self.plan.slots {
            self.model.shrink(slots as usize)?;
            self.plan.slots = slots;
            self.plan.arena_bytes = slots * self.plan.slot_bytes;
            self.plan.limit = Limit::Arena;
            self.entry.iter().for_each(|entry| entry.announce(self.plan.total_bytes()));
        }
        Ok(())
    }

    /// Counts reads of experts under way, for whoever may look while the model runs.
    pub(crate) fn reads_gauge(&mut self) -> Arc<AtomicUsize> {
        self.model.streaming().map(|store| store.reads_gauge()).unwrap_or_default()
    }

    /// Saves which experts were used, for the next time that this model is opened with fewer slots than experts. Without
    /// a place to save it to, or where all experts have slots, nothing is saved.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save_usage(&mut self) -> Result<(), EngineError> {
        match self.model.streaming() {
            Some(store) if !store.holds_all() => usage::save(&self.gguf, store.usage().counts()),
            _ => Ok(()),
        }
    }

    /// The file it was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model itself.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The file's tokenizer.
    ///
    /// # Errors
    /// When the file has none, or one that cannot be used.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>, EngineError> {
        let make = || match Tokenizer::from_metadata(self.gguf.metadata()) {
            Ok(tokenizer) => Ok(Arc::new(tokenizer)),
            Err(error) => Err(self.unusable(&error)),
        };
        self.tokenizer.get_or_init(make).as_ref().map_err(|problem| EngineError::Unusable(problem.clone()))
    }

    /// The file's vocabulary made ready for answers of a form.
    ///
    /// # Errors
    /// When the file has no usable tokenizer, or one that grammars cannot use.
    pub fn form_vocabulary(&self) -> Result<Arc<Vocabulary>, EngineError> {
        let tokenizer = self.tokenizer()?;
        Ok(self.form_vocabulary.get_or_init(|| Vocabulary::new(tokenizer)).clone()?)
    }

    /// The file's chat template.
    ///
    /// # Errors
    /// When the file has none, or one that cannot be used.
    pub fn template(&self) -> Result<&Arc<ChatTemplate>, EngineError> {
        let make = || match ChatTemplate::from_metadata(self.gguf.metadata()) {
            Ok(template) => Ok(Arc::new(template)),
            Err(error) => Err(self.unusable(&error)),
        };
        self.template.get_or_init(make).as_ref().map_err(|problem| EngineError::Unusable(problem.clone()))
    }

    fn unusable(&self, error: &impl Display) -> String {
        format!("{}: {error}", self.path.display())
    }

    /// How the model's makers say to sample (`general.sampling.*`), with this program's defaults for what they leave
    /// open: temperature 0.8, the 40 best, top-p 0.95, min-p 0.05, seed 0.
    ///
    /// # Errors
    /// When the file has something else than numbers there.
    pub fn sampling(&self) -> Result<SamplerParams, EngineError> {
        let unusable = |error| EngineError::Unusable(self.unusable(&error));
        recommended_sampling(self.gguf.metadata()).map_err(unusable)
    }

    /// Ids of a conversation, ready for the assistant's answer. Messages are `(role, content)`.
    ///
    /// # Errors
    /// When the file has no usable template or tokenizer.
    pub fn encode_chat(&self, messages: &[(String, String)]) -> Result<Vec<u32>, EngineError> {
        encode_chat(self.template()?, self.tokenizer()?, messages, self.model.context_tokens())
    }
}

/// Ids of a conversation, ready for the assistant's answer. Messages are `(role, content)`.
pub(crate) fn encode_chat(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[(String, String)],
    most_tokens: usize,
) -> Result<Vec<u32>, EngineError> {
    let messages: Vec<_> = messages.iter().map(|(role, content)| json!({ "role": role, "content": content })).collect();
    Ok(ChatPrompt::new(template, tokenizer, messages, ChatOptions::default(), most_tokens)?.ids)
}

fn recommended_sampling(metadata: &Metadata) -> Result<SamplerParams, MetadataError> {
    // Writers differ in whether whole numbers are stored as integers.
    let number = |key: &str| {
        let key = format!("general.sampling.{key}");
        metadata.i64(&key).map(|whole| whole as f32).or_else(|_| metadata.f32(&key)).optional()
    };
    // Zero and less mean all tokens.
    let top_k = metadata.i64("general.sampling.top_k").optional()?.map(|k| k.clamp(0, i64::from(u32::MAX)) as u32);
    Ok(SamplerParams {
        temperature: number("temp")?.unwrap_or(0.8),
        top_k: top_k.unwrap_or(40),
        top_p: number("top_p")?.unwrap_or(0.95),
        min_p: number("min_p")?.unwrap_or(0.05),
        ..SamplerParams::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_once() {
        let path = Path::new("m.gguf");
        let os = || std::io::Error::from_raw_os_error(24);
        for source in [
            ModelError::Store(StoreError::Open { file: path.to_owned(), source: os() }),
            ModelError::Store(StoreError::Port { port: "io_uring".to_owned(), source: os() }),
            ModelError::Architecture("llama".to_owned()),
        ] {
            let text = EngineError::load(path, source).to_string();
            assert_eq!(text.matches("m.gguf").count(), 1, "{text}");
        }
    }
}
