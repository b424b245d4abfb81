//! The local cache of the hub's tools: where it is, what lies in it, and which file a model's name stands for.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use hf_hub::{Cache, Repo};

use super::{Choice, ModelName, choices, select};

/// Folders in folders that are looked through: repositories keep models in folders by type.
pub(crate) const DEPTH: usize = 3;

/// The hub's folder of this user; `None`: the user has no home.
fn home() -> Option<PathBuf> {
    let named = env::var_os("HF_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    named.or_else(|| Some(env::home_dir()?.join(".cache/huggingface")))
}

/// The cache, as all tools of the hub find it.
pub(crate) fn cache() -> Option<Cache> {
    let named = env::var_os("HF_HUB_CACHE").filter(|cache| !cache.is_empty()).map(PathBuf::from);
    Some(Cache::new(named.or_else(|| Some(home()?.join("hub")))?))
}

/// The token of this user: of the environment, or the file that the hub's login writes.
pub(crate) fn token() -> Option<String> {
    let file = || fs::read_to_string(home()?.join("token")).ok();
    let token = env::var("HF_TOKEN").ok().filter(|token| !token.trim().is_empty()).or_else(file)?;
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

/// A repository in the cache.
pub(crate) struct CachedRepo {
    /// `OWNER/REPO`.
    pub(crate) name: String,
    /// Folders with its files, the current one first.
    pub(crate) snapshots: Vec<PathBuf>,
}

impl CachedRepo {
    fn of(cache: &Cache, name: String) -> Self {
        let repo = Repo::model(name.clone());
        let folder = cache.path().join(repo.folder_name());
        let current = fs::read_to_string(folder.join("refs").join(repo.revision())).unwrap_or_default();
        let is_current = |path: &Path| path.file_name().is_some_and(|name| name == current.trim());
        let mut snapshots = entries(&folder.join("snapshots"));
        snapshots.retain(|path| path.is_dir());
        snapshots.sort_by_key(|path| !is_current(path));
        Self { name, snapshots }
    }
}

/// The repositories of models in a cache, by name.
pub(crate) fn cached_repos(cache: &Cache) -> Vec<CachedRepo> {
    let name = |path: PathBuf| Some(path.file_name()?.to_str()?.strip_prefix("models--")?.replace("--", "/"));
    let names = entries(cache.path()).into_iter().filter_map(name);
    names.map(|name| CachedRepo::of(cache, name)).collect()
}

/// The models in a folder, and in folders at most `depth` deep in it, by names below it.
pub(crate) fn models_in(folder: &Path, depth: usize) -> Vec<Choice> {
    fn collect(folder: &Path, below: &str, depth: usize, names: &mut Vec<String>) {
        for path in entries(folder) {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let name = format!("{below}{name}");
            if path.is_dir() && depth > 0 {
                collect(&path, &format!("{name}/"), depth - 1, names);
            } else if name.ends_with(".gguf") {
                names.push(name);
            }
        }
    }
    let mut names = Vec::new();
    collect(folder, "", depth, &mut names);
    choices(names.iter().map(String::as_str))
}

/// The file that a model's name stands for, if it was pulled; else what to do.
pub(crate) fn resolve(cache: &Cache, name: &ModelName) -> Result<PathBuf, String> {
    let mut candidates = Vec::new();
    for snapshot in CachedRepo::of(cache, name.repo.clone()).snapshots {
        let models = models_in(&snapshot, DEPTH);
        match select(&models, name.file.as_deref()) {
            Ok(model) => return Ok(snapshot.join(model.name())),
            Err(models) => candidates.extend(models.iter().map(|model| format!("{}:{}", name.repo, model.name()))),
        }
    }
    let asked = name.file.as_ref().map_or_else(|| name.repo.clone(), |file| format!("{}:{file}", name.repo));
    Err(match candidates.is_empty() {
        true => format!("{asked} is neither a file nor a model that was pulled: `strata pull {asked}` gets it"),
        false => format!(
            "{asked} does not name one of the models that were pulled: use {}; or get another by `strata pull {asked}`",
            candidates.join(" or ")
        ),
    })
}

/// What lies in a folder, by name; nothing, where there is none.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(found) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = found.flatten().map(|entry| entry.path()).collect();
    paths.sort_unstable();
    paths
}
