//! Models that stream: the same bytes as from memory, whatever is set, and whatever the drive does.

mod cached;
#[path = "../common/mod.rs"]
mod common;
mod exactness;
mod faults;
mod together;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use common::{Recorded, data, strata_mini};
use strata_backend::{CpuBackend, Isa};
use strata_gguf::Gguf;
use strata_model::ModelError;
use strata_model::qwen4exp::{Model, Observer, Options, Rows, Sequence, Streaming, Unobserved};
use strata_store::reads::faulty::{Faults, Faulty};
use strata_store::{Demand, ExpertId, ExpertStore, PassKind, PassNumber, Slot, StoreError, StreamingStore, reads};

/// A model file and a text.
struct Bed {
    path: PathBuf,
    ids: Vec<u32>,
    is_precise: bool,
}

/// The shipped model: 12 layers of 96 experts, of which a token uses 8.
fn mini(tokens: usize) -> Bed {
    let recorded = Recorded::open(&strata_mini("reference.safetensors"));
    let mut ids = recorded.u32("prompt2.token_ids");
    ids.truncate(tokens);
    Bed { path: strata_mini("strata-mini-iq2xs-q4_0.gguf"), ids, is_precise: false }
}

/// A reference model: `moe8ple` has 8 layers and an n-gram table, `longqsa` attends to selected blocks of a longer text.
fn reference(name: &str) -> Bed {
    let recorded = Recorded::open(&data(&format!("oracle/{name}/reference.safetensors")));
    let path = data(&format!("oracle/{name}/model-f16.gguf"));
    Bed { path, ids: recorded.u32("prefill.input_ids"), is_precise: false }
}

impl Bed {
    /// Opened with `faults` in all of its reads, watched.
    fn open(&self, threads: usize, options: Options, faults: &Faults) -> (Model, Seen) {
        open(&self.path, self.is_precise, threads, options, faults).unwrap()
    }

    /// Experts in all, and of a token.
    fn experts(&self) -> (usize, usize) {
        let model = self.open(1, Options::default(), &Faults::default()).0;
        let moe = &model.config().moe;
        (model.config().layers * moe.experts, moe.top_k)
    }
}

fn open(
    path: &Path,
    is_precise: bool,
    threads: usize,
    options: Options,
    faults: &Faults,
) -> Result<(Model, Seen), ModelError> {
    let backend = match is_precise {
        true => CpuBackend::precise(Isa::best(), threads),
        false => CpuBackend::fast(Isa::best(), threads),
    };
    let kind = options.streaming.reader;
    let with_faults = |files: &[_], areas: &[_], depth: usize| -> Result<Box<dyn reads::Port>, StoreError> {
        Ok(Box::new(Faulty::new(reads::open(kind, files, areas, depth)?, depth as u64, faults)))
    };
    let seen = Seen::default();
    let watched = |store| -> Box<dyn ExpertStore> { Box::new(Watched { store, seen: seen.clone() }) };
    let model = Model::load_with(&Gguf::open(path)?, Box::new(backend.unwrap()), options, &with_faults, watched)?;
    Ok((model, seen))
}

/// Options of an arena of so many slots whose n-gram rows really come from the drive.
fn streams(slots: usize) -> Options {
    let streaming = Streaming { slots: Some(slots), small_table_bytes: Some(0), ..Streaming::default() };
    Options { streaming, ..Options::default() }
}

/// The logits of the last of a prompt's rows and of a few single tokens after it, as bits.
fn run(model: &mut Model, ids: &[u32], observer: &mut dyn Observer) -> Result<Vec<u32>, ModelError> {
    let mut sequence = model.new_sequence()?;
    let result = forward(model, &mut sequence, ids, observer);
    model.free(sequence);
    result
}

/// Tokens that come one by one.
const SINGLE: usize = 4;

fn forward(
    model: &mut Model,
    sequence: &mut Sequence,
    ids: &[u32],
    observer: &mut dyn Observer,
) -> Result<Vec<u32>, ModelError> {
    let (prompt, single) = ids.split_at(ids.len() - SINGLE);
    let mut logits = Vec::new();
    for piece in std::iter::once(prompt).chain(single.chunks(1)) {
        model.forward(sequence, piece, Rows::Last, &mut logits, observer)?;
    }
    Ok(logits.into_iter().map(f32::to_bits).collect())
}

fn run_unobserved(model: &mut Model, ids: &[u32]) -> Result<Vec<u32>, ModelError> {
    run(model, ids, &mut Unobserved)
}

/// What passed between the model and its store.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Events>>);

#[derive(Default)]
struct Events {
    /// Slots that are out.
    out: isize,
    demanded: BTreeSet<ExpertId>,
    forecast: BTreeSet<ExpertId>,
}

impl Seen {
    fn with<T>(&self, look: impl FnOnce(&mut Events) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    #[track_caller]
    fn check_none_is_out(&self) {
        assert_eq!(self.with(|events| events.out), 0, "slots that were not given back");
    }
}

/// The store, with somebody who takes notes.
struct Watched {
    store: StreamingStore,
    seen: Seen,
}

fn experts_of(layer: u32, demands: &[Demand]) -> impl Iterator<Item = ExpertId> {
    demands.iter().map(move |demand| ExpertId { layer, index: demand.expert })
}

impl ExpertStore for Watched {
    fn begin_pass(&mut self, kind: PassKind) -> PassNumber {
        self.store.begin_pass(kind)
    }

    fn resume(&mut self, pass: PassNumber) {
        self.store.resume(pass);
    }

    fn skip_to(&mut self, layer: u32) {
        self.store.skip_to(layer);
    }

    fn demand(&mut self, layer: u32, experts: &[Demand]) -> Result<(), StoreError> {
        self.seen.with(|events| events.demanded.extend(experts_of(layer, experts)));
        self.store.demand(layer, experts)
    }

    fn forecast(&mut self, layer: u32, experts: &[Demand]) {
        self.seen.with(|events| events.forecast.extend(experts_of(layer, experts)));
        self.store.forecast(layer, experts);
    }

    fn forecast_ranked(&mut self, layer: u32, experts: &[u32]) {
        let ids = experts.iter().map(|index| ExpertId { layer, index: *index });
        self.seen.with(|events| events.forecast.extend(ids));
        self.store.forecast_ranked(layer, experts);
    }

    fn wants_forecast(&self) -> bool {
        self.store.wants_forecast()
    }

    fn wants_early_forecast(&self) -> bool {
        self.store.wants_early_forecast()
    }

    fn close(&mut self, layer: u32) {
        self.store.close(layer);
    }

    fn ready(&mut self, layer: u32, slots: &mut Vec<Slot>) -> Result<(), StoreError> {
        let before = slots.len();
        let result = self.store.ready(layer, slots);
        assert!(result.is_ok() || slots.len() == before, "with an error nothing is handed out");
        self.seen.with(|events| events.out += (slots.len() - before) as isize);
        result
    }

    fn release(&mut self, slot: Slot) {
        self.seen.with(|events| events.out -= 1);
        self.store.release(slot);
    }

    fn poll(&mut self) {
        self.store.poll();
    }

    fn end_pass(&mut self) {
        self.store.end_pass();
    }

    fn abandon(&mut self, pass: PassNumber) {
        self.store.abandon(pass);
    }

    fn as_streaming(&mut self) -> Option<&mut StreamingStore> {
        Some(&mut self.store)
    }
}
