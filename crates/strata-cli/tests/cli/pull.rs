//! `strata pull` from a hub on this machine, and `strata models`.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::fake_hub::{COMMIT, FakeHub, Reply, sha256};
use crate::{Ran, arg, command, mini};

/// Runs a command whose hub's cache is below `home`, in an empty folder.
fn strata_at(home: &Path, args: &[&str]) -> Ran {
    start_at(home, args).wait_with_output().unwrap().into()
}

fn start_at(home: &Path, args: &[&str]) -> Child {
    let here = home.join("here");
    fs::create_dir_all(&here).unwrap();
    let mut command = command(args);
    for name in ["HF_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN"] {
        command.env_remove(name);
    }
    command.env("HF_HOME", home).current_dir(here);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

/// Waits until a file has bytes.
fn wait_for(path: &Path) {
    for _ in 0..600 {
        if fs::metadata(path).is_ok_and(|found| found.len() > 0) {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{} has no bytes", path.display());
}

#[test]
fn a_model_is_pulled_found_by_its_name_and_listed() {
    let bytes = fs::read(mini()).unwrap();
    let hub =
        FakeHub::start(&[("Q/mini-IQ2_XS.gguf", &bytes), ("mini-Q8_0.gguf", b"no"), ("mmproj.gguf", b"no")], |_| {
            Reply::Serve
        });
    let home = tempfile::tempdir().unwrap();
    let pull = ["pull", "o/r:iq2_xs", "--endpoint", &hub.url];
    let out = strata_at(home.path(), &pull).ok();
    let path = home.path().join("hub/models--o--r/snapshots").join(COMMIT).join("Q/mini-IQ2_XS.gguf");
    assert_eq!(out.trim_end(), arg(&path));
    // As the hub's own client finds it.
    let cache = hf_hub::Cache::new(home.path().join("hub"));
    assert_eq!(cache.model("o/r".to_owned()).get("Q/mini-IQ2_XS.gguf"), Some(path.clone()));
    assert_eq!(
        path.canonicalize().unwrap(),
        cache.model("o/r".to_owned()).blob_path(&sha256(&bytes)).canonicalize().unwrap()
    );
    assert!(fs::read(&path).unwrap() == bytes);

    // Once is enough.
    let asked = hub.asked().len();
    let ran = strata_at(home.path(), &pull);
    assert!(ran.stderr.contains("is here") && ran.code == Some(0) && hub.asked().len() == asked, "{ran:?}");

    let ids = strata_at(home.path(), &["tokenize", "-m", "o/r", "--ids", "a compiler"]).ok();
    assert_eq!(ids, crate::strata(&["tokenize", "--ids", "a compiler"]).ok());
    strata_at(home.path(), &["run", "-m", "o/r:Q8_0", "x"])
        .fails(1, &["use o/r:Q/mini-IQ2_XS.gguf", "strata pull o/r:Q8_0"]);
    strata_at(home.path(), &["run", "-m", "o/other", "x"]).fails(1, &["neither a file nor", "strata pull o/other"]);

    // Beside it in the list: a damaged file, and one of another architecture.
    let here = home.path().join("here");
    fs::write(here.join("cut.gguf"), &bytes[..1000]).unwrap();
    let mut other = bytes.clone();
    let at = bytes.windows(8).position(|bytes| bytes == b"qwen4exp").unwrap();
    other[at..at + 8].copy_from_slice(b"llamaexp");
    fs::write(here.join("other.gguf"), other).unwrap();
    let listed: Value = serde_json::from_str(&strata_at(home.path(), &["models", "--json"]).ok()).unwrap();
    let [pulled, cut, other] = &listed["models"].as_array().unwrap()[..] else { panic!("{listed}") };
    assert_eq!(pulled["name"], "o/r:Q/mini-IQ2_XS.gguf");
    assert_eq!((&pulled["state"], &pulled["architecture"]), (&"runs".into(), &"qwen4exp".into()));
    assert_eq!(pulled["bytes"], bytes.len());
    // All of its experts fit.
    assert_eq!((&pulled["fit"]["slots"], &pulled["fit"]["experts"]), (&1152.into(), &1152.into()));
    assert_eq!((&cut["name"], &cut["state"], &cut["fit"]), (&"cut.gguf".into(), &"damaged".into(), &Value::Null));
    assert_eq!((&other["state"], &other["architecture"]), (&"not supported".into(), &"llamaexp".into()));
    assert!(other["problem"].as_str().unwrap().contains("architecture `llamaexp` is not supported"), "{other}");
    let table = strata_at(home.path(), &["models"]).ok();
    assert!(table.contains("o/r:Q/mini-IQ2_XS.gguf") && table.contains("all experts in memory"), "{table}");
    assert!(table.contains("damaged: ") && table.lines().count() == 4, "{table}");
}

#[test]
fn a_pull_that_cannot_choose_lists_what_there_is() {
    let files: [(&str, &[u8]); 4] = [
        ("m-Q4_K_M.gguf", b"1234"),
        ("m-Q8_0-00001-of-00002.gguf", b"1"),
        ("m-Q8_0-00002-of-00002.gguf", b"2"),
        ("m-BF16-00001-of-00002.gguf", b"1"),
    ];
    let hub = FakeHub::start(&files, |asked| match asked.path.contains("secret") {
        true => Reply::Refuse(401, ""),
        false => Reply::Serve,
    });
    let home = tempfile::tempdir().unwrap();
    let pull = |model: &str| strata_at(home.path(), &["pull", model, "--endpoint", &hub.url]);
    pull("o/r").fails(2, &["3 models", "o/r:m-Q4_K_M.gguf", "o/r:m-Q8_0-00001-of-00002.gguf", "2 files"]);
    pull("o/r:Q3_K").fails(2, &["not one named Q3_K", "o/r:m-Q4_K_M.gguf"]);
    pull("o/r:BF16").fails(1, &["only 1 of the 2 files of m-BF16-00001-of-00002.gguf"]);
    pull("o/secret").fails(1, &["401", "--token", "HF_TOKEN", "/o/secret"]);
    pull("m.gguf").fails(2, &["OWNER/REPO"]);
    strata_at(home.path(), &["pull", "o/r", "--endpoint", "ftp://x"]).fails(2, &["ftp://x", "URL"]);
    // Nothing listens there.
    assert_eq!(hub.asked().len(), 0);

    // Both files of a model in two, each with its own name.
    let folder = home.path().join("folder");
    let ran = strata_at(home.path(), &["pull", "o/r:Q8_0", "--endpoint", &hub.url, "--folder", arg(&folder)]);
    assert_eq!(ran.ok().trim_end(), arg(&folder.join("m-Q8_0-00001-of-00002.gguf")));
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort_unstable();
    assert_eq!(names, ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"]);
    assert_eq!(fs::read(folder.join("m-Q8_0-00002-of-00002.gguf")).unwrap(), b"2");
    assert!(!home.path().join("hub").exists());
}

#[cfg(unix)]
#[test]
fn a_pull_that_is_stopped_goes_on_where_it_was() {
    const PIECE: usize = 4 << 20;
    let bytes: Vec<u8> = (0..PIECE + 4_000_000).map(|i| (i / 3) as u8).collect();
    let slow = FakeHub::start(&[("m.gguf", &bytes)], |asked| match asked.range {
        Some((0, _)) => Reply::Serve,
        _ => Reply::Stall(1_000_000),
    });
    let home = tempfile::tempdir().unwrap();
    let child = start_at(home.path(), &["pull", "o/r", "--endpoint", &slow.url]);
    let part = home.path().join("hub/models--o--r/blobs").join(format!("{}.strata-part", sha256(&bytes)));
    wait_for(&part);
    let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let ran: Ran = child.wait_with_output().unwrap().into();
    ran.fails(130, &["stopped", "of 0.01 GB of m.gguf are kept", "the same command goes on"]);
    assert_eq!(fs::metadata(&part).unwrap().len(), PIECE as u64);

    // From a mirror, too, and who asks is told to it.
    let mirror = FakeHub::start(&[("m.gguf", &bytes)], |_| Reply::Serve);
    let ran = strata_at(home.path(), &["pull", "o/r", "--endpoint", &mirror.url, "--token", "mine"]);
    let path = ran.ok();
    assert!(fs::read(path.trim_end()).unwrap() == bytes && !part.exists());
    let asked = mirror.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!((asked[0].range, asked[0].token.as_deref()), (Some((PIECE, bytes.len() - 1)), Some("mine")));
}

#[test]
fn a_model_that_does_not_fit_on_the_drive_is_told_with_numbers() {
    let hub = FakeHub::start(&[], |_| Reply::Serve);
    let home = tempfile::tempdir().unwrap();
    strata_at(home.path(), &["pull", "o/r", "--endpoint", &hub.url]).fails(1, &["o/r has no GGUF files"]);
    let listed = strata_at(home.path(), &["models"]);
    assert!(listed.stdout.is_empty() && listed.stderr.contains("strata pull OWNER/REPO"), "{listed:?}");
    let huge = FakeHub::claiming("m.gguf", 1 << 55);
    strata_at(home.path(), &["pull", "o/r", "--endpoint", &huge.url])
        .fails(1, &["GB free, but 36028797.02 GB are still to come", "--folder"]);
    assert_eq!(huge.asked().len(), 0);
}
