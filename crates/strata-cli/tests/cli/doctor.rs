//! `strata doctor`: what it says of the machine that the tests run on, of models that are well and of others, and how
//! far runs were from what it foretold.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use strata_gguf::{Gguf, GgufWriter, Metadata, NewTensor, Value as MetadataValue};

use crate::{Ran, arg, command, mini, oracle, strata};

/// `strata doctor --json` with a cache of its own: exit code and what is told.
fn doctor(cache: &Path, more: &[&str]) -> (Option<i32>, Value) {
    let args = [&["doctor", "--json"], more].concat();
    let ran = Ran::from(command(&args).env("XDG_CACHE_HOME", cache).stdin(Stdio::null()).output().unwrap());
    let shown = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    (ran.code, shown)
}

/// Whether there is a finding that has this in it.
fn finds(shown: &Value, is_broken: bool, part: &str) -> bool {
    let has = |finding: &Value| finding["broken"] == is_broken && finding["what"].as_str().unwrap().contains(part);
    shown["findings"].as_array().unwrap().iter().any(has)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn instruction_sets_are_listed_with_what_they_lack() {
    let shown: Value = serde_json::from_str(&strata(&["doctor", "--isa", "--json"]).ok()).unwrap();
    let isas = shown["isas"].as_array().unwrap();
    let names: Vec<_> = isas.iter().map(|isa| isa["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["portable", "avx2", "avx512", "amx"]);
    for isa in isas {
        let is_available = isa["available"].as_bool().unwrap();
        assert_eq!(isa["missing"].as_array().unwrap().is_empty(), is_available, "{isa}");
        assert_eq!(isa["arithmetic"].is_string(), is_available, "{isa}");
        // What is said to be available runs, and nothing else does.
        let run = strata(&["run", "--raw", "-n", "1", "--isa", isa["name"].as_str().unwrap(), "hi"]);
        assert_eq!(run.code, Some(if is_available { 0 } else { 1 }), "{isa} {run:?}");
    }
    assert_eq!((&isas[0]["available"], &isas[0]["arithmetic"]), (&true.into(), &"float32".into()));
    let best = isas.iter().rfind(|isa| isa["available"] == true).unwrap();
    assert_eq!(shown["auto"], best["name"]);
    assert!(shown["threads"].as_u64().unwrap() >= 1);
    assert_eq!(shown.get("memory_available_bytes"), None);
}

#[test]
fn people_read_the_same() {
    let (all, isa) = (strata(&["doctor"]).ok(), strata(&["doctor", "--isa"]).ok());
    for name in ["processor", "cores", "portable", "avx2", "avx512", "amx", "chosen by `auto`"] {
        assert!(all.contains(name) && isa.contains(name), "{name}\n{all}");
    }
    assert!(!isa.contains("memory"));
    for line in ["memory", "arithmetic", "model", "drive", "plan", "chat", "computing", "prompt", "tokens", "last run"]
    {
        assert!(all.contains(&format!("\n{line:<12}")), "{line}\n{all}");
    }
    assert!(all.contains("<|im_start|>user\\nSay hello.<|im_end|>"), "{all}");
    assert!(all.ends_with("all is well\n") || all.ends_with("nothing is broken\n"), "{all}");
}

#[test]
fn field_report_16_57_runs_are_held_against_what_was_foretold() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path();
    let small = ["--arena-gb", "0.01"];
    let (code, shown) = doctor(cache, &small);
    assert_eq!((code, &shown["ok"], &shown["last_run"]), (Some(0), &true.into(), &Value::Null), "{shown}");
    // The shipped model and its reference are far nearer than what is allowed.
    let arithmetic = &shown["arithmetic"];
    assert!(number(&arithmetic["precise"]["max_difference"]) < 5e-5, "{arithmetic}");
    assert!((0.0..1e-2).contains(&number(&arithmetic["fast"]["mean_kl"])), "{arithmetic}");
    assert_eq!(arithmetic["precise"]["same_best"], 16);

    // Computing: the operations that `bench` counts, at the rate that was measured.
    let (rates, expected) = (&shown["rates"], &shown["expected"]);
    let bench = ["bench", "prefill", "-n", "1024", "--repeat", "1", "--no-floors", "--json"];
    let bench: Value = serde_json::from_str(&strata(&bench).ok()).unwrap();
    let flops = 1024.0 * number(&bench["flops_per_token"]);
    let compute_s = flops / number(&rates["prompt_flops_per_second"]);
    // Reading: what the plan says, at the drive's rate.
    let plan: Value = serde_json::from_str(&strata(&["plan", "--json", "--arena-gb", "0.01"]).ok()).unwrap();
    let read = number(&plan["prompts"][0]["expert_bytes"]) + number(&plan["prompts"][0]["ple_bytes"]);
    // 8 of 96 experts in 12 layers, of two parts of 4,736 bytes and one of 9,216 (the model's card).
    let hit = number(&expected["hits"]["share"]);
    let missed = 12.0 * 8.0 * (2.0 * 4736.0 + 9216.0) * (1.0 - hit);
    assert_eq!(expected["hits"]["counted"], false);
    assert!((hit - (number(&plan["slots"]) / 1152.0).powf(0.18)).abs() < 1e-9, "{expected}");
    let near = |value: &Value, expected: f64| {
        assert!((number(value) / expected - 1.0).abs() < 1e-6, "{value} {expected} {shown}");
    };
    near(&expected["missed_token_bytes"], missed);
    if let Some(drive) = rates["drive_bytes_per_second"].as_f64() {
        near(&expected["prompt"]["compute_s"], compute_s);
        assert!((number(&expected["prompt"]["drive_s"]) / (read / drive) - 1.0).abs() < 1e-3, "{shown}");
        near(
            &expected["prompt_s"],
            number(&expected["prompt"]["compute_s"]).max(number(&expected["prompt"]["drive_s"])),
        );
        near(&expected["token_s"], missed / drive + number(&rates["token_s"]));
    } else {
        // A drive whose every rate is in doubt.
        assert_eq!(expected["prompt_s"], Value::Null, "{shown}");
    }

    // All in memory: nothing depends on the drive.
    let run = ["run", "--raw", "--temp", "0", "-n", "10", "The kernel reads the file and"];
    let ran = Ran::from(command(&run).env("XDG_CACHE_HOME", cache).stdin(Stdio::null()).output().unwrap());
    let prompt_tokens: u64 = ran.stderr.split("[prompt: ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    ran.ok();
    let (code, shown) = doctor(cache, &[]);
    let run = &shown["last_run"];
    assert_eq!((code, &run["command"], &run["expected_before"]), (Some(0), &"run".into(), &true.into()), "{shown}");
    assert_eq!((&run["prompt"]["tokens"], &run["decode"]["tokens"]), (&prompt_tokens.into(), &9.into()));
    for part in [&run["prompt"], &run["decode"]] {
        let off = 100.0 * (number(&part["seconds"]) / number(&part["expected_seconds"]) - 1.0);
        assert!((number(&part["off_percent"]) - off).abs() < 1e-6, "{run}");
    }
    near(&run["decode"]["expected_seconds"], 9.0 * number(&rates["token_s"]));
    // What is kept is small, however often it is written.
    for entry in fs::read_dir(cache.join("strata")).unwrap() {
        let path = entry.unwrap().path();
        assert!(fs::metadata(&path).unwrap().len() < 8192, "{path:?}");
    }
}

/// The shipped model with another value of a key, or without it.
fn changed(dir: &Path, key: &str, value: Option<&str>) -> String {
    let path = dir.join(format!("changed-{}.gguf", value.map_or(0, str::len)));
    let source = Gguf::open(&mini()).unwrap();
    let mut metadata = Metadata::new();
    for (name, old) in source.metadata().iter() {
        match (name == key, value) {
            (true, None) => {}
            (true, Some(text)) => metadata.insert(name, MetadataValue::String(text.to_owned())).unwrap(),
            (false, _) => metadata.insert(name, old.clone()).unwrap(),
        }
    }
    let declared: Vec<_> =
        source.tensors().map(|t| NewTensor { name: t.name.clone(), dims: t.dims.clone(), ty: t.ty }).collect();
    let mut writer = GgufWriter::create(&path, &metadata, &declared).unwrap();
    source.tensors().for_each(|t| writer.write(&source.read(t).unwrap()).unwrap());
    writer.finish().unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn field_report_38_a_model_that_cannot_chat_is_broken() {
    let dir = tempfile::tempdir().unwrap();
    let template = "tokenizer.chat_template";
    for (value, part) in [
        (None, "has no chat template"),
        // Another model's: its marks are no tokens here.
        (Some("{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}"), "<|user|> <|end|>"),
    ] {
        let model = changed(dir.path(), template, value);
        let (code, shown) = doctor(dir.path(), &["-m", &model]);
        assert_eq!((code, &shown["ok"], &shown["chat"]["ok"]), (Some(1), &false.into(), &false.into()), "{shown}");
        assert!(finds(&shown, true, part), "{part} {shown}");
        // All else was looked at, too.
        assert!(number(&shown["rates"]["token_s"]) > 0.0, "{shown}");
    }
    let model = changed(dir.path(), template, Some("{{ raise_exception('not \x1b[31m today') }}"));
    let ran = strata(&["doctor", "-m", &model]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.stdout.contains("BROKEN: the chat template refuses these messages: not \\u{1b}[31m today"), "{ran:?}");
    let (code, shown) = doctor(dir.path(), &["-m", &oracle("mini4", "model-f16.gguf")]);
    assert!(code == Some(1) && finds(&shown, true, "tokenizer"), "{shown}");
}

#[test]
fn broken_files_and_full_machines_are_findings() {
    let dir = tempfile::tempdir().unwrap();
    let cut = dir.path().join("cut.gguf");
    fs::write(&cut, &fs::read(mini()).unwrap()[..30 << 20]).unwrap();
    for (model, part) in [("missing.gguf", "missing.gguf"), (arg(&cut), "cut.gguf")] {
        let (code, shown) = doctor(dir.path(), &["-m", model]);
        assert!(code == Some(1) && finds(&shown, true, part), "{shown}");
        assert!(shown["arithmetic"]["ok"] == true && shown["isas"].is_array(), "the machine is well: {shown}");
    }
    let (code, shown) = doctor(dir.path(), &["--memory-gb", "0.1"]);
    assert!(code == Some(1) && finds(&shown, true, "does not fit into 0.10 GiB"), "{shown}");
    // Where nothing can be kept, that is no more than a warning.
    let (code, shown) = doctor(&cut, &[]);
    assert!(code == Some(0) && finds(&shown, false, "nothing can be kept"), "{shown}");
}

/// What earlier runs left may have been edited by hand: nothing is computed with what no run can have written.
#[test]
fn absurd_numbers_in_kept_files_count_as_none() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path();
    let run = ["run", "--raw", "-n", "2", "--arena-gb", "0.01", "hi"];
    let run = || Ran::from(command(&run).env("XDG_CACHE_HOME", cache).stdin(Stdio::null()).output().unwrap()).ok();
    run();
    let files = || fs::read_dir(cache.join("strata")).unwrap().map(|entry| entry.unwrap().path());
    let path = files().find(|path| path.extension().is_some_and(|kind| kind == "run")).unwrap();
    let mut kept: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    kept["value"]["prompt"]["tokens"] = u64::MAX.into();
    fs::write(&path, kept.to_string()).unwrap();
    let rates = json!({ "date": "", "drive_bytes_per_second": -5, "prompt_flops_per_second": 1e-300, "token_s": 0 });
    let file = json!({ "model": kept["model"], "value": rates });
    fs::write(path.with_extension("rates"), file.to_string()).unwrap();
    let (code, shown) = doctor(cache, &[]);
    assert_eq!((code, &shown["last_run"]), (Some(0), &Value::Null), "{shown}");
    // It measured anew; before that, nothing was foretold.
    fs::write(path.with_extension("rates"), file.to_string()).unwrap();
    run();
    let kept: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(kept["value"]["prompt"]["expected_seconds"], Value::Null, "{kept}");
}

/// As it is installed: far from the repository.
#[test]
fn without_a_model_the_machine_is_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("strata");
    fs::copy(env!("CARGO_BIN_EXE_strata"), &program).unwrap();
    let output = std::process::Command::new(&program).arg("doctor").current_dir(dir.path()).output().unwrap();
    let shown = Ran::from(output).ok();
    assert!(shown.contains("not checked") && shown.contains("none: -m FILE names one"), "{shown}");
    assert!(shown.contains("instructions") && shown.contains("\nmemory "), "{shown}");
}

#[test]
#[cfg(target_os = "linux")]
fn field_report_09_a_second_process_is_told_and_leaves_the_first_its_memory() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = dir.path();
    let here =
        |args: &[&str]| Ran::from(command(args).env("XDG_RUNTIME_DIR", runtime).stdin(Stdio::null()).output().unwrap());
    let mut chat = command(&["chat"]);
    let mut chat = chat.env("XDG_RUNTIME_DIR", runtime).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut plan = String::new();
    BufReader::new(chat.stderr.take().unwrap()).read_line(&mut plan).unwrap();
    let planned_gib: f64 = plan.split("plan: ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let shown: Value = serde_json::from_str(&here(&["doctor", "--json"]).ok()).unwrap();
    let [running] = &shown["running"].as_array().unwrap()[..] else { panic!("{shown}") };
    assert_eq!((&running["pid"], &running["model"]), (&chat.id().into(), &"strata-mini-iq2xs-q4_0.gguf".into()));
    assert!((number(&running["plan_bytes"]) / f64::from(1u32 << 30) - planned_gib).abs() < 0.006, "{running} {plan}");
    assert!(finds(&shown, false, "other Strata processes run"), "{shown}");
    drop(chat.stdin.take());
    assert!(chat.wait().unwrap().success());
    let files =
        || fs::read_dir(runtime.join("strata")).unwrap().map(|file| file.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(files(), ["turn"], "whoever ends leaves nothing behind");

    // A process that has planned all memory and does not have it yet.
    let path = runtime.join("strata/1-0.running");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let place = json!({ "boot": boot.trim(), "space": fs::read_link("/proc/self/ns/pid").unwrap() });
    let said = json!({ "pid": 1, "place": place, "model": "big.gguf", "plan_bytes": 1u64 << 60 });
    fs::write(&path, said.to_string()).unwrap();
    let file = fs::File::open(&path).unwrap();
    file.lock().unwrap();
    for args in [&["run", "hi"][..], &["plan"], &["chat"], &["bench", "decode"], &["calibrate"]] {
        here(args).fails(1, &["does not fit into 0.00 GiB", "memory is left to other Strata: process 1 with big.gguf"]);
    }
    let ran = here(&["doctor"]);
    assert!(
        ran.code == Some(1) && ran.stdout.contains("process 1 with big.gguf: 1073741824.00 GiB planned"),
        "{ran:?}"
    );
    // It is gone.
    drop(file);
    here(&["plan"]).ok();
    assert!(!path.exists());
}
