//! A host in small: requests in turns on a few sequences of a tiny model.

mod book;
mod chats;
mod disk;

use std::path::{Path, PathBuf};

use strata_model::qwen4exp::{LayerView, Moment, Observer, Rows, Sequence, Unobserved};

use super::*;
use crate::{EngineOptions, MoceOptions, Route};

/// Ends a turn.
const END: u32 = 1;

fn oracle(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../strata-model/tests/data/oracle/{name}/model-f16.gguf"))
}

/// A model, and how it is opened.
type Kind = (&'static str, fn(&mut EngineOptions));

/// Sequences, what is kept of them, and one to read anew with.
struct Desk {
    engine: Engine,
    prefixes: Prefixes,
    sequences: Vec<Sequence>,
    /// Of each place, what it has taken.
    texts: Vec<Vec<u32>>,
    cold: Option<Sequence>,
}

/// A prompt that was read.
struct Read {
    place: usize,
    reused_tokens: usize,
    logits: Vec<f32>,
}

impl Desk {
    fn new(name: &str, places: usize, options: PrefixOptions, change: impl Fn(&mut EngineOptions)) -> Self {
        let mut engine_options = EngineOptions { pass_tokens: Some(256), ..EngineOptions::default() };
        engine_options.model.context_tokens = Some(8192);
        change(&mut engine_options);
        let mut engine = Engine::open(&oracle(name), &engine_options).unwrap();
        let sequences = (0..places).map(|_| engine.model.new_sequence().unwrap()).collect();
        let cold = Some(engine.model.new_sequence().unwrap());
        let texts = vec![Vec::new(); places];
        Self { engine, prefixes: Prefixes::new(places, options), sequences, texts, cold }
    }

    /// As if the program had ended and begun again.
    fn restart(&mut self, disk: DiskOptions) {
        let disk = self.engine.prefix_disk(disk).unwrap();
        self.prefixes = Prefixes::new(self.sequences.len(), self.prefixes.options).with_disk(disk);
        self.sequences.iter_mut().for_each(|sequence| self.engine.model.reset(sequence));
        self.texts.iter_mut().for_each(Vec::clear);
    }

    /// Writes all that is worth a file.
    fn save_all(&mut self) {
        while let Some(unsaved) = self.prefixes.unsaved() {
            let sequence = &self.sequences[unsaved.place];
            self.prefixes.save(&mut self.engine.model, unsaved, sequence).unwrap();
        }
    }

    /// Tokens that look like a text, each turn with its own number.
    fn turn(&self, number: usize, tokens: usize) -> Vec<u32> {
        let vocabulary = self.engine.model.vocabulary().min(250);
        let mut turn: Vec<u32> =
            (0..tokens - 1).map(|i| ((number * 31 + i * 7) % (vocabulary - 2) + 2) as u32).collect();
        turn.push(END);
        turn
    }

    fn begin(&mut self, prompt: &[u32]) -> (usize, Begun) {
        let start = self.prefixes.plan(prompt).unwrap();
        let source = start.source().map(|from| std::mem::replace(&mut self.sequences[from], self.cold.take().unwrap()));
        let sequence = &mut self.sequences[start.place];
        let begun = self.prefixes.begin(&mut self.engine.model, prompt, &start, sequence, source.as_ref()).unwrap();
        if let (Some(from), Some(source)) = (start.source(), source) {
            self.cold = Some(std::mem::replace(&mut self.sequences[from], source));
        }
        assert!(begun.reused_tokens <= prompt.len());
        assert_eq!(begun.logits.is_some(), begun.reused_tokens == prompt.len());
        self.texts[start.place] = prompt[..begun.reused_tokens].to_vec();
        self.check();
        (start.place, begun)
    }

    /// Reads a prompt, and keeps what is worth it.
    fn read(&mut self, prompt: &[u32]) -> Read {
        let (place, begun) = self.begin(prompt);
        let Begun { reused_tokens, logits } = begun;
        if let Some(logits) = logits {
            return Read { place, reused_tokens, logits };
        }
        let mut logits = Vec::new();
        let stops = self.prefixes.stops(place, prompt, reused_tokens, &[END]);
        if stops.is_empty() {
            let sequence = &mut self.sequences[place];
            self.engine
                .model
                .forward(sequence, &prompt[reused_tokens..], Rows::Last, &mut logits, &mut Unobserved)
                .unwrap();
            self.texts[place] = prompt.to_vec();
        }
        for (stop, point) in stops {
            let ids = &prompt[self.texts[place].len()..stop];
            logits.clear();
            let sequence = &mut self.sequences[place];
            self.engine.model.forward(sequence, ids, Rows::Last, &mut logits, &mut Unobserved).unwrap();
            self.texts[place].extend_from_slice(ids);
            self.keep(place, point, (point == Point::Prompt).then_some(&logits));
        }
        Read { place, reused_tokens, logits }
    }

    fn keep(&mut self, place: usize, point: Point, logits: Option<&Vec<f32>>) {
        let (sequence, text) = (&self.sequences[place], &self.texts[place]);
        let logits = logits.map(Vec::as_slice);
        self.prefixes.keep(&mut self.engine.model, place, sequence, text, point, logits).unwrap();
        self.check();
    }

    /// Takes tokens as if it had written them, and ends.
    fn write(&mut self, place: usize, answer: &[u32]) {
        if !answer.is_empty() {
            let sequence = &mut self.sequences[place];
            self.engine.model.decode(sequence, answer, Rows::Last, &mut Vec::new(), &mut Unobserved).unwrap();
        }
        self.texts[place].extend_from_slice(answer);
        if self.engine.moce().is_none() {
            self.keep(place, Point::Within, None);
            self.prefixes.end(place, &self.texts[place], true);
        } else {
            let prompt = self.texts[place].len() - answer.len();
            self.prefixes.end(place, &self.texts[place][..prompt], false);
        }
        self.check();
    }

    /// Reads a prompt, writes an answer, and says how many tokens were used again.
    fn ask(&mut self, prompt: &[u32], answer: &[u32]) -> usize {
        let read = self.read(prompt);
        self.write(read.place, answer);
        read.reused_tokens
    }

    /// Logits of a prompt that is read anew.
    fn anew(&mut self, prompt: &[u32]) -> Vec<f32> {
        let mut logits = Vec::new();
        let cold = self.cold.as_mut().unwrap();
        self.engine.model.reset(cold);
        self.engine.model.forward(cold, prompt, Rows::Last, &mut logits, &mut Unobserved).unwrap();
        logits
    }

    /// [`ask`](Self::ask), and the logits must be those of the prompt read anew.
    fn ask_exactly(&mut self, prompt: &[u32], answer: &[u32]) -> usize {
        let read = self.read(prompt);
        let anew = self.anew(prompt);
        assert!(bits(&anew) == bits(&read.logits), "{} tokens used again", read.reused_tokens);
        self.write(read.place, answer);
        read.reused_tokens
    }

    /// What the books say is what the sequences can.
    fn check(&self) {
        let Prefixes { options, book, kept, spare, .. } = &self.prefixes;
        let (kept_and_spare, coming) = (kept.len() + spare.len(), book.coming());
        assert!(kept_and_spare + coming <= options.checkpoints, "{kept_and_spare} and {coming}");
        for mark in &book.marks {
            let Some(kept) = kept.get(&mark.id) else { panic!("a mark without a checkpoint") };
            assert_eq!(kept.checkpoint.tokens(), mark.text.len());
            assert_eq!(!kept.logits.is_empty(), mark.has_logits);
            for (place, sequence) in self.sequences.iter().enumerate() {
                let holds = mark.holders.contains(&place);
                assert!(!holds || sequence.can_restore(&kept.checkpoint), "{place} has not {:?}", mark.point);
                assert!(!holds || book.places[place].text.starts_with(&mark.text));
            }
        }
        assert_eq!(book.marks.len(), kept.len());
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|value| value.to_bits()).collect()
}

/// Cancels a pass behind its first layer.
#[derive(Default)]
struct StopAtOnce(bool);

impl Observer for StopAtOnce {
    fn is_cancelled(&self) -> bool {
        self.0
    }

    fn at(&mut self, moment: Moment, _: &mut LayerView<'_>) {
        self.0 |= moment == Moment::LayerDone;
    }
}

fn cached(options: &mut EngineOptions) {
    options.route = Route::Cached;
    options.moce = MoceOptions { slots: Some(4), bonus: 5.0, keep: 0, mass: 1.0, ..MoceOptions::default() };
}
