//! `strata pull`: gets a model from a hub.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use strata_engine::Stop;

use crate::error::CliError;
use crate::flags::PullFlags;
use crate::hub::{self, Fetch, Hub, ModelName, Part, Patience, Place, Problem, RemoteFile, Seen};
use crate::{interrupt, note};

const HUB: &str = "https://huggingface.co";
/// Bytes that one request asks for: what is lost of each connection when the program is killed.
const PIECE_BYTES: u64 = 4 << 20;
/// A minute in all, which a busy server or a network that changes takes.
const PATIENCE: Patience = Patience { failures: 6, first_wait: Duration::from_secs(1), failed: 0 };
/// How soon Ctrl-C is heeded, and the bar moves.
const TICK: Duration = Duration::from_millis(100);
/// How often a log is told.
const TELL_EVERY: Duration = Duration::from_secs(30);
/// Space that is left free: a full drive is trouble for everybody.
const SPARED_BYTES: u64 = 256 << 20;

pub(crate) fn pull(flags: &PullFlags) -> Result<(), CliError> {
    let Some(name) = ModelName::parse(&flags.model) else {
        let text =
            format!("{}: expected OWNER/REPO or OWNER/REPO:FILE, as in unsloth/Qwen3.8-GGUF:IQ2_XS", flags.model);
        return Err(CliError::Usage(text));
    };
    let named = || std::env::var("HF_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty());
    let endpoint = flags.endpoint.clone().or_else(named).unwrap_or_else(|| HUB.to_owned());
    let hub = Hub::new(&endpoint, flags.token.clone().or_else(hub::token)).map_err(CliError::Usage)?;
    interrupt::install()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| CliError::Failed(format!("no connections can be made: {error}")))?;
    let result = interrupt::stoppable(|stop| runtime.block_on(Pull { flags, name, hub, stop }.run()));
    // A name that is looked up cannot be stopped, and need not be waited for.
    runtime.shutdown_background();
    result
}

/// What is asked for, of whom.
struct Pull<'a> {
    flags: &'a PullFlags,
    name: ModelName,
    hub: Hub,
    stop: &'a Stop,
}

impl Pull<'_> {
    async fn run(&self) -> Result<(), CliError> {
        let repo = &self.name.repo;
        let listing = self.until_stopped(self.hub.list(repo, PATIENCE), || {}).await?;
        let listing = listing.map_err(|problem| CliError::Failed(self.told(repo, &problem)))?;
        let files = self.choose(&listing.files)?;
        let place = match &self.flags.folder {
            Some(folder) => Place::Folder(folder.clone()),
            None => {
                let cache = hub::cache().ok_or_else(|| {
                    CliError::Failed(
                        "there is no home folder for the cache: name a folder with --folder DIR".to_owned(),
                    )
                })?;
                Place::cache(&cache, repo, &listing.commit)
            }
        };
        check_space(&place, &files)?;
        for (index, file) in files.iter().enumerate() {
            let of = if files.len() > 1 { format!(" ({} of {})", index + 1, files.len()) } else { String::new() };
            if place.holds(file) {
                note::line(format_args!("strata: {}{of} is here", file.name));
            } else {
                self.get(&place, file, &listing.commit, &of).await?;
            }
        }
        place.publish(&files).map_err(|problem| CliError::Failed(self.told(repo, &problem)))?;
        writeln!(std::io::stdout(), "{}", place.path(files[0]).display())?;
        Ok(())
    }

    /// The files of the model that was asked for.
    fn choose<'f>(&self, all: &'f [RemoteFile]) -> Result<Vec<&'f RemoteFile>, CliError> {
        let repo = &self.name.repo;
        let choices = hub::choices(all.iter().map(|file| file.name.as_str()));
        let of = |names: &[String]| -> Vec<&RemoteFile> {
            names.iter().filter_map(|name| all.iter().find(|file| file.name == *name)).collect()
        };
        let choice = hub::select(&choices, self.name.file.as_deref()).map_err(|candidates| {
            if candidates.is_empty() {
                return CliError::Failed(format!("{repo} has no GGUF files: look for a repository that has"));
            }
            let line = |choice: &&hub::Choice| {
                let files = of(&choice.files);
                let many = if files.len() > 1 { format!(", {} files", files.len()) } else { String::new() };
                format!("\n  {repo}:{}  {:.2} GB{many}", choice.name(), gb(bytes_of(&files)))
            };
            let list: String = candidates.iter().map(line).collect();
            let asked = self.name.file.as_deref().map_or(String::new(), |file| format!(" named {file}"));
            CliError::Usage(format!("{repo} has {} models, not one{asked}: name one of them{list}", choices.len()))
        })?;
        if !choice.is_complete() {
            let (got, all) = (choice.files.len(), choice.count);
            return Err(CliError::Failed(format!("{repo} has only {got} of the {all} files of {}", choice.name())));
        }
        Ok(of(&choice.files))
    }

    /// Gets one file.
    async fn get(&self, place: &Place, file: &RemoteFile, commit: &str, of: &str) -> Result<(), CliError> {
        let path = place.part_path(file);
        let seen = Arc::<Seen>::default();
        let what = Fetch {
            hub: self.hub.clone(),
            url: self.hub.file_url(&self.name.repo, commit, &file.name),
            len_bytes: file.len_bytes,
            connections: usize::from(self.flags.connections),
            piece_bytes: PIECE_BYTES,
            patience: PATIENCE,
            seen: Arc::clone(&seen),
        };
        let work = async {
            let mut part = Part::open(&path, file.len_bytes).await?;
            hub::fetch(what, &mut part).await?;
            part.check(file.sha256.as_deref())?;
            place.keep(file, &part)
        };
        let mut shown = Shown::new(format!("{}{of}", file.name), file.len_bytes);
        let result = self.until_stopped(work, || shown.show(&seen)).await;
        shown.bar.finish_and_clear();
        let kept = || match place.part_bytes(file) {
            0 => String::new(),
            kept => format!(
                "{:.2} of {:.2} GB of {} are kept: the same command goes on from there",
                gb(kept),
                gb(file.len_bytes),
                file.name
            ),
        };
        match result {
            Ok(Ok(())) => {
                let checked = if file.sha256.is_some() { "SHA-256 is right" } else { "the hub tells no SHA-256 of it" };
                note::line(format_args!("strata: {}{of}: {:.2} GB, {checked}", file.name, gb(file.len_bytes)));
                Ok(())
            }
            Ok(Err(problem)) => {
                let (text, kept) = (self.told(&file.name, &problem), kept());
                Err(CliError::Failed(if kept.is_empty() { text } else { format!("{text}\nstrata: {kept}") }))
            }
            Err(stopped) => {
                note::line(format_args!("strata: stopped. {}", kept()));
                Err(stopped)
            }
        }
    }

    /// Waits for something, unless Ctrl-C comes first.
    async fn until_stopped<T>(&self, work: impl Future<Output = T>, mut tick: impl FnMut()) -> Result<T, CliError> {
        let mut work = pin!(work);
        loop {
            if let Ok(result) = tokio::time::timeout(TICK, &mut work).await {
                return Ok(result);
            }
            tick();
            if self.stop.load(Ordering::Relaxed) {
                return Err(CliError::Interrupted);
            }
        }
    }

    /// What went wrong with a file or a repository, and what to do.
    fn told(&self, what: &str, problem: &Problem) -> String {
        let advice = problem.advice(self.hub.endpoint(), &self.name.repo, self.hub.has_token());
        format!("{what}: {problem}: {advice}")
    }
}

/// The progress of a file: a bar for whoever looks at a terminal, a line now and then for a log.
struct Shown {
    what: String,
    len_bytes: u64,
    bar: ProgressBar,
    told: Instant,
}

impl Shown {
    fn new(what: String, len_bytes: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(len_bytes), ProgressDrawTarget::stderr());
        let template = "strata: {msg} {bar:24} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        bar.set_style(ProgressStyle::with_template(template).expect("a sound template"));
        bar.set_message(what.clone());
        Self { what, len_bytes, bar, told: Instant::now() }
    }

    fn show(&mut self, seen: &Seen) {
        let here_bytes = seen.here_bytes.load(Ordering::Relaxed);
        self.bar.set_position(here_bytes);
        if let Some(trouble) = seen.trouble.lock().expect("no panic").take() {
            self.bar.suspend(|| note::line(format_args!("strata: {}: {trouble}: trying again", self.what)));
        }
        if self.bar.is_hidden() && self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            note::line(format_args!("strata: {}: {:.2} of {:.2} GB", self.what, gb(here_bytes), gb(self.len_bytes)));
        }
    }
}

/// Checks that there is room for what is still to come.
fn check_space(place: &Place, files: &[&RemoteFile]) -> Result<(), CliError> {
    let missing = |file: &&&RemoteFile| !place.holds(file);
    let to_come: u64 =
        files.iter().filter(missing).map(|file| file.len_bytes.saturating_sub(place.part_bytes(file))).sum();
    let path = place.part_path(files[0]);
    let folder = path.parent().expect("a file in a folder");
    fs::create_dir_all(folder).map_err(|error| CliError::Failed(format!("{}: {error}", folder.display())))?;
    let free = free_bytes(folder)?;
    if to_come > 0 && to_come.saturating_add(SPARED_BYTES) > free {
        return Err(CliError::Failed(format!(
            "{} has {:.2} GB free, but {:.2} GB are still to come (of {:.2} GB), and {:.2} GB are left free: make room, or \
             use --folder DIR on another drive",
            folder.display(),
            gb(free),
            gb(to_come),
            gb(bytes_of(files)),
            gb(SPARED_BYTES),
        )));
    }
    Ok(())
}

fn free_bytes(folder: &Path) -> Result<u64, CliError> {
    fs4::available_space(folder).map_err(|error| CliError::Failed(format!("{}: {error}", folder.display())))
}

fn bytes_of(files: &[&RemoteFile]) -> u64 {
    files.iter().map(|file| file.len_bytes).fold(0, u64::saturating_add)
}

fn gb(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}
