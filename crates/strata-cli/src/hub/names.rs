//! What a user calls a model of a hub, and which files of a repository that is.

use std::collections::BTreeMap;

use strata_engine::split_name;

/// `OWNER/REPO[:FILE]`, where FILE may be a tag that one model's name holds, such as `Q4_K_M`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelName {
    /// `OWNER/REPO`.
    pub(crate) repo: String,
    pub(crate) file: Option<String>,
}

impl ModelName {
    /// `None`: no model of a hub can be called so.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (repo, file) = match text.split_once(':') {
            Some((repo, file)) => (repo, Some(file.to_owned())),
            None => (text, None),
        };
        let (owner, name) = repo.split_once('/')?;
        // A path of a file that is not there is no repository.
        let is_path = file.is_none() && name.ends_with(".gguf");
        let is_name = is_part(owner) && is_part(name) && file.as_ref().is_none_or(|file| !file.is_empty());
        (is_name && !is_path).then(|| Self { repo: repo.to_owned(), file })
    }
}

/// The hub's rules: two hyphens are what its cache puts in the place of a slash.
fn is_part(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_odd = text.starts_with(['.', '-']) || text.contains("..") || text.contains("--");
    (1..=96).contains(&text.len()) && text.bytes().all(is_allowed) && !is_odd
}

/// Whether a name that a hub gave is a path below the repository on every system.
pub(crate) fn is_plain(name: &str) -> bool {
    let is_step = |step: &str| !step.is_empty() && step != "." && step != "..";
    let is_odd = |c: char| c.is_control() || "\\:*?\"<>|".contains(c);
    name.len() <= 512 && name.split('/').all(is_step) && !name.contains(is_odd)
}

/// The files of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Names below the repository, in order.
    pub(crate) files: Vec<String>,
    /// How many files the model has, by their names.
    pub(crate) count: usize,
}

impl Choice {
    /// What selects it.
    pub(crate) fn name(&self) -> &str {
        &self.files[0]
    }

    /// Whether no file is missing.
    pub(crate) fn is_complete(&self) -> bool {
        self.files.len() == self.count
    }
}

/// The models among file names: several files that are one model are one choice.
pub(crate) fn choices<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<Choice> {
    let mut found: BTreeMap<(&str, u32), Vec<String>> = BTreeMap::new();
    for name in names.into_iter().filter(|name| name.ends_with(".gguf")) {
        let base = base(name);
        // Parts of models for pictures, and statistics of a quantisation, are no models.
        if base.starts_with("mmproj") || base.starts_with("imatrix") {
            continue;
        }
        let key = match split_name(base) {
            Some((prefix, count)) => (&name[..name.len() - base.len() + prefix.len()], count),
            None => (name, 1),
        };
        found.entry(key).or_default().push(name.to_owned());
    }
    let choice = |((_, count), mut files): ((&str, u32), Vec<String>)| {
        files.sort_unstable();
        Choice { files, count: count as usize }
    };
    found.into_iter().map(choice).collect()
}

/// The one model that `file` names, or the only one. Otherwise those it could be.
pub(crate) fn select<'a>(choices: &'a [Choice], file: Option<&str>) -> Result<&'a Choice, Vec<&'a Choice>> {
    let all = || choices.iter().collect::<Vec<_>>();
    let found = match file {
        None => all(),
        Some(file) => {
            let is_named = |name: &String| name == file || base(name) == file;
            let named = all().into_iter().filter(|choice| choice.files.iter().any(is_named)).collect::<Vec<_>>();
            match named.is_empty() {
                false => named,
                true => all().into_iter().filter(|choice| has_tag(choice.name(), file)).collect(),
            }
        }
    };
    match found[..] {
        [one] => Ok(one),
        [] => Err(all()),
        _ => Err(found),
    }
}

/// Whether a tag stands in a name by itself: `Q4_K` is no part of `Q4_K_M`.
fn has_tag(name: &str, tag: &str) -> bool {
    let (name, tag) = (name.to_ascii_lowercase(), tag.to_ascii_lowercase());
    let is_border = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    name.match_indices(&tag)
        .any(|(at, tag)| is_border(name[..at].chars().next_back()) && is_border(name[at + tag.len()..].chars().next()))
}

fn base(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_repositories_are_told_from_paths() {
        let name =
            |repo: &str, file: Option<&str>| Some(ModelName { repo: repo.to_owned(), file: file.map(str::to_owned) });
        assert_eq!(ModelName::parse("unsloth/Qwen3.8-GGUF"), name("unsloth/Qwen3.8-GGUF", None));
        assert_eq!(ModelName::parse("a/b:Q4_K_M"), name("a/b", Some("Q4_K_M")));
        assert_eq!(ModelName::parse("a/b:x/y.gguf"), name("a/b", Some("x/y.gguf")));
        for path in [
            "model.gguf",
            "models/model.gguf",
            "./a/b",
            "../b",
            "/a",
            "a/b/c",
            "a/",
            "/b",
            "a/b:",
            "a b/c",
            "a/..",
            "a/b--c",
            "a/.b",
            "a\\b/c",
            "",
            "a/b\n",
            "a/ü",
        ] {
            assert_eq!(ModelName::parse(path), None, "{path}");
        }
    }

    #[test]
    fn names_that_leave_their_folder_are_known() {
        assert!(is_plain("a.gguf") && is_plain("Q4_K_M/a b-00001-of-00002.gguf"));
        for name in ["", "/a", "../a", "a/../../b", "a//b", "a/", "./a", "C:/a", "a\\..\\b", "a\0b", "a\nb"] {
            assert!(!is_plain(name), "{name:?}");
        }
    }

    #[test]
    fn models_are_chosen_by_file_and_by_tag() {
        let all = choices([
            "README.md",
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "mmproj-F16.gguf",
            "UD-IQ2_XS/m-UD-IQ2_XS-00002-of-00002.gguf",
            "UD-IQ2_XS/m-UD-IQ2_XS-00001-of-00002.gguf",
            "m.Q8_0-00001-of-00003.gguf",
        ]);
        let names: Vec<_> =
            all.iter().map(|choice| (choice.name(), choice.files.len(), choice.is_complete())).collect();
        assert_eq!(
            names,
            [
                ("UD-IQ2_XS/m-UD-IQ2_XS-00001-of-00002.gguf", 2, true),
                ("m-Q4_K_M.gguf", 1, true),
                ("m-Q4_K_S.gguf", 1, true),
                ("m.Q8_0-00001-of-00003.gguf", 1, false),
            ]
        );
        let chosen = |file| select(&all, Some(file)).map(|choice| choice.name().to_owned()).map_err(|all| all.len());
        assert_eq!(chosen("q4_k_m").unwrap(), "m-Q4_K_M.gguf");
        assert_eq!(chosen("IQ2_XS").unwrap(), names[0].0);
        assert_eq!(chosen("UD-IQ2_XS").unwrap(), names[0].0);
        assert_eq!(chosen("m-UD-IQ2_XS-00002-of-00002.gguf").unwrap(), names[0].0);
        assert_eq!(chosen("Q8_0").unwrap(), names[3].0);
        // A part of a tag is none; one that several have does not choose.
        assert_eq!((chosen("Q4_K"), chosen("Q2_XS"), chosen("m")), (Err(4), Err(4), Err(4)));
        assert_eq!(select(&all, None).unwrap_err().len(), 4);
        assert_eq!(select(&all[1..2], None).unwrap().name(), "m-Q4_K_M.gguf");
        assert!(select(&[], None).unwrap_err().is_empty());
    }
}
