//! The processor as a backend: every operation runs at once, on the kernels' threads. One file per operation.

mod draft;
mod experts;
mod gdn;
mod kept;
mod memory;
mod pass;
mod ple;
mod qsa;
mod rows;
mod states;
mod streams;

use std::ops::Range;

use strata_kernels::inputs::Inputs;
use strata_kernels::matmul::{Matrix, matmul, matmul_of};
use strata_kernels::{Cpu, Isa, UnavailableIsa};
use strata_store::{Area, Slot};

use self::experts::{Choosing, Logits};
use self::kept::Kept;
use self::pass::{Pass, Scratch, zeroed};
use self::states::State;
use crate::{
    Backend, BackendError, Choice, DraftInput, ExpertShape, Field, GroupEntry, HyperRead, KvType, MatrixData, MatrixId,
    Mixer, PassId, PassShape, Ple, Qsa, Routes, Run, SavedState, SharedExpert, StateId, StatePart, StateShape, Ticket,
    VectorId,
};

/// Computes on the processor.
pub struct CpuBackend {
    cpu: Cpu,
    weights: Weights,
    passes: Vec<Option<Pass>>,
    states: Vec<Option<(State, Kept)>>,
    scratch: Scratch,
    /// By ticket. Few are waiting at a time.
    results: Vec<(u64, Outcome)>,
    /// Routes that were read: room for new ones.
    spare_routes: Vec<Routes>,
    next_ticket: u64,
}

/// All weights, in the types of the file.
struct Weights {
    matrices: Vec<MatrixData>,
    vectors: Vec<Vec<f32>>,
}

/// What a ticket names.
enum Outcome {
    Routes(Routes),
    Slots(Vec<Slot>),
    Logits(Vec<f32>),
}

impl Weights {
    fn matrix(&self, id: MatrixId) -> Matrix<'_> {
        let m = &self.matrices[id.0 as usize];
        Matrix::new(m.ty, m.rows, m.cols, m.scale, &m.bytes)
    }

    fn vector(&self, id: VectorId) -> &[f32] {
        &self.vectors[id.0 as usize]
    }

    /// `y[t] = w x[t]` for all rows of `x`; `y` is resized to fit.
    fn multiply(&self, cpu: &Cpu, id: MatrixId, x: &[f32], y: &mut Vec<f32>) {
        let w = self.matrix(id);
        y.resize(x.len() / w.cols() * w.rows(), 0.0);
        matmul(cpu, &w, x, y);
    }

    /// [`multiply`](Self::multiply) into rows that are there.
    fn multiply_into(&self, cpu: &Cpu, id: MatrixId, x: &[f32], y: &mut [f32]) {
        matmul(cpu, &self.matrix(id), x, y);
    }

    /// [`multiply`](Self::multiply) of inputs that are ready: several products read them.
    fn multiply_of(&self, cpu: &Cpu, id: MatrixId, x: &Inputs<'_>, y: &mut Vec<f32>) {
        let w = self.matrix(id);
        y.resize(x.rows() * w.rows(), 0.0);
        matmul_of(cpu, &w, x, y);
    }

    /// [`multiply`](Self::multiply) in float32, whatever the arithmetic of `cpu`.
    fn multiply_exactly(&self, cpu: &Cpu, id: MatrixId, x: &[f32], y: &mut Vec<f32>) {
        let w = self.matrix(id);
        self.multiply_of(cpu, id, &Inputs::exact(x, w.cols()), y);
    }
}

impl CpuBackend {
    /// On `threads` threads (0 = as many as the machine has), with the kernels of `isa`, computing in float32.
    ///
    /// # Errors
    /// When this machine lacks the instructions.
    pub fn precise(isa: Isa, threads: usize) -> Result<Self, UnavailableIsa> {
        Ok(Self::new(Cpu::precise(isa, threads)?))
    }

    /// [`precise`](Self::precise), but with the fastest arithmetic that `isa` has.
    ///
    /// # Errors
    /// When this machine lacks the instructions.
    pub fn fast(isa: Isa, threads: usize) -> Result<Self, UnavailableIsa> {
        Ok(Self::new(Cpu::fast(isa, threads)?))
    }

    fn new(cpu: Cpu) -> Self {
        Self {
            cpu,
            weights: Weights { matrices: Vec::new(), vectors: Vec::new() },
            passes: Vec::new(),
            states: Vec::new(),
            scratch: Scratch::default(),
            results: Vec::new(),
            spare_routes: Vec::new(),
            next_ticket: 0,
        }
    }

    fn ticket(&mut self, outcome: Outcome) -> Ticket {
        self.next_ticket += 1;
        self.results.push((self.next_ticket, outcome));
        Ticket(self.next_ticket)
    }

    #[allow(clippy::needless_pass_by_value)] // a ticket is used up by reading it
    fn take(&mut self, ticket: Ticket, expected: &'static str) -> Result<Outcome, BackendError> {
        let at = self.results.iter().position(|(id, _)| *id == ticket.0);
        Ok(self.results.swap_remove(at.ok_or(BackendError::WrongTicket { expected })?).1)
    }
}

/// The rows behind a handle.
fn room(passes: &mut [Option<Pass>], id: PassId) -> &mut Pass {
    passes[id.0 as usize].as_mut().expect("the pass was not freed")
}

/// States by handle, with the rows that are kept of them.
type States = [Option<(State, Kept)>];

/// All rows of runs that follow one another.
fn all_rows(runs: &[Run]) -> Range<usize> {
    let follow = runs.windows(2).all(|pair| pair[0].rows.end == pair[1].rows.start);
    assert!(follow && !runs.is_empty(), "runs that do not follow one another");
    runs[0].rows.start..runs[runs.len() - 1].rows.end
}

/// The rows of a run among all rows of the runs that it is one of.
fn within(run: &Run, all: &Range<usize>) -> Range<usize> {
    run.rows.start - all.start..run.rows.end - all.start
}

/// The part of `rows` rows, which are equally long, that these are.
fn part<T>(values: &[T], all: usize, rows: Range<usize>) -> &[T] {
    let width = values.len() / all;
    &values[rows.start * width..rows.end * width]
}

/// [`part`], to be written to.
fn part_mut<T>(values: &mut [T], all: usize, rows: Range<usize>) -> &mut [T] {
    let width = values.len() / all;
    &mut values[rows.start * width..rows.end * width]
}

/// The state behind a handle, and the rows that are kept of it.
fn state(states: &mut States, id: StateId) -> &mut (State, Kept) {
    states[id.0 as usize].as_mut().expect("the state was not freed")
}

impl Backend for CpuBackend {
    fn describe(&self) -> String {
        let threads = self.cpu.threads();
        let (isa, arithmetic) = (self.cpu.isa(), self.cpu.arithmetic());
        format!("cpu {isa} {arithmetic}, {threads} thread{}", if threads == 1 { "" } else { "s" })
    }

    fn allocate_areas(&mut self, sizes_bytes: &[usize]) -> Result<Vec<Area>, BackendError> {
        let allocate =
            |bytes: &usize| Area::allocate(*bytes).ok_or(BackendError::OutOfMemory { what: "experts", bytes: *bytes });
        sizes_bytes.iter().map(allocate).collect()
    }

    fn load_matrix(&mut self, matrix: MatrixData) -> MatrixId {
        self.weights.matrices.push(matrix);
        MatrixId(self.weights.matrices.len() as u32 - 1)
    }

    fn load_vector(&mut self, values: Vec<f32>) -> VectorId {
        self.weights.vectors.push(values);
        VectorId(self.weights.vectors.len() as u32 - 1)
    }

    fn new_pass(&mut self, shape: &PassShape) -> Result<PassId, BackendError> {
        let new = Pass::new(shape)?;
        let free = self.passes.iter().position(Option::is_none);
        let at = free.unwrap_or(self.passes.len());
        if free.is_none() {
            self.passes.push(None);
        }
        self.passes[at] = Some(new);
        Ok(PassId(at as u32))
    }

    fn free_pass(&mut self, pass: PassId) {
        self.passes[pass.0 as usize] = None;
    }

    fn default_kv(&self) -> KvType {
        KvType::of(self.cpu.arithmetic())
    }

    fn new_state(&mut self, shape: &StateShape) -> Result<StateId, BackendError> {
        let new = State::new(shape)?;
        let free = self.states.iter().position(Option::is_none);
        let at = free.unwrap_or(self.states.len());
        if free.is_none() {
            self.states.push(None);
        }
        self.states[at] = Some((new, Kept::default()));
        Ok(StateId(at as u32))
    }

    fn reset_state(&mut self, id: StateId) {
        state(&mut self.states, id).0.reset();
    }

    fn free_state(&mut self, state: StateId) {
        self.states[state.0 as usize] = None;
    }

    fn save_state(&mut self, id: StateId, saved: &mut SavedState) -> Result<(), BackendError> {
        state(&mut self.states, id).0.save(saved)
    }

    fn restore_state(&mut self, id: StateId, saved: &SavedState) {
        state(&mut self.states, id).0.restore(saved);
    }

    fn saved_values(&self, id: StateId, tokens: usize) -> usize {
        self.states[id.0 as usize].as_ref().map_or(0, |(state, _)| state.saved_values(tokens))
    }

    fn rows_bytes(&self, id: StateId, tokens: Range<usize>) -> usize {
        self.states[id.0 as usize].as_ref().map_or(0, |(state, _)| state.rows_bytes(tokens))
    }

    fn copy_rows(&mut self, id: StateId, tokens: Range<usize>, out: &mut Vec<u8>) {
        state(&mut self.states, id).0.copy_rows(tokens, out);
    }

    fn append_rows(&mut self, id: StateId, tokens: usize, rows: &[u8]) -> Result<(), BackendError> {
        state(&mut self.states, id).0.append_rows(tokens, rows)
    }

    fn remember_rows(&mut self, id: StateId, most_rows: usize) {
        state(&mut self.states, id).1.begin(most_rows);
    }

    fn replay_state(&mut self, id: StateId, saved: &SavedState, rows: usize) {
        let (state, kept) = state(&mut self.states, id);
        state.replay(&self.cpu, saved, kept, rows);
    }

    fn embed(&mut self, pass: PassId, first_row: usize, table: MatrixId, ids: &[u32]) -> Result<(), BackendError> {
        let table = self.weights.matrix(table);
        if let Some(&id) = ids.iter().find(|id| **id as usize >= table.rows()) {
            return Err(BackendError::NoSuchToken { id, rows: table.rows() });
        }
        let pass = room(&mut self.passes, pass);
        let hidden = pass.shape.hidden;
        for (row, id) in ids.iter().enumerate() {
            let streams = pass.streams.rows_mut(first_row + row..first_row + row + 1);
            let (first, others) = streams.split_at_mut(hidden);
            table.decode(self.cpu.isa(), *id as usize, first);
            others.chunks_exact_mut(hidden).for_each(|other| other.copy_from_slice(first));
        }
        Ok(())
    }

    fn add_ngrams(&mut self, pass: PassId, rows: Range<usize>, layer: &Ple, id: StateId, table_rows: &[u8]) {
        let Self { cpu, weights, passes, states, scratch, .. } = self;
        let (State::Ple(history), kept) = state(states, id) else {
            panic!("the n-gram module was given another state")
        };
        ple::add_ngrams(cpu, weights, room(passes, pass), rows, layer, history, kept, table_rows, scratch);
    }

    fn draft_input(
        &mut self,
        pass: PassId,
        rows: Range<usize>,
        layer: &DraftInput,
        before: Option<StateId>,
        ids: &[u32],
    ) -> Result<(), BackendError> {
        let Self { cpu, weights, passes, states, scratch, .. } = self;
        let before = before.map(|id| match state(states, id) {
            (State::Residual(streams), kept) => (streams, kept),
            _ => panic!("a draft head was given another state"),
        });
        draft::input(cpu, weights, room(passes, pass), rows, layer, before, ids, scratch)
    }

    fn keep_streams(&mut self, pass: PassId, rows: Range<usize>, id: StateId) {
        let (State::Residual(last), kept) = state(&mut self.states, id) else {
            panic!("a draft head was given another state")
        };
        draft::keep(room(&mut self.passes, pass).streams.rows(rows), last, kept);
    }

    fn extend_cache(&mut self, pass: PassId, rows: Range<usize>, layer: &Qsa, id: StateId) -> Result<(), BackendError> {
        let Self { cpu, weights, passes, states, scratch, .. } = self;
        let runs = [Run { rows, state: id }];
        qsa::mix(cpu, weights, room(passes, pass), &runs, layer, states, scratch, qsa::Work::Extend)
    }

    fn read_streams(&mut self, pass: PassId, rows: Range<usize>, layer: &HyperRead) {
        let Self { cpu, weights, passes, scratch, .. } = self;
        streams::read(cpu, weights, room(passes, pass), rows, layer, scratch);
    }

    fn mix(&mut self, pass: PassId, runs: &[Run], mixer: &Mixer) -> Result<(), BackendError> {
        let Self { cpu, weights, passes, states, scratch, .. } = self;
        let pass = room(passes, pass);
        let rows = all_rows(runs);
        assert!(rows.len() <= pass.shape.strip_rows, "a strip of {} rows", rows.len());
        if pass.shape.keep_details {
            // Only attention selects: what an earlier layer or pass left here is not this mixer's.
            pass.selected_blocks[rows].fill(None);
        }
        match mixer {
            Mixer::Gdn(gdn) => gdn::mix(cpu, weights, pass, runs, gdn, states, scratch),
            Mixer::Qsa(qsa) => qsa::mix(cpu, weights, pass, runs, qsa, states, scratch, qsa::Work::Mix)?,
        }
        Ok(())
    }

    fn write_streams(&mut self, pass: PassId, rows: Range<usize>) {
        streams::write(&self.cpu, room(&mut self.passes, pass), rows);
    }

    fn route(&mut self, pass: PassId, rows: Range<usize>, router: MatrixId) -> Ticket {
        let pass = room(&mut self.passes, pass);
        let mut routes = self.spare_routes.pop().unwrap_or_default();
        let choosing = Choosing { logits: Logits::Exact, choices: pass.shape.top_k };
        experts::route(&self.cpu, &self.weights, pass, rows.clone(), router, choosing, &mut self.scratch, &mut routes);
        experts::keep_logits(pass, rows.clone(), &self.scratch.a);
        experts::keep_routes(pass, rows, &routes);
        self.ticket(Outcome::Routes(routes))
    }

    fn router_logits(&mut self, pass: PassId, rows: Range<usize>, router: MatrixId) -> Ticket {
        let logits = experts::router_logits(&self.cpu, &self.weights, room(&mut self.passes, pass), rows, router);
        self.ticket(Outcome::Logits(logits))
    }

    fn set_routes(&mut self, pass: PassId, rows: Range<usize>, routes: &Routes) {
        experts::keep_routes(room(&mut self.passes, pass), rows, routes);
    }

    fn forecast(&mut self, pass: PassId, rows: Range<usize>, router: MatrixId, choices: usize) -> Ticket {
        let pass = room(&mut self.passes, pass);
        let mut routes = self.spare_routes.pop().unwrap_or_default();
        let choosing = Choosing { logits: Logits::Fast, choices };
        experts::route(&self.cpu, &self.weights, pass, rows, router, choosing, &mut self.scratch, &mut routes);
        self.ticket(Outcome::Routes(routes))
    }

    fn take_routes(&mut self, ticket: Ticket, routes: &mut Routes) -> Result<(), BackendError> {
        let expected = "route";
        let Outcome::Routes(taken) = self.take(ticket, expected)? else {
            return Err(BackendError::WrongTicket { expected });
        };
        self.spare_routes.push(std::mem::replace(routes, taken));
        Ok(())
    }

    fn experts(
        &mut self,
        pass: PassId,
        shape: &ExpertShape,
        slots: Vec<Slot>,
        group: &[GroupEntry],
        choices: &[Choice],
    ) -> Ticket {
        experts::experts(&self.cpu, room(&mut self.passes, pass), shape, &slots, group, choices);
        self.ticket(Outcome::Slots(slots))
    }

    fn take_slots(&mut self, ticket: Ticket, slots: &mut Vec<Slot>) -> Result<(), BackendError> {
        let expected = "expert group";
        let Outcome::Slots(taken) = self.take(ticket, expected)? else {
            return Err(BackendError::WrongTicket { expected });
        };
        slots.extend(taken);
        Ok(())
    }

    fn shared_expert(&mut self, pass: PassId, rows: Range<usize>, shared: &SharedExpert) {
        let Self { cpu, weights, passes, scratch, .. } = self;
        experts::shared_expert(cpu, weights, room(passes, pass), rows, shared, scratch);
    }

    fn combine(&mut self, pass: PassId, rows: Range<usize>) {
        experts::combine(&self.cpu, room(&mut self.passes, pass), rows, &mut self.scratch);
    }

    fn head(&mut self, pass: PassId, rows: Range<usize>, last_read: &HyperRead, output: MatrixId) -> Ticket {
        let Self { cpu, weights, passes, scratch, .. } = self;
        let pass = room(passes, pass);
        streams::read(cpu, weights, pass, rows.clone(), last_read, scratch);
        let mut logits = Vec::new();
        weights.multiply(cpu, output, pass.mixed.rows(rows), &mut logits);
        self.ticket(Outcome::Logits(logits))
    }

    fn take_logits(&mut self, ticket: Ticket, logits: &mut Vec<f32>) -> Result<(), BackendError> {
        let expected = "logits";
        let Outcome::Logits(taken) = self.take(ticket, expected)? else {
            return Err(BackendError::WrongTicket { expected });
        };
        logits.extend_from_slice(&taken);
        Ok(())
    }

    fn read_field(&mut self, pass: PassId, field: Field, rows: Range<usize>) -> Vec<f32> {
        room(&mut self.passes, pass).read_field(field, rows)
    }

    fn selected_blocks(&mut self, pass: PassId, row: usize) -> Option<Vec<u32>> {
        room(&mut self.passes, pass).selected_blocks[row].clone()
    }

    fn read_state(&mut self, id: StateId, part: StatePart) -> Vec<f32> {
        state(&mut self.states, id).0.read(part)
    }
}
