//! `strata synth`: files that load and run, what is said about them, and what is refused.

use serde_json::Value;

use crate::{arg, strata};

/// Bytes of the routed experts of the shape `small`: 4 layers of 32 experts of 64 by 256 weights; gate and up in IQ2_S (82
/// bytes for 256 weights), in layer 1 in IQ2_XXS (66); down in Q2_0 (18 for 64).
const SMALL_EXPERT_BYTES: u64 = 32 * 64 * (2 * (3 * 82 + 66) + 4 * 4 * 18);

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&strata(args).ok()).unwrap()
}

fn files_in(dir: &std::path::Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_small_model_loads_and_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (model, ids, logits) = (dir.path().join("s.gguf"), dir.path().join("ids"), dir.path().join("logits"));
    let made = json(&["synth", arg(&model), "--shape", "small", "--save-ids", arg(&ids), "--json"]);
    assert_eq!(files_in(dir.path()), ["ids", "s.gguf"], "nothing else is left");

    let shown = json(&["inspect", "--json", arg(&model)]);
    assert_eq!(shown["expert_bytes"], SMALL_EXPERT_BYTES);
    let written = ["expert_bytes", "table_bytes", "dense_bytes"].iter().map(|part| shown[part].as_u64().unwrap());
    assert_eq!(made["data_bytes"].as_u64(), Some(written.sum()));
    let named = &shown["metadata"]["strata.synth.prompt_ids"];
    assert_eq!(named["length"], 8192);
    let first: Vec<_> = named["first"].as_array().unwrap().iter().map(Value::to_string).collect();
    let saved = std::fs::read_to_string(&ids).unwrap();
    assert!(saved.starts_with(&format!("{},", first.join(","))), "the ids saved are those in the file");
    assert_eq!(saved.trim().split(',').count(), 8192);

    strata(&["logits", "-m", arg(&model), "--ids-file", arg(&ids), "--limit", "300", "-o", arg(&logits)]).ok();
    let bytes = std::fs::read(&logits).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = tensors.tensor("logits").unwrap();
    assert_eq!(tensor.shape(), [300, 2048]);
    let values: Vec<f32> = tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    // Activations neither vanish nor explode: the logits have a deviation of 3, with 9 more for each fourth token.
    let square = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / values.len() as f64;
    assert!((3.0..8.0).contains(&square.sqrt()), "{}", square.sqrt());
    // What the model would write is of the domain (four of them, by id) that it read.
    let best = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
    let read = saved.trim().split(',').map(|id| id.parse::<usize>().unwrap());
    let same = values.chunks_exact(2048).zip(read).filter(|(row, id)| best(row) % 4 == id % 4).count();
    assert!(same > 270, "{same} of 300");
}

/// Arithmetic gives the same routes on one machine, so these figures move only when the weights do.
#[test]
fn routing_is_measured_and_can_be_shaped() {
    let dir = tempfile::tempdir().unwrap();
    let share = |name: &str, flags: &[&str], key: &str| {
        let model = dir.path().join(name);
        json(&[&["synth", arg(&model), "--shape", "small", "--json"], flags].concat())[key].as_f64().unwrap()
    };
    let worse = share("drift", &["--drift", "0.8"], "recall");
    let usual = share("usual", &[], "recall");
    let exact = share("still", &["--drift", "0", "--gate", "0"], "recall");
    assert!(worse < usual - 0.1 && usual < exact - 0.1, "{worse} {usual} {exact}");

    let even = share("even", &["--skew", "0", "--domain", "0", "--topic", "0"], "lru_share");
    let skewed = share("skewed", &["--skew", "0.8", "--domain", "0", "--topic", "0"], "lru_share");
    // 5 slots of 32, 4 experts a token: a cache that no text favours hits about one time in six.
    assert!(even < 0.35 && skewed > even + 0.2, "{even} {skewed}");
}

#[test]
fn the_table_can_have_a_file_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.gguf");
    strata(&["synth", arg(&path), "--shape", "small", "--split", "--table-rows", "4000"]).ok();
    let names = ["s-00001-of-00002.gguf", "s-00002-of-00002.gguf"];
    assert_eq!(files_in(dir.path()), names);
    let shown = json(&["inspect", "--json", arg(&dir.path().join(names[0]))]);
    // 8 heads of at least 500 rows, primes: 503, 509, 521, 523, 541, 547, 557, 563; up to a multiple of 128.
    assert_eq!(shown["table_bytes"].as_u64(), Some(4352 * 18));
    let logits = dir.path().join("logits");
    strata(&["logits", "-m", arg(&dir.path().join(names[1])), "--ids", "1,2,3", "-o", arg(&logits)]).ok();
}

#[test]
fn cuts_leave_a_valid_model() {
    let dir = tempfile::tempdir().unwrap();
    for (name, flags, key, value) in [
        ("one-layer", &["--layers", "1"][..], "block_count", 1),
        ("few-experts", &["--experts", "4"], "expert_count", 4),
        ("no-table", &["--no-table"], "block_count", 4),
    ] {
        let (path, logits) = (dir.path().join(name), dir.path().join("logits"));
        strata(&[&["synth", arg(&path), "--shape", "small"], flags].concat()).ok();
        let shown = json(&["inspect", "--json", arg(&path)]);
        assert_eq!(shown["metadata"][format!("qwen4exp.{key}")], value, "{name}");
        assert_eq!(shown["table_bytes"] == 0, name != "few-experts", "{name}");
        strata(&["logits", "-m", arg(&path), "--ids", "1,2,3", "-o", arg(&logits)]).ok();
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = |name: &str, seed: &str| {
        let path = dir.path().join(name);
        strata(&["synth", arg(&path), "--shape", "small", "--layers", "2", "--seed", seed]).ok();
        std::fs::read(path).unwrap()
    };
    let first = bytes("a", "5");
    assert!(first == bytes("b", "5"), "the same seed");
    assert!(first != bytes("c", "6"), "another seed");
}

#[test]
fn what_cannot_be_made_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.gguf");
    let synth = |flags: &[&str]| strata(&[&["synth", arg(&path)], flags].concat());
    synth(&["--shape", "small", "--layers", "9"]).fails(2, &["9 layers", "1 to 4"]);
    synth(&["--shape", "small", "--experts", "2"]).fails(2, &["2 experts", "4 to 32"]);
    synth(&["--shape", "small", "--skew", "0.7", "--topic", "0.7"]).fails(2, &["at most 1 together"]);
    // 40 bits of rows: the table alone would take more than any drive of this kind has.
    synth(&["--shape", "flash-next-iq2", "--table-rows", "1099511627776"]).fails(2, &["too large"]);
    synth(&[]).fails(2, &["--shape"]);
    assert_eq!(files_in(dir.path()), [""; 0]);

    std::fs::write(&path, "mine").unwrap();
    synth(&["--shape", "small"]).fails(1, &["s.gguf", "exists already", "choose another name"]);
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    let nowhere = dir.path().join("missing").join("s.gguf");
    strata(&["synth", arg(&nowhere), "--shape", "small"]).fails(1, &["missing"]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_nothing_behind() {
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.gguf");
    // More than can be written before the signal comes; never written to the end.
    let args = ["synth", arg(&path), "--shape", "flash-next-iq2", "--layers", "4", "--no-table"];
    let child = crate::command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while files_in(dir.path()).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(30), "nothing was begun");
        std::thread::sleep(Duration::from_millis(5));
    }
    let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(130), &b""[..]), "{output:?}");
    assert_eq!(files_in(dir.path()), [""; 0]);
}
