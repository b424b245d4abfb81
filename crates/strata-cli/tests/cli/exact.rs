//! The exactness tools: `logits`, `dump`, `parity`, `kld` and `eval ppl`.
//!
//! Expected numbers are those of the reference implementation, recorded beside the models.

use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::{Ran, arg, mini, oracle, root, strata};

/// Shape and values of a float32 tensor.
pub(crate) fn f32s(path: &Path, name: &str) -> (Vec<usize>, Vec<f32>) {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::F32);
    let values = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    (tensor.shape().to_vec(), values)
}

/// The ids of a recorded prompt, as --ids takes them.
fn recorded_ids(path: &Path, name: &str) -> String {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::I32);
    let ids = tensor.data().chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap()).to_string());
    ids.collect::<Vec<_>>().join(",")
}

#[track_caller]
fn assert_close(got: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(got.len(), expected.len());
    let worst = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= tolerance && got.iter().all(|v| v.is_finite()), "off by {worst}");
}

/// A command with a small model and its recorded prompt.
struct Oracle {
    model: String,
    reference: String,
    ids: String,
}

impl Oracle {
    fn new(name: &str) -> Self {
        let reference = oracle(name, "reference.safetensors");
        let ids = recorded_ids(Path::new(&reference), "prefill.input_ids");
        Self { model: oracle(name, "model-f16.gguf"), reference, ids }
    }

    /// Runs `args` on the recorded prompt.
    fn runs(&self, args: &[&str]) -> Ran {
        self.knows(&[args, &["--ids", &self.ids]].concat())
    }

    /// Runs `args` with the model only.
    fn knows(&self, args: &[&str]) -> Ran {
        strata(&[args, &["-m", &self.model]].concat())
    }
}

#[test]
fn logits_are_those_of_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["mini4", "moe8ple", "longqsa"] {
        let model = Oracle::new(name);
        let output = dir.path().join(name);
        let ran = model.runs(&["logits", "--precise", "-o", arg(&output)]);
        let (shape, expected) = f32s(Path::new(&model.reference), "prefill.logits");
        assert!(ran.stderr.contains(&format!("{shape:?}")), "{ran:?}");
        assert_eq!(ran.ok(), "");
        let (got_shape, got) = f32s(&output, "logits");
        assert_eq!(got_shape, shape);
        assert_close(&got, &expected, 5e-5);
    }
}

#[test]
fn logits_of_the_shipped_model_are_those_of_its_reference() {
    let dir = tempfile::tempdir().unwrap();
    let reference = root().join("models/strata-mini/reference.safetensors");
    let ids_file = dir.path().join("ids.txt");
    std::fs::write(&ids_file, recorded_ids(&reference, "prompt0.token_ids").replace(",", " \n")).unwrap();
    let output = dir.path().join("logits");
    strata(&["logits", "--precise", "--ids-file", arg(&ids_file), "-o", arg(&output)]).ok();
    let (shape, got) = f32s(&output, "logits");
    assert_eq!(shape, [256, 16384]);
    let (_, expected) = f32s(&reference, "prompt0.logits_last16");
    assert_close(&got[240 * 16384..], &expected, 2e-4);
}

#[test]
fn the_bytes_of_logits_do_not_depend_on_how_they_were_computed() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["moe8ple", "longqsa"] {
        let model = Oracle::new(name);
        let bytes = |more: &[&str]| {
            let output = dir.path().join("logits");
            model.runs(&[&["logits", "-o", arg(&output)], more].concat()).ok();
            std::fs::read(&output).unwrap()
        };
        let expected = bytes(&[]);
        let single_steps = vec!["1"; 300].join(",");
        for more in [
            &["--threads", "1"][..],
            &["--threads", "3", "--strip", "5"],
            &["--pieces", "7,1,2,20"],
            &["--pieces", "5,5,5", "--pass", "9", "--threads", "2"],
            &["--pieces", &single_steps],
            &["--pass", "1"],
        ] {
            assert!(expected == bytes(more), "{name} {more:?}");
        }
        // A beginning is computed as if nothing followed.
        let output = dir.path().join("short");
        model.runs(&["logits", "--limit", "11", "-o", arg(&output)]).ok();
        let (all, short) = (f32s(&dir.path().join("logits"), "logits"), f32s(&output, "logits"));
        assert_eq!(short.0, [11, all.0[1]]);
        assert!(short.1 == all.1[..short.1.len()]);
    }
}

#[test]
fn ids_and_outputs_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let model = Oracle::new("mini4");
    let output = dir.path().join("logits");
    let logits = |more: &[&str]| model.knows(&[&["logits", "-o", arg(&output)], more].concat());
    logits(&["--ids", "1,256"]).fails(1, &["256", "vocabulary of 256"]);
    logits(&["--ids", "1,4294967295"]).fails(1, &["4294967295"]);
    let ids = dir.path().join("ids");
    for (text, parts) in [("", &["empty"][..]), (" ,\n", &["empty"]), ("1, 2\nthree", &["three", arg(&ids)])] {
        std::fs::write(&ids, text).unwrap();
        logits(&["--ids-file", arg(&ids)]).fails(1, parts);
    }
    logits(&["--ids-file", "no/such/file"]).fails(1, &["no/such/file"]);
    assert!(!output.exists());
    logits(&["--ids", "1, 2"]).ok();
    assert_eq!(f32s(&output, "logits").0, [2, 256]);

    let nowhere = dir.path().join("missing/logits");
    for args in [&["logits", "-o"][..], &["kld", "--save"]] {
        model.runs(&[args, &[arg(&nowhere)]].concat()).fails(1, &[arg(&nowhere), "make it first"]);
        model.runs(&[args, &[arg(dir.path())]].concat()).fails(1, &[arg(dir.path()), "directory"]);
    }
    // A dump makes its directories, but not out of a file, nor in one that is in use.
    model.runs(&["dump", "-o", arg(&output)]).fails(1, &[arg(&output)]);
    model.runs(&["dump", "-o", arg(dir.path())]).fails(1, &[arg(dir.path()), "not empty"]);
}

#[test]
fn dumps_of_one_arithmetic_are_equal() {
    let dir = tempfile::tempdir().unwrap();
    let model = Oracle::new("moe8ple");
    let dump = |name: &str, more: &[&str]| {
        let path = dir.path().join("made").join(name);
        let ran = model.runs(&[&["dump", "--precise", "-o", arg(&path)], more].concat());
        assert!(ran.stderr.contains("72 positions, 8 layers"), "{ran:?}");
        assert_eq!(ran.ok(), "");
        path
    };
    let usual = dump("usual", &["--threads", "2"]);
    let cut = dump("cut", &["--threads", "1", "--pass", "16", "--strip", "7", "--pieces", "5,1,30"]);
    let chunked = dump("chunked", &["--gdn", "chunked"]);

    let text = strata(&["parity", arg(&usual), arg(&cut)]).ok();
    assert!(text.contains("equal: every byte") && !text.contains("different"), "{text}");
    assert_eq!(text.lines().count(), 8 + 1 + 1, "layers, logits, verdict: {text}");

    let ran = strata(&["parity", arg(&usual), arg(&chunked)]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.stdout.contains("first difference: layer00, mixer_output, position 0"), "{ran:?}");
    let ran = strata(&["parity", "--json", arg(&usual), arg(&chunked)]);
    assert_eq!(ran.code, Some(1));
    let lines: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 8 + 1 + 1);
    let last = &lines[9];
    assert_eq!((&last["equal"], &last["first_difference"]["layer"]), (&Value::Bool(false), &"layer00".into()));
    for layer in &lines[..9] {
        let largest = layer["largest_difference"].as_f64().unwrap();
        assert!(largest > 0.0 && largest < 1e-3, "rounding: {layer}");
    }

    // A dump against a run of the same text, and of another.
    model.runs(&["parity", arg(&usual), "precise=true,pass=3"]).ok();
    model.runs(&["parity", arg(&usual), "precise=true,pass=3", "--limit", "9"]).fails(1, &["another text"]);
    // A damaged one.
    let file = cut.join("layer03.00000000.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    strata(&["parity", arg(&usual), arg(&cut)]).fails(1, &[arg(&file)]);
    std::fs::remove_file(&file).unwrap();
    strata(&["parity", arg(&usual), arg(&cut)]).fails(1, &[arg(&cut)]);
    strata(&["parity", arg(&usual), arg(dir.path())]).fails(1, &[arg(dir.path()), "no dump"]);
}

/// One changed byte is found and named.
#[test]
fn parity_finds_a_single_byte() {
    let dir = tempfile::tempdir().unwrap();
    let model = Oracle::new("mini4");
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
    for path in [&a, &b] {
        model.runs(&["dump", "--pass", "16", "-o", arg(path)]).ok();
    }
    let file = b.join("layer02.00000016.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let (offset, width) = {
        let parsed = SafeTensors::deserialize(&bytes).unwrap();
        let tensor = parsed.tensor("streams").unwrap();
        (tensor.data().as_ptr() as usize - bytes.as_ptr() as usize, tensor.shape()[1])
    };
    // Value 3 of the sixth row of the second pass: position 16 + 5. The lowest bit of its mantissa.
    bytes[offset + (5 * width + 3) * 4] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let ran = strata(&["parity", arg(&a), arg(&b)]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.contains("first difference: layer02, streams, position 21, value 3:"), "{ran:?}");
    assert_eq!(ran.stdout.matches("different  1 of").count(), 1, "{ran:?}");
}

#[test]
fn parity_of_settings() {
    let model = Oracle::new("longqsa");
    model.runs(&["parity", "default", "threads=1,pass=50,strip=7,pieces=3:100:1"]).ok();
    model.runs(&["parity", "threads=1", "threads=2"]).ok();
    let ran = model.runs(&["parity", "default", "qsa-block=0"]);
    // Attending to everything is another computation, in the attention layers only: the first of them is layer 3.
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains("first difference: layer03, "), "{ran:?}");
    // What keys and values are kept in shows in attention first, and hides nothing else.
    model.runs(&["parity", "kv=q8_0", "kv=q8_0,threads=1,pass=50,strip=7,pieces=3:100:1"]).ok();
    let ran = model.runs(&["parity", "default", "kv=q8_0"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains("first difference: layer03, mixer_output, "), "{ran:?}");
    model.runs(&["parity", "default", "context=5"]).fails(1, &["context"]);
}

#[test]
fn divergence_from_itself_is_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("record");
    let model = Oracle::new("longqsa");
    assert_eq!(model.runs(&["kld", "--precise", "--save", arg(&record)]).ok(), "");
    let against = |more: &[&str]| -> Value {
        serde_json::from_str(
            &model.knows(&[&["kld", "--precise", "--json", "--against", arg(&record)], more].concat()).ok(),
        )
        .unwrap()
    };
    let same = against(&["--threads", "1", "--pass", "10"]);
    assert_eq!((same["mean_kl"].as_f64(), same["max_kl"].as_f64()), (Some(0.0), Some(0.0)));
    assert_eq!((same["positions"].as_u64(), same["top1_agreement"].as_f64()), (Some(202), Some(1.0)));
    let chunked = against(&["--gdn", "chunked"]);
    let mean = chunked["mean_kl"].as_f64().unwrap();
    assert!(mean != 0.0 && mean.abs() < 1e-9, "{chunked}");
    let dense = against(&["--qsa-block", "0"]);
    assert!(dense["mean_kl"].as_f64().unwrap() > 1e-9, "{dense}");
    let table = model.knows(&["kld", "--precise", "--against", arg(&record)]).ok();
    assert!(table.contains("mean KL          0.000e0 nats") && table.contains("100.00 %"), "{table}");

    strata(&["kld", "--against", arg(&record)]).fails(1, &[arg(&record), "[202, 16384]"]);
    model.knows(&["kld", "--against", "Cargo.toml"]).fails(1, &["Cargo.toml", "not a safetensors file"]);
    model.knows(&["kld", "--against", &model.reference]).fails(1, &["reference.safetensors", "`ids`"]);
}

/// Against the definition, computed here from `strata logits` of each window.
#[test]
fn perplexity_is_that_of_the_logits() {
    let dir = tempfile::tempdir().unwrap();
    let text = root().join("models/strata-mini/eval.txt");
    let excerpt: String = std::fs::read_to_string(&text).unwrap().chars().take(2000).collect();
    let file = dir.path().join("text.txt");
    std::fs::write(&file, &excerpt).unwrap();
    let ids = strata(&["tokenize", "--ids", &excerpt]).ok();
    let ids: Vec<usize> = ids.trim().split(',').map(|id| id.parse().unwrap()).collect();

    let (mut nats, mut count) = (0.0, 0);
    for window in ids[..100].chunks_exact(50) {
        let list = window.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let output = dir.path().join("logits");
        strata(&["logits", "--ids", &list, "-o", arg(&output)]).ok();
        let (shape, logits) = f32s(&output, "logits");
        for (row, next) in logits.chunks_exact(shape[1]).zip(&window[1..]) {
            let sum: f64 = row.iter().map(|l| f64::from(*l).exp()).sum();
            nats += sum.ln() - f64::from(row[*next]);
            count += 1;
        }
    }
    let expected = (nats / f64::from(count)).exp();
    // 100 tokens and the rest of a third window, which does not count.
    let args = ["eval", "ppl", "--text", arg(&file), "--window", "50", "--limit", "130", "--json"];
    let shown: Value = serde_json::from_str(&strata(&args).ok()).unwrap();
    let got = shown["perplexity_all"].as_f64().unwrap();
    assert!((got / expected - 1.0).abs() < 1e-6, "{got} {expected}");
    assert_eq!((shown["windows"].as_u64(), shown["window_tokens"].as_u64()), (Some(2), Some(50)));

    let path = mini();
    let table = strata(&[&["eval", "ppl", arg(&path)], &args[2..8]].concat()).ok();
    assert!(table.contains("2 windows of 50") && table.contains(&format!("{expected:.4}")), "{table}");
    strata(&["eval", "ppl", "--text", arg(&file), "--limit", "20"]).fails(1, &["20 tokens", "1024"]);
    strata(&["eval", "ppl", "--text", "missing.txt"]).fails(1, &["missing.txt"]);
    strata(&["eval", "ppl", "--text", arg(&file), "--window", "50", "--context", "9"]).fails(1, &["context of 9"]);
}
