//! Drafts change no text: the shipped model, and a draft head made of its last attention layer.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use strata_engine::{
    DraftKind, DraftOptions, Engine, EngineError, EngineOptions, Finish, GdnForm, GenerateOptions, Generated,
    SamplerParams, Stop,
};
use strata_gguf::{Gguf, GgufWriter, Metadata, NewTensor, TensorType, Value};

fn mini() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/strata-mini/strata-mini-iq2xs-q4_0.gguf")
}

/// A draft head for the shipped model: its streams go through layer 11 once more, and out as always. It drafts badly, but
/// it has all that a head has.
fn write_head(path: &Path) {
    let source = Gguf::open(&mini()).unwrap();
    let (hidden, wide) = (256u64, 1024u64);
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", Value::String("qwen4exp".to_owned())).unwrap();
    let mut tensors: Vec<(NewTensor, Vec<u8>)> = Vec::new();
    for t in source.tensors() {
        let name = match t.name.strip_prefix("blk.11.") {
            Some(part) if !part.starts_with("indexer.") => format!("blk.12.{part}"),
            Some(_) => continue,
            None => match t.name.strip_prefix("output_hc_") {
                Some(part) => format!("blk.12.nextn.hc_head_{part}"),
                None => continue,
            },
        };
        tensors.push((NewTensor { name, dims: t.dims.clone(), ty: t.ty }, source.read(t).unwrap()));
    }
    let mut add = |part: &str, dims: Vec<u64>, values: Vec<f32>| {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        tensors.push((NewTensor { name: format!("blk.12.nextn.{part}"), dims, ty: TensorType::F32 }, bytes));
    };
    add("enorm.weight", vec![hidden], vec![1.0; hidden as usize]);
    add("hnorm.weight", vec![wide], vec![1.0; wide as usize]);
    // A little of the embedding, and the stream itself.
    let join = |row: u64, col: u64| match (col == row, col == row + hidden) {
        (true, _) => 0.1,
        (_, true) => 1.0,
        _ => 0.0,
    };
    let values = (0..hidden).flat_map(|row| (0..2 * hidden).map(move |col| join(row, col))).collect();
    add("eh_proj.weight", vec![2 * hidden, hidden], values);
    let new: Vec<_> = tensors.iter().map(|(tensor, _)| tensor.clone()).collect();
    let mut writer = GgufWriter::create(path, &metadata, &new).unwrap();
    tensors.iter().for_each(|(_, bytes)| writer.write(bytes).unwrap());
    writer.finish().unwrap();
}

fn open(kind: DraftKind, head: Option<&Path>, threads: usize, slots: Option<u64>, context: Option<usize>) -> Engine {
    let mut options = EngineOptions { threads, ..EngineOptions::default() };
    options.drafts = DraftOptions { kind, head: head.map(Path::to_owned), ..DraftOptions::default() };
    // Three parts of 4,736, 4,736 and 9,216 bytes, each in whole pages with one more.
    options.arena_bytes = slots.map(|slots| slots * (3 + 3 + 4) * 4096);
    options.model.context_tokens = context;
    Engine::open(&mini(), &options).unwrap()
}

const SEEDED: SamplerParams = SamplerParams {
    temperature: 0.9,
    top_k: 40,
    top_p: 0.95,
    min_p: 0.05,
    seed: 11,
    repeat_penalty: 1.0,
    repeat_window: 64,
    presence_penalty: 0.0,
    frequency_penalty: 0.0,
};

fn options(max_tokens: usize, sampling: SamplerParams) -> GenerateOptions {
    GenerateOptions { max_tokens, sampling }
}

/// A text that says things twice, as ids.
fn prompt(engine: &Engine) -> Vec<u32> {
    let text = "The reader opens the file and reads the first page. The writer opens the file and reads the first page. \
                The reader";
    engine.tokenizer().unwrap().encode(text, true).unwrap()
}

/// What one engine writes twice: after a prompt, and on from there in the same session.
fn write(engine: &mut Engine, max_tokens: usize, sampling: SamplerParams) -> [Generated; 2] {
    let mut prompt = prompt(engine);
    let mut session = engine.new_session().unwrap();
    let mut go_on = |engine: &mut Engine, prompt: &[u32], tokens| {
        let mut text = String::new();
        let options = options(tokens, sampling);
        let written = engine.generate(&mut session, prompt, &options, &Stop::new(false), |t| text.push_str(t)).unwrap();
        assert_eq!(text, engine.tokenizer().unwrap().decode(&written.tokens, true));
        written
    };
    let first = go_on(engine, &prompt, max_tokens);
    prompt.extend(&first.tokens);
    prompt.extend(engine.tokenizer().unwrap().encode(" The writer", false).unwrap());
    let second = go_on(engine, &prompt, 20);
    engine.free_session(session);
    [first, second]
}

#[track_caller]
fn check_same(plain: &[Generated; 2], drafted: &[Generated; 2], what: &str) {
    for (turn, (plain, drafted)) in plain.iter().zip(drafted).enumerate() {
        assert!(plain.tokens == drafted.tokens, "{what}, turn {turn}: other tokens");
        let seen = |g: &Generated| (g.finish, g.prompt_tokens, g.reused_tokens);
        assert_eq!(seen(plain), seen(drafted), "{what}, turn {turn}");
    }
    let drafts = drafted[0].drafts;
    assert!(plain[0].drafts.proposed == 0 && drafts.proposed > 0 && drafts.accepted <= drafts.proposed, "{drafts:?}");
}

#[test]
fn field_report_59_drafts_change_no_text_while_experts_stream() {
    let dir = tempfile::tempdir().unwrap();
    let head = dir.path().join("head.gguf");
    write_head(&head);
    let greedy = SamplerParams::default();
    let mut plain = open(DraftKind::Off, None, 2, None, None);
    let (want, seeded) = (write(&mut plain, 512, greedy), write(&mut plain, 80, SEEDED));
    assert!(seeded[0].tokens != want[0].tokens[..seeded[0].tokens.len()]);

    let mut lookup = open(DraftKind::Lookup, None, 1, Some(200), None);
    let drafted = write(&mut lookup, 512, greedy);
    check_same(&want, &drafted, "look-up, greedy");
    assert!(drafted[0].drafts.accepted > 0, "{:?}", drafted[0].drafts);
    check_same(&seeded, &write(&mut lookup, 80, SEEDED), "look-up, seeded");

    for (kind, threads, slots) in [(DraftKind::Auto, 2, None), (DraftKind::Mtp, 1, Some(200))] {
        let mut with_head = open(kind, Some(&head), threads, slots, None);
        assert!(with_head.model().has_draft_head());
        check_same(&seeded, &write(&mut with_head, 80, SEEDED), "head, seeded");
    }
    // Without a head, look-up takes its place, unless a head was asked for.
    let mut auto = open(DraftKind::Auto, None, 2, None, None);
    check_same(&seeded, &write(&mut auto, 80, SEEDED), "auto, seeded");
    let mut options = EngineOptions::default();
    options.drafts.kind = DraftKind::Mtp;
    let error = Engine::open(&mini(), &options).err().unwrap();
    assert!(matches!(&error, EngineError::Unusable(text) if text.contains("no draft head")), "{error}");
    // Where it would change the text, there are none.
    options.drafts.kind = DraftKind::Lookup;
    options.model.gdn_form = GdnForm::Chunked;
    let error = Engine::open(&mini(), &options).err().unwrap();
    assert!(matches!(&error, EngineError::Unusable(text) if text.contains("chunked")), "{error}");
}

#[test]
fn the_end_of_a_text_is_where_it_was() {
    let (mut plain, mut lookup) =
        (open(DraftKind::Off, None, 2, None, Some(60)), open(DraftKind::Lookup, None, 2, None, Some(60)));
    let prompt = prompt(&plain);
    let write = |engine: &mut Engine, max_tokens| {
        let mut session = engine.new_session().unwrap();
        let options = options(max_tokens, SamplerParams::default());
        let written = engine.generate(&mut session, &prompt, &options, &Stop::new(false), |_| ()).unwrap();
        engine.free_session(session);
        (written.tokens, written.finish)
    };
    // Any number of tokens up to the end of the context, which no window reaches beyond.
    for max_tokens in [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 14, 100] {
        assert_eq!(write(&mut plain, max_tokens), write(&mut lookup, max_tokens), "{max_tokens} tokens");
    }
    assert_eq!(write(&mut lookup, 100).1, Finish::ContextFull);
}

/// A stop leaves the session empty, whether it is seen between tokens of a window or by the next pass.
#[test]
fn a_text_that_is_stopped_leaves_its_session_empty() {
    let (mut plain, mut lookup) =
        (open(DraftKind::Off, None, 1, None, None), open(DraftKind::Lookup, None, 1, None, None));
    let prompt = prompt(&plain);
    let options = options(24, SamplerParams::default());
    let want = {
        let mut session = plain.new_session().unwrap();
        plain.generate(&mut session, &prompt, &options, &Stop::new(false), |_| ()).unwrap().tokens
    };
    for after in [1, 4, 7, 8, 9, 10, 15] {
        let mut session = lookup.new_session().unwrap();
        let (stop, mut pieces) = (Stop::new(false), 0);
        let stopped = lookup
            .generate(&mut session, &prompt, &options, &stop, |_| {
                pieces += 1;
                stop.store(pieces >= after, Ordering::Relaxed);
            })
            .unwrap();
        assert_eq!((stopped.finish, stopped.tokens.len(), stopped.reused_tokens), (Finish::Stopped, after, 0));
        assert!(stopped.tokens[..] == want[..after]);
        let written = lookup.generate(&mut session, &prompt, &options, &Stop::new(false), |_| ()).unwrap();
        assert_eq!((written.reused_tokens, written.finish), (0, Finish::MaxTokens));
        assert!(written.tokens == want, "after a stop behind {after} tokens");
        lookup.free_session(session);
    }
}
