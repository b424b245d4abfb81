//! Files for later runs.

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::KvType;

const FEW: PrefixOptions = PrefixOptions { checkpoints: 6, every_tokens: 2048 };

fn disk(folder: &TempDir) -> DiskOptions {
    DiskOptions { folder: folder.path().to_owned(), bytes: 1 << 30, daily_bytes: DiskOptions::DAILY_BYTES }
}

/// The folder's files of prefixes.
fn files(folder: &TempDir) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|end| end == "strata-prefix")).collect();
    paths.sort();
    paths
}

fn bytes(folder: &TempDir) -> u64 {
    files(folder).iter().map(|path| fs::metadata(path).unwrap().len()).sum()
}

/// A model that has answered a prompt of 280 tokens and written files of it.
fn saved(name: &str, folder: &TempDir, change: fn(&mut EngineOptions)) -> (Desk, Vec<u32>) {
    let mut desk = Desk::new(name, 2, FEW, change);
    desk.restart(disk(folder));
    let prompt = [desk.turn(0, 130), desk.turn(1, 150)].concat();
    assert_eq!(desk.ask_exactly(&prompt, &desk.turn(50, 20)), 0);
    desk.save_all();
    (desk, prompt)
}

#[test]
fn a_new_run_goes_on_from_files() {
    let kinds: [Kind; 4] = [
        ("longqsa", |_| ()),
        ("longqsa", |options| options.model.kv = Some(KvType::Float32)),
        ("longqsa", |options| options.model.kv = Some(KvType::Q8_0)),
        ("moe8ple", cached),
    ];
    for (name, change) in kinds {
        let folder = TempDir::new().unwrap();
        let (_, prompt) = saved(name, &folder, change);
        assert_eq!(files(&folder).len(), 2, "the root and the prompt");
        let mut desk = Desk::new(name, 2, FEW, change);
        desk.restart(disk(&folder));
        // Written anew, gone on with, and another conversation from the root.
        assert_eq!(desk.ask_exactly(&prompt, &desk.turn(60, 10)), prompt.len(), "{name}");
        desk.restart(disk(&folder));
        let next = [&prompt[..], &desk.turn(2, 130)].concat();
        assert_eq!(desk.ask_exactly(&next, &[]), prompt.len(), "{name}");
        let other = [desk.turn(0, 130), desk.turn(8, 140)].concat();
        assert_eq!(desk.ask_exactly(&other, &[]), 130, "{name}");
        // What is there is not written again.
        let before = files(&folder);
        desk.save_all();
        assert_eq!(files(&folder).len(), before.len() + 2, "the two new prompts");
        // What is in memory is not read from a file, and a little more is not worth one.
        assert_eq!(desk.ask_exactly(&next, &[]), next.len());
        let more = [&next[..], &desk.turn(3, 100)].concat();
        assert_eq!(desk.ask_exactly(&more, &[]), next.len());
        desk.save_all();
        assert_eq!(files(&folder).len(), before.len() + 2);
    }
}

#[test]
fn field_report_30_files_of_another_model_or_other_options_are_not_used() {
    let folder = TempDir::new().unwrap();
    let (desk, prompt) = saved("moe8ple", &folder, |_| ());
    drop(desk);
    let before = files(&folder);
    let others: [Kind; 4] = [
        ("longqsa", |_| ()),
        ("moe8ple", cached),
        ("moe8ple", |options| options.model.kv = Some(KvType::Q8_0)),
        ("moe8ple", |options| options.is_precise = true),
    ];
    for (name, change) in others {
        let mut desk = Desk::new(name, 2, FEW, change);
        desk.restart(disk(&folder));
        assert_eq!(desk.ask_exactly(&prompt, &[]), 0, "{name}");
    }
    assert_eq!(files(&folder), before, "they are somebody else's");
    // Even under a name of this model.
    let mut desk = Desk::new("longqsa", 2, FEW, |_| ());
    desk.restart(disk(&folder));
    desk.ask_exactly(&prompt, &[]);
    desk.save_all();
    let own: Vec<_> = files(&folder).into_iter().filter(|path| !before.contains(path)).collect();
    own.iter().for_each(|path| _ = fs::copy(&before[0], path).unwrap());
    desk.restart(disk(&folder));
    assert_eq!(desk.ask_exactly(&prompt, &[]), 0);
    assert_eq!(files(&folder), before);
}

#[test]
fn damaged_files_are_removed_and_nothing_else_is() {
    let folder = TempDir::new().unwrap();
    let (mut desk, prompt) = saved("mini4", &folder, |_| ());
    let anew = bits(&desk.anew(&prompt));
    let path = files(&folder).into_iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    files(&folder).iter().filter(|other| **other != path).for_each(|other| fs::remove_file(other).unwrap());
    let sound = fs::read(&path).unwrap();
    // Somebody else's, and what a run that was killed has left just now.
    let strange = [folder.path().join("notes.strata-prefix"), folder.path().join(".strata-prefix-part-1")];
    strange.iter().for_each(|path| fs::write(path, "notes").unwrap());
    let text_end = 72 + 4 * prompt.len();
    let mut damaged: Vec<Vec<u8>> = Vec::new();
    for at in (16..72).step_by(5).chain((text_end..sound.len()).step_by(sound.len() / 40)).chain([sound.len() - 1]) {
        let mut bytes = sound.clone();
        bytes[at] ^= 0x41;
        damaged.push(bytes);
    }
    damaged.extend([16, 71, 72, 100, text_end, sound.len() - 33, sound.len() - 1].map(|len| sound[..len].to_vec()));
    damaged.push([&sound[..], &[0]].concat());
    // Claims of sizes that no machine has.
    for (at, claim) in [48, 56, 64].into_iter().flat_map(|at| [u64::MAX, 1 << 62, 1 << 40].map(|claim| (at, claim))) {
        let mut bytes = sound.clone();
        bytes[at..at + 8].copy_from_slice(&claim.to_le_bytes());
        damaged.push(bytes);
    }
    for (number, bytes) in damaged.iter().enumerate() {
        fs::write(&path, bytes).unwrap();
        desk.restart(disk(&folder));
        let read = desk.read(&prompt);
        assert_eq!(read.reused_tokens, 0, "damage {number}");
        assert!(bits(&read.logits) == anew, "damage {number}");
        assert!(!path.exists() && strange.iter().all(|path| path.exists()), "damage {number}");
        desk.prefixes.end(read.place, &prompt, true);
    }
    // Tokens that were changed are those of another prompt, which its checksum refuses.
    let mut bytes = sound.clone();
    bytes[72] ^= 1;
    fs::write(&path, &bytes).unwrap();
    desk.restart(disk(&folder));
    let mut other = prompt.clone();
    other[0] ^= 1;
    assert_eq!(desk.ask_exactly(&other, &[]), 0);
    assert!(!path.exists());
    fs::write(&path, &sound).unwrap();
    desk.restart(disk(&folder));
    assert_eq!(desk.ask_exactly(&prompt, &[]), prompt.len());
}

/// A link may lead to a device that never ends, or to somebody else's file.
#[test]
#[cfg(unix)]
fn what_is_no_file_is_neither_read_nor_waited_for() {
    let folder = TempDir::new().unwrap();
    let (mut desk, prompt) = saved("mini4", &folder, |_| ());
    let elsewhere = TempDir::new().unwrap();
    for (number, path) in files(&folder).into_iter().enumerate() {
        let real = elsewhere.path().join(number.to_string());
        fs::rename(&path, &real).unwrap();
        std::os::unix::fs::symlink(&real, &path).unwrap();
    }
    let ledger = folder.path().join("written-today.json");
    fs::remove_file(&ledger).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &ledger).unwrap();
    let pipe = folder.path().join("0.strata-prefix");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    desk.restart(disk(&folder));
    assert_eq!(desk.ask_exactly(&prompt, &[]), 0);
    desk.save_all();
    assert!(fs::symlink_metadata(&ledger).unwrap().is_file(), "it was replaced");
    assert!(files(&folder).iter().any(|path| fs::symlink_metadata(path).unwrap().is_file()));
    // A file in the place of the folder is told as such.
    let options = DiskOptions { folder: ledger, ..disk(&folder) };
    let error = desk.engine.prefix_disk(options).err().unwrap().to_string();
    assert!(error.contains("it is no folder"), "{error}");
}

#[test]
fn field_report_57_files_stay_within_their_budgets() {
    let folder = TempDir::new().unwrap();
    let (mut desk, first) = saved("mini4", &folder, |_| ());
    let (of_two, one) = (bytes(&folder), fs::metadata(&files(&folder)[0]).unwrap().len());
    // Room for four, of which the longest unused give way.
    let options = DiskOptions { bytes: of_two + 2 * one, ..disk(&folder) };
    desk.restart(options.clone());
    let mut last = Vec::new();
    for number in 2..8 {
        assert_eq!(desk.ask(&first, &[]), first.len(), "it is used again and again");
        last = desk.turn(10 * number, 180);
        desk.ask(&last, &[]);
        desk.save_all();
        assert!(bytes(&folder) <= options.bytes, "{number}");
        desk.restart(options.clone());
    }
    assert_eq!((desk.ask(&last, &[]), desk.ask(&first, &[])), (last.len(), first.len()));
    // What was written today is told to later runs.
    let ledger = fs::read_to_string(folder.path().join("written-today.json")).unwrap();
    let written: u64 = serde_json::from_str::<serde_json::Value>(&ledger).unwrap()["bytes"].as_u64().unwrap();
    assert!(written >= of_two + 6 * one.min(of_two - one), "{ledger}");
    let options = DiskOptions { daily_bytes: written + one / 2, ..options };
    desk.restart(options.clone());
    let before = files(&folder);
    desk.ask(&desk.turn(200, 180), &[]);
    desk.save_all();
    assert_eq!(files(&folder), before, "no more today");
    // Another day.
    fs::write(folder.path().join("written-today.json"), ledger.replace('2', "1")).unwrap();
    desk.restart(DiskOptions { daily_bytes: 2 * one, ..options });
    desk.ask(&desk.turn(200, 180), &[]);
    desk.save_all();
    assert_ne!(files(&folder), before);
    // Nothing that is larger than all.
    desk.restart(DiskOptions { bytes: one / 2, ..disk(&folder) });
    desk.ask(&desk.turn(210, 180), &[]);
    let before = files(&folder);
    desk.save_all();
    assert_eq!(files(&folder), before);
}
