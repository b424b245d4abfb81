//! A backend that computes nothing and remembers what it was asked: for tests of the order of operations, and of what
//! a forward pass does when its machine gives chosen answers.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use strata_store::{Area, ExpertId, Slot};

use crate::{
    Backend, BackendError, Choice, DraftInput, ExpertShape, Field, GroupEntry, HyperRead, KvType, MatrixData, MatrixId,
    Mixer, PassId, PassShape, Ple, Qsa, Routes, Run, SavedState, SharedExpert, StateId, StatePart, StateShape, Ticket,
    VectorId,
};

/// One call, with the rows it was for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // each is a method of `Backend`
pub enum Call {
    Embed { first_row: usize, ids: Vec<u32> },
    AddNgrams { rows: Range<usize>, table_bytes: usize },
    ReadStreams { rows: Range<usize> },
    MixGdn { rows: Range<usize>, state: StateId },
    MixQsa { rows: Range<usize>, state: StateId },
    WriteStreams { rows: Range<usize> },
    Route { rows: Range<usize> },
    RouterLogits { rows: Range<usize> },
    SetRoutes { rows: Range<usize>, routes: Vec<u32> },
    Forecast { rows: Range<usize>, router: MatrixId, choices: usize },
    Experts { experts: Vec<ExpertId>, choices: Vec<Choice> },
    SharedExpert { rows: Range<usize> },
    Combine { rows: Range<usize> },
    Head { rows: Range<usize> },
    ResetState { state: StateId },
    FreeState { state: StateId },
    SaveState { state: StateId },
    RestoreState { state: StateId },
    CopyRows { state: StateId, tokens: Range<usize> },
    AppendRows { state: StateId, tokens: usize },
    RememberRows { state: StateId, most_rows: usize },
    ReplayState { state: StateId, rows: usize },
    DraftInput { rows: Range<usize>, ids: Vec<u32> },
    KeepStreams { rows: Range<usize> },
    ExtendCache { rows: Range<usize> },
}

/// What a [`RecordingBackend`] was asked.
#[derive(Debug, Default)]
pub struct Recording {
    /// Calls, in order.
    pub calls: Vec<Call>,
    /// Tickets handed out whose results nobody has read.
    pub unread_results: usize,
    /// Bytes of all weights that were loaded, vectors as float32.
    pub loaded_bytes: usize,
}

/// Remembers calls. Routes follow a fixed rule: row `r` of a strip chooses experts `r, r + 1, ...` modulo their number,
/// with equal weights. Everything else that can be read back is zero.
#[derive(Default)]
pub struct RecordingBackend {
    recording: Arc<Mutex<Recording>>,
    matrices: Vec<(usize, usize)>,
    vectors: u32,
    passes: Vec<PassShape>,
    states: u32,
    results: HashMap<u64, Outcome>,
    next_ticket: u64,
}

enum Outcome {
    Routes(Routes),
    Slots(Vec<Slot>),
    Logits(usize),
}

impl RecordingBackend {
    /// What was asked, to be looked at while a model owns the backend.
    pub fn recording(&self) -> Arc<Mutex<Recording>> {
        self.recording.clone()
    }

    fn record(&self) -> MutexGuard<'_, Recording> {
        self.recording.lock().expect("nobody panics while looking at a recording")
    }

    fn call(&self, call: Call) {
        self.record().calls.push(call);
    }

    #[allow(clippy::needless_pass_by_value)] // a ticket is used up by reading it
    fn take(&mut self, ticket: Ticket) -> Option<Outcome> {
        let outcome = self.results.remove(&ticket.0)?;
        self.record().unread_results -= 1;
        Some(outcome)
    }

    fn ticket(&mut self, outcome: Outcome) -> Ticket {
        self.next_ticket += 1;
        self.record().unread_results += 1;
        self.results.insert(self.next_ticket, outcome);
        Ticket(self.next_ticket)
    }

    fn routes(&self, pass: PassId, rows: Range<usize>, choices: usize) -> Outcome {
        let PassShape { experts, .. } = self.passes[pass.0 as usize];
        let ids = rows.flat_map(|row| (0..choices).map(move |k| ((row + k) % experts) as u32)).collect::<Vec<_>>();
        Outcome::Routes(Routes { weights: vec![1.0 / choices as f32; ids.len()], ids })
    }
}

impl Backend for RecordingBackend {
    fn describe(&self) -> String {
        "recording".to_owned()
    }

    fn allocate_areas(&mut self, sizes_bytes: &[usize]) -> Result<Vec<Area>, BackendError> {
        let error = |bytes: &usize| BackendError::OutOfMemory { what: "experts", bytes: *bytes };
        sizes_bytes.iter().map(|bytes| Area::allocate(*bytes).ok_or_else(|| error(bytes))).collect()
    }

    fn load_matrix(&mut self, matrix: MatrixData) -> MatrixId {
        self.record().loaded_bytes += matrix.bytes.len();
        self.matrices.push((matrix.rows, matrix.cols));
        MatrixId(self.matrices.len() as u32 - 1)
    }

    fn load_vector(&mut self, values: Vec<f32>) -> VectorId {
        self.record().loaded_bytes += size_of_val(values.as_slice());
        self.vectors += 1;
        VectorId(self.vectors - 1)
    }

    fn new_pass(&mut self, shape: &PassShape) -> Result<PassId, BackendError> {
        self.passes.push(shape.clone());
        Ok(PassId(self.passes.len() as u32 - 1))
    }

    fn free_pass(&mut self, _pass: PassId) {}

    fn default_kv(&self) -> KvType {
        KvType::Float32
    }

    fn new_state(&mut self, _shape: &StateShape) -> Result<StateId, BackendError> {
        self.states += 1;
        Ok(StateId(self.states - 1))
    }

    fn reset_state(&mut self, state: StateId) {
        self.call(Call::ResetState { state });
    }

    fn free_state(&mut self, state: StateId) {
        self.call(Call::FreeState { state });
    }

    fn save_state(&mut self, state: StateId, saved: &mut SavedState) -> Result<(), BackendError> {
        self.call(Call::SaveState { state });
        saved.fill(0, [&[], &[]])
    }

    fn restore_state(&mut self, state: StateId, _saved: &SavedState) {
        self.call(Call::RestoreState { state });
    }

    fn saved_values(&self, _state: StateId, _tokens: usize) -> usize {
        0
    }

    fn rows_bytes(&self, _state: StateId, _tokens: Range<usize>) -> usize {
        0
    }

    fn copy_rows(&mut self, state: StateId, tokens: Range<usize>, _out: &mut Vec<u8>) {
        self.call(Call::CopyRows { state, tokens });
    }

    fn append_rows(&mut self, state: StateId, tokens: usize, _rows: &[u8]) -> Result<(), BackendError> {
        self.call(Call::AppendRows { state, tokens });
        Ok(())
    }

    fn remember_rows(&mut self, state: StateId, most_rows: usize) {
        self.call(Call::RememberRows { state, most_rows });
    }

    fn replay_state(&mut self, state: StateId, _saved: &SavedState, rows: usize) {
        self.call(Call::ReplayState { state, rows });
    }

    fn embed(&mut self, _pass: PassId, first_row: usize, table: MatrixId, ids: &[u32]) -> Result<(), BackendError> {
        let (rows, _) = self.matrices[table.0 as usize];
        if let Some(&id) = ids.iter().find(|id| **id as usize >= rows) {
            return Err(BackendError::NoSuchToken { id, rows });
        }
        self.call(Call::Embed { first_row, ids: ids.to_vec() });
        Ok(())
    }

    fn add_ngrams(&mut self, _pass: PassId, rows: Range<usize>, _layer: &Ple, _state: StateId, table_rows: &[u8]) {
        self.call(Call::AddNgrams { rows, table_bytes: table_rows.len() });
    }

    fn draft_input(
        &mut self,
        _pass: PassId,
        rows: Range<usize>,
        _layer: &DraftInput,
        _before: Option<StateId>,
        ids: &[u32],
    ) -> Result<(), BackendError> {
        self.call(Call::DraftInput { rows, ids: ids.to_vec() });
        Ok(())
    }

    fn keep_streams(&mut self, _pass: PassId, rows: Range<usize>, _state: StateId) {
        self.call(Call::KeepStreams { rows });
    }

    fn extend_cache(
        &mut self,
        _pass: PassId,
        rows: Range<usize>,
        _layer: &Qsa,
        _state: StateId,
    ) -> Result<(), BackendError> {
        self.call(Call::ExtendCache { rows });
        Ok(())
    }

    fn read_streams(&mut self, _pass: PassId, rows: Range<usize>, _layer: &HyperRead) {
        self.call(Call::ReadStreams { rows });
    }

    fn mix(&mut self, _pass: PassId, runs: &[Run], mixer: &Mixer) -> Result<(), BackendError> {
        for Run { rows, state } in runs.iter().cloned() {
            self.call(match mixer {
                Mixer::Gdn(_) => Call::MixGdn { rows, state },
                Mixer::Qsa(_) => Call::MixQsa { rows, state },
            });
        }
        Ok(())
    }

    fn write_streams(&mut self, _pass: PassId, rows: Range<usize>) {
        self.call(Call::WriteStreams { rows });
    }

    fn route(&mut self, pass: PassId, rows: Range<usize>, _router: MatrixId) -> Ticket {
        self.call(Call::Route { rows: rows.clone() });
        let routes = self.routes(pass, rows, self.passes[pass.0 as usize].top_k);
        self.ticket(routes)
    }

    fn router_logits(&mut self, _pass: PassId, rows: Range<usize>, router: MatrixId) -> Ticket {
        let values = rows.len() * self.matrices[router.0 as usize].0;
        self.call(Call::RouterLogits { rows });
        self.ticket(Outcome::Logits(values))
    }

    fn set_routes(&mut self, _pass: PassId, rows: Range<usize>, routes: &Routes) {
        self.call(Call::SetRoutes { rows, routes: routes.ids.clone() });
    }

    fn forecast(&mut self, pass: PassId, rows: Range<usize>, router: MatrixId, choices: usize) -> Ticket {
        self.call(Call::Forecast { rows: rows.clone(), router, choices });
        let routes = self.routes(pass, rows, choices);
        self.ticket(routes)
    }

    fn take_routes(&mut self, ticket: Ticket, routes: &mut Routes) -> Result<(), BackendError> {
        match self.take(ticket) {
            Some(Outcome::Routes(taken)) => *routes = taken,
            _ => return Err(BackendError::WrongTicket { expected: "route" }),
        }
        Ok(())
    }

    fn experts(
        &mut self,
        _pass: PassId,
        _shape: &ExpertShape,
        slots: Vec<Slot>,
        group: &[GroupEntry],
        choices: &[Choice],
    ) -> Ticket {
        let experts = group.iter().map(|entry| slots[entry.slot].id()).collect();
        let choices = group.iter().flat_map(|entry| choices[entry.choices.clone()].iter().copied()).collect();
        self.call(Call::Experts { experts, choices });
        self.ticket(Outcome::Slots(slots))
    }

    fn take_slots(&mut self, ticket: Ticket, slots: &mut Vec<Slot>) -> Result<(), BackendError> {
        match self.take(ticket) {
            Some(Outcome::Slots(taken)) => slots.extend(taken),
            _ => return Err(BackendError::WrongTicket { expected: "expert group" }),
        }
        Ok(())
    }

    fn shared_expert(&mut self, _pass: PassId, rows: Range<usize>, _shared: &SharedExpert) {
        self.call(Call::SharedExpert { rows });
    }

    fn combine(&mut self, _pass: PassId, rows: Range<usize>) {
        self.call(Call::Combine { rows });
    }

    fn head(&mut self, _pass: PassId, rows: Range<usize>, _last_read: &HyperRead, output: MatrixId) -> Ticket {
        let values = rows.len() * self.matrices[output.0 as usize].0;
        self.call(Call::Head { rows });
        self.ticket(Outcome::Logits(values))
    }

    fn take_logits(&mut self, ticket: Ticket, logits: &mut Vec<f32>) -> Result<(), BackendError> {
        match self.take(ticket) {
            Some(Outcome::Logits(values)) => logits.resize(logits.len() + values, 0.0),
            _ => return Err(BackendError::WrongTicket { expected: "logits" }),
        }
        Ok(())
    }

    fn read_field(&mut self, pass: PassId, field: Field, rows: Range<usize>) -> Vec<f32> {
        let s = &self.passes[pass.0 as usize];
        let width = match field {
            Field::Streams => s.streams * s.hidden,
            Field::Mixed | Field::Output => s.hidden,
            Field::Inject => s.streams,
            Field::RouterLogits => s.experts,
            Field::ExpertHidden => s.top_k * s.expert_ff,
            Field::ExpertOutput => s.top_k * s.hidden,
            Field::SharedGate => 1,
        };
        vec![0.0; rows.len() * width]
    }

    fn selected_blocks(&mut self, _pass: PassId, _row: usize) -> Option<Vec<u32>> {
        None
    }

    fn read_state(&mut self, _state: StateId, _part: StatePart) -> Vec<f32> {
        Vec::new()
    }
}
