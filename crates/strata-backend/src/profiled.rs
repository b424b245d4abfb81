//! A backend that measures how long another one takes for each operation, and records when on a timeline.
//!
//! Promises: every call is passed on as it is, so results are those of the inner backend.
//! Refuses: to look inside an operation. A backend that computes later than it is called shows its time where a result is
//! waited for. Waits between operations are for those to record who wait.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use strata_store::timeline::{Lane, Timeline};
use strata_store::{Area, Slot};

use crate::{
    Backend, BackendError, Choice, DraftInput, ExpertShape, Field, GroupEntry, HyperRead, KvType, MatrixData, MatrixId,
    Mixer, PassId, PassShape, Ple, Qsa, Routes, Run, SavedState, SharedExpert, StateId, StatePart, StateShape, Ticket,
    VectorId,
};

/// What time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the first are methods of `Backend`, with the reading of what they gave
pub enum Operation {
    Embed,
    AddNgrams,
    ReadStreams,
    MixGdn,
    MixQsa,
    WriteStreams,
    Route,
    Forecast,
    SharedExpert,
    Experts,
    Combine,
    Head,
    /// Between operations: until table rows of the n-gram module are there.
    HostNgramRows,
    /// Between operations: until experts are there.
    HostExperts,
    /// Between all other operations of a pass.
    HostRest,
}

impl Operation {
    /// Every one.
    pub const ALL: [Self; 15] = [
        Self::Embed,
        Self::AddNgrams,
        Self::ReadStreams,
        Self::MixGdn,
        Self::MixQsa,
        Self::WriteStreams,
        Self::Route,
        Self::Forecast,
        Self::SharedExpert,
        Self::Experts,
        Self::Combine,
        Self::Head,
        Self::HostNgramRows,
        Self::HostExperts,
        Self::HostRest,
    ];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::AddNgrams => "n-grams",
            Self::ReadStreams => "read streams",
            Self::MixGdn => "mix gdn",
            Self::MixQsa => "mix qsa",
            Self::WriteStreams => "write streams",
            Self::Route => "route",
            Self::Forecast => "forecast",
            Self::SharedExpert => "shared expert",
            Self::Experts => "experts",
            Self::Combine => "combine",
            Self::Head => "head",
            Self::HostNgramRows => "host: n-gram rows",
            Self::HostExperts => "host: experts at hand",
            Self::HostRest => "host: the rest",
        }
    }
}

impl Operation {
    /// Where a timeline shows it; `None` for what is between operations.
    fn lane(self) -> Option<Lane> {
        match self {
            Self::Experts => Some(Lane::Experts),
            Self::Head => Some(Lane::Head),
            Self::HostNgramRows | Self::HostExperts | Self::HostRest => None,
            _ => Some(Lane::Mixer),
        }
    }
}

/// Time of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Calls, or times between calls.
    pub calls: u64,
    /// All of them together.
    pub time: Duration,
}

/// Where the time of passes went.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    spent: [Spent; Operation::ALL.len()],
    /// Layers that passes went through.
    pub layers: u64,
}

impl Profile {
    /// Time of an operation.
    pub fn of(&self, operation: Operation) -> Spent {
        self.spent[operation as usize]
    }

    /// Time of all passes.
    pub fn total(&self) -> Duration {
        self.spent.iter().map(|spent| spent.time).sum()
    }

    fn add(&mut self, operation: Operation, time: Duration, calls: u64) {
        let spent = &mut self.spent[operation as usize];
        spent.calls += calls;
        spent.time += time;
    }
}

/// A profile that a [`ProfiledBackend`] writes and others may look at, or empty.
pub type SharedProfile = Arc<Mutex<Profile>>;

/// Measures the operations of `inner`.
pub struct ProfiledBackend {
    inner: Box<dyn Backend>,
    profile: SharedProfile,
    timeline: Timeline,
    /// End of the last operation.
    last: Option<Instant>,
    /// Where passes are.
    at: Vec<(PassId, At)>,
    /// The layer that the pass at hand is in.
    layer: Option<u32>,
    /// Names router logits that were not read yet.
    router_ticket: Option<u64>,
}

/// Where a pass is.
#[derive(Clone, Copy, Default)]
struct At {
    layer: Option<u32>,
    /// Nothing of the layer is left but its last writes: the next read is of the next layer.
    is_layer_done: bool,
}

/// A reading of results that takes less did not wait.
const SHORTEST_WAIT: Duration = Duration::from_micros(1);

impl ProfiledBackend {
    /// Measures into a new profile, which comes with it, and records on `timeline`.
    pub fn new(inner: Box<dyn Backend>, timeline: Timeline) -> (Self, SharedProfile) {
        let profile = SharedProfile::default();
        let measured = profile.clone();
        (Self { inner, profile, timeline, last: None, at: Vec::new(), layer: None, router_ticket: None }, measured)
    }

    /// The streams are read: by the layer after one that is done, or once more by the same.
    fn enter_layer(&mut self, pass: PassId) {
        let at = self.at(pass);
        if std::mem::take(&mut at.is_layer_done) {
            at.layer = Some(at.layer.map_or(0, |layer| layer + 1));
        }
        let layer = at.layer;
        self.layer = layer;
    }

    /// Where a pass is.
    fn at(&mut self, pass: PassId) -> &mut At {
        let place = self.at.iter().position(|(id, _)| *id == pass).unwrap_or_else(|| {
            self.at.push((pass, At::default()));
            self.at.len() - 1
        });
        &mut self.at[place].1
    }

    /// What comes is of no layer; the next read is of layer 0 if a pass begins.
    fn leave_layers(&mut self, pass: PassId, is_begin: bool) {
        *self.at(pass) = At { layer: None, is_layer_done: is_begin };
        self.layer = None;
    }

    fn profile(&self) -> MutexGuard<'_, Profile> {
        self.profile.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `call` of the inner backend, of which the caller's time before it was spent on `before` (`None`: on nothing of
    /// a pass).
    fn timed<T>(
        &mut self,
        operation: Operation,
        before: Option<Operation>,
        calls: u64,
        call: impl FnOnce(&mut dyn Backend) -> T,
    ) -> T {
        let start = Instant::now();
        let result = call(self.inner.as_mut());
        let end = Instant::now();
        let mut profile = self.profile();
        if let (Some(before), Some(last)) = (before, self.last) {
            profile.add(before, start - last, 1);
        }
        profile.add(operation, end - start, calls);
        drop(profile);
        if let Some(lane) = operation.lane().filter(|_| calls > 0 || end - start > SHORTEST_WAIT) {
            // Neither the embedding nor the head is part of a layer.
            let layer = self.layer.filter(|_| lane != Lane::Head);
            self.timeline.span(lane, operation.name(), layer, start, end);
        }
        self.last = Some(end);
        result
    }

    /// Runs an operation.
    fn operation<T>(&mut self, operation: Operation, call: impl FnOnce(&mut dyn Backend) -> T) -> T {
        self.timed(operation, Some(Operation::HostRest), 1, call)
    }

    /// Reads what an operation gave.
    fn reading<T>(&mut self, operation: Operation, call: impl FnOnce(&mut dyn Backend) -> T) -> T {
        self.timed(operation, Some(Operation::HostRest), 0, call)
    }
}

impl Backend for ProfiledBackend {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn allocate_areas(&mut self, sizes_bytes: &[usize]) -> Result<Vec<Area>, BackendError> {
        self.inner.allocate_areas(sizes_bytes)
    }

    fn load_matrix(&mut self, matrix: MatrixData) -> MatrixId {
        self.inner.load_matrix(matrix)
    }

    fn load_vector(&mut self, values: Vec<f32>) -> VectorId {
        self.inner.load_vector(values)
    }

    fn new_pass(&mut self, shape: &PassShape) -> Result<PassId, BackendError> {
        self.inner.new_pass(shape)
    }

    fn free_pass(&mut self, pass: PassId) {
        self.at.retain(|(id, _)| *id != pass);
        self.inner.free_pass(pass);
    }

    fn default_kv(&self) -> KvType {
        self.inner.default_kv()
    }

    fn new_state(&mut self, shape: &StateShape) -> Result<StateId, BackendError> {
        self.inner.new_state(shape)
    }

    fn reset_state(&mut self, state: StateId) {
        self.inner.reset_state(state);
    }

    fn free_state(&mut self, state: StateId) {
        self.inner.free_state(state);
    }

    fn save_state(&mut self, state: StateId, saved: &mut SavedState) -> Result<(), BackendError> {
        self.inner.save_state(state, saved)
    }

    fn restore_state(&mut self, state: StateId, saved: &SavedState) {
        self.inner.restore_state(state, saved);
    }

    fn saved_values(&self, state: StateId, tokens: usize) -> usize {
        self.inner.saved_values(state, tokens)
    }

    fn rows_bytes(&self, state: StateId, tokens: Range<usize>) -> usize {
        self.inner.rows_bytes(state, tokens)
    }

    fn copy_rows(&mut self, state: StateId, tokens: Range<usize>, out: &mut Vec<u8>) {
        self.inner.copy_rows(state, tokens, out);
    }

    fn append_rows(&mut self, state: StateId, tokens: usize, rows: &[u8]) -> Result<(), BackendError> {
        self.inner.append_rows(state, tokens, rows)
    }

    fn remember_rows(&mut self, state: StateId, most_rows: usize) {
        self.inner.remember_rows(state, most_rows);
    }

    fn replay_state(&mut self, state: StateId, saved: &SavedState, rows: usize) {
        self.inner.replay_state(state, saved, rows);
    }

    fn embed(&mut self, pass: PassId, first_row: usize, table: MatrixId, ids: &[u32]) -> Result<(), BackendError> {
        // A pass begins: what was before is none of its time.
        self.leave_layers(pass, true);
        self.timed(Operation::Embed, None, 1, |inner| inner.embed(pass, first_row, table, ids))
    }

    fn add_ngrams(&mut self, pass: PassId, rows: Range<usize>, layer: &Ple, state: StateId, table_rows: &[u8]) {
        self.enter_layer(pass);
        self.timed(Operation::AddNgrams, Some(Operation::HostNgramRows), 1, |inner| {
            inner.add_ngrams(pass, rows, layer, state, table_rows);
        });
    }

    fn draft_input(
        &mut self,
        pass: PassId,
        rows: Range<usize>,
        layer: &DraftInput,
        before: Option<StateId>,
        ids: &[u32],
    ) -> Result<(), BackendError> {
        // A draft head is none of the layers.
        self.leave_layers(pass, false);
        self.operation(Operation::Embed, |inner| inner.draft_input(pass, rows, layer, before, ids))
    }

    fn keep_streams(&mut self, pass: PassId, rows: Range<usize>, state: StateId) {
        self.inner.keep_streams(pass, rows, state);
    }

    fn extend_cache(
        &mut self,
        pass: PassId,
        rows: Range<usize>,
        layer: &Qsa,
        state: StateId,
    ) -> Result<(), BackendError> {
        self.operation(Operation::MixQsa, |inner| inner.extend_cache(pass, rows, layer, state))
    }

    fn read_streams(&mut self, pass: PassId, rows: Range<usize>, layer: &HyperRead) {
        self.enter_layer(pass);
        self.operation(Operation::ReadStreams, |inner| inner.read_streams(pass, rows, layer));
    }

    fn mix(&mut self, pass: PassId, runs: &[Run], mixer: &Mixer) -> Result<(), BackendError> {
        let operation = match mixer {
            Mixer::Gdn(_) => Operation::MixGdn,
            Mixer::Qsa(_) => Operation::MixQsa,
        };
        if runs.first().is_some_and(|run| run.rows.start == 0) {
            self.profile().layers += 1;
        }
        self.operation(operation, |inner| inner.mix(pass, runs, mixer))
    }

    fn write_streams(&mut self, pass: PassId, rows: Range<usize>) {
        self.operation(Operation::WriteStreams, |inner| inner.write_streams(pass, rows));
    }

    fn route(&mut self, pass: PassId, rows: Range<usize>, router: MatrixId) -> Ticket {
        self.operation(Operation::Route, |inner| inner.route(pass, rows, router))
    }

    fn router_logits(&mut self, pass: PassId, rows: Range<usize>, router: MatrixId) -> Ticket {
        let ticket = self.operation(Operation::Route, |inner| inner.router_logits(pass, rows, router));
        self.router_ticket = Some(ticket.0);
        ticket
    }

    fn set_routes(&mut self, pass: PassId, rows: Range<usize>, routes: &Routes) {
        self.reading(Operation::Route, |inner| inner.set_routes(pass, rows, routes));
    }

    fn forecast(&mut self, pass: PassId, rows: Range<usize>, router: MatrixId, choices: usize) -> Ticket {
        self.operation(Operation::Forecast, |inner| inner.forecast(pass, rows, router, choices))
    }

    fn take_routes(&mut self, ticket: Ticket, routes: &mut Routes) -> Result<(), BackendError> {
        self.reading(Operation::Route, |inner| inner.take_routes(ticket, routes))
    }

    fn experts(
        &mut self,
        pass: PassId,
        shape: &ExpertShape,
        slots: Vec<Slot>,
        group: &[GroupEntry],
        choices: &[Choice],
    ) -> Ticket {
        self.timed(Operation::Experts, Some(Operation::HostExperts), 1, |inner| {
            inner.experts(pass, shape, slots, group, choices)
        })
    }

    fn take_slots(&mut self, ticket: Ticket, slots: &mut Vec<Slot>) -> Result<(), BackendError> {
        self.reading(Operation::Experts, |inner| inner.take_slots(ticket, slots))
    }

    fn shared_expert(&mut self, pass: PassId, rows: Range<usize>, shared: &SharedExpert) {
        self.operation(Operation::SharedExpert, |inner| inner.shared_expert(pass, rows, shared));
    }

    fn combine(&mut self, pass: PassId, rows: Range<usize>) {
        self.operation(Operation::Combine, |inner| inner.combine(pass, rows));
        self.at(pass).is_layer_done = true;
    }

    fn head(&mut self, pass: PassId, rows: Range<usize>, last_read: &HyperRead, output: MatrixId) -> Ticket {
        self.operation(Operation::Head, |inner| inner.head(pass, rows, last_read, output))
    }

    fn take_logits(&mut self, ticket: Ticket, logits: &mut Vec<f32>) -> Result<(), BackendError> {
        let is_router = self.router_ticket.take_if(|router| *router == ticket.0).is_some();
        let operation = if is_router { Operation::Route } else { Operation::Head };
        self.reading(operation, |inner| inner.take_logits(ticket, logits))
    }

    fn read_field(&mut self, pass: PassId, field: Field, rows: Range<usize>) -> Vec<f32> {
        self.inner.read_field(pass, field, rows)
    }

    fn selected_blocks(&mut self, pass: PassId, row: usize) -> Option<Vec<u32>> {
        self.inner.selected_blocks(pass, row)
    }

    fn read_state(&mut self, state: StateId, part: StatePart) -> Vec<f32> {
        self.inner.read_state(state, part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecordingBackend;

    const SHAPE: PassShape = PassShape {
        rows: 4,
        strip_rows: 2,
        streams: 1,
        hidden: 1,
        experts: 4,
        top_k: 2,
        expert_ff: 1,
        keep_details: false,
    };

    fn weights(backend: &mut ProfiledBackend) -> (MatrixId, VectorId) {
        let matrix = MatrixData { ty: strata_gguf::TensorType::F32, rows: 4, cols: 1, scale: 1.0, bytes: vec![0; 16] };
        (backend.load_matrix(matrix), backend.load_vector(vec![1.0]))
    }

    /// The calls of two strips of a layer reach the inner backend as they are, and are counted.
    #[test]
    fn calls_are_passed_on_and_counted() {
        let inner = RecordingBackend::default();
        let recording = inner.recording();
        let (mut backend, profile) = ProfiledBackend::new(Box::new(inner), Timeline::off());
        let (router, norm) = weights(&mut backend);
        let pass = backend.new_pass(&SHAPE).unwrap();
        let read = HyperRead { norm, down: router, up: router, inject: None, eps: 1.0 };
        backend.embed(pass, 0, router, &[1, 2, 3, 0]).unwrap();
        let mut routes = Routes::default();
        for rows in [0..2, 2..4] {
            backend.read_streams(pass, rows.clone(), &read);
            let ticket = backend.route(pass, rows, router);
            backend.take_routes(ticket, &mut routes).unwrap();
        }
        assert_eq!(routes.ids, [2, 3, 3, 0], "the recording backend's rule");
        assert_eq!(recording.lock().unwrap().calls.len(), 5);
        assert_eq!(recording.lock().unwrap().unread_results, 0);

        let profile = profile.lock().unwrap().clone();
        let calls = |operation| profile.of(operation).calls;
        assert_eq!((calls(Operation::Embed), calls(Operation::ReadStreams), calls(Operation::Route)), (1, 2, 2));
        assert_eq!((calls(Operation::HostRest), calls(Operation::Experts)), (6, 0));
        assert_eq!(profile.total(), Operation::ALL.iter().map(|o| profile.of(*o).time).sum::<Duration>());
    }

    /// Two passes of two layers of two strips: spans know their layer, whatever the number of strips.
    #[test]
    fn spans_know_their_layer() {
        let timeline = Timeline::with_room(100);
        let (mut backend, _) = ProfiledBackend::new(Box::new(RecordingBackend::default()), timeline.clone());
        let (matrix, vector) = weights(&mut backend);
        let pass = backend.new_pass(&SHAPE).unwrap();
        let read = HyperRead { norm: vector, down: matrix, up: matrix, inject: None, eps: 1.0 };
        let shared = SharedExpert { gate_inp: vector, gate: matrix, up: matrix, down: matrix };
        timeline.begin();
        for _ in 0..2 {
            backend.embed(pass, 0, matrix, &[1, 2, 3, 0]).unwrap();
            for _ in 0..2 {
                for rows in [0..2, 2..4] {
                    backend.read_streams(pass, rows.clone(), &read);
                    backend.write_streams(pass, rows.clone());
                    backend.read_streams(pass, rows, &read);
                }
                backend.shared_expert(pass, 0..4, &shared);
                for rows in [0..2, 2..4] {
                    backend.combine(pass, rows.clone());
                    backend.write_streams(pass, rows);
                }
            }
            let ticket = backend.head(pass, 0..1, &read, matrix);
            backend.take_logits(ticket, &mut Vec::new()).unwrap();
        }
        timeline.end();
        let of_layer = |layer| vec![(Lane::Mixer, Some(layer)); 11];
        let one = [vec![(Lane::Mixer, None)], of_layer(0), of_layer(1), vec![(Lane::Head, None)]].concat();
        let spans = timeline.take().spans;
        // Reading logits that are there already may take long enough to be seen on a busy machine.
        let mut seen: Vec<_> = spans.iter().map(|span| (span.lane, span.layer)).collect();
        seen.dedup_by(|a, b| a == b && a.0 == Lane::Head);
        assert_eq!(seen, [one.clone(), one].concat());
        assert!(spans.is_sorted_by_key(|span| span.start_ns));
    }
}
