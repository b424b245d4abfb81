//! Routed experts: for each expert the rows that chose it are gathered, then gate and up, silu, down (spec 6.4).

use crate::Cpu;
use crate::hyper::add_scaled;
use crate::inputs::{InputBuffer, grown};
use crate::math::silu_times;
use crate::matmul::{Matrix, PANEL_ROWS, multiply_panel};
use crate::pool::DisjointMut;
use crate::products::Out;
use crate::scratch::Scratch;
use crate::vector::{Lanes, add_product, dispatch};

/// One expert's weights and the rows that chose it.
#[derive(Clone, Copy)]
pub struct Expert<'a> {
    /// `[ff][hidden]`.
    pub gate: Matrix<'a>,
    /// `[ff][hidden]`.
    pub up: Matrix<'a>,
    /// `[hidden][ff]`.
    pub down: Matrix<'a>,
    /// For each row of the input that chose it: the row, and which of the row's `top_k` choices it is.
    pub choices: &'a [Choice],
}

/// One use of an expert: row `row` of the pass has it as its `k`-th choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Row of the pass.
    pub row: u32,
    /// Rank of the choice within the row, from 0.
    pub k: u32,
}

/// Where results go: row `choice.row * top_k + choice.k` of each.
pub struct Outputs<'a> {
    /// `[rows * top_k][hidden]`: the expert's output, before its weight is applied.
    pub out: &'a mut [f32],
    /// `[rows * top_k][ff]`: `silu(gate) * up`, when somebody wants to look at it.
    pub hidden: Option<&'a mut [f32]>,
    /// Choices per row.
    pub top_k: usize,
}

/// Computes every choice of a group of experts. `x` is `[rows][hidden]`.
///
/// # Panics
/// When a choice occurs twice, or is not one of the `top_k` of a row, or experts differ in shape.
pub fn experts(cpu: &Cpu, group: &[Expert<'_>], x: &[f32], outputs: &mut Outputs<'_>) {
    let Some(first) = group.first() else { return };
    let (ff, width) = (first.gate.rows(), first.gate.cols());
    let fits = |Expert { gate, up, down, .. }: &Expert<'_>| {
        [gate, up].iter().all(|w| (w.rows(), w.cols()) == (ff, width)) && (down.rows(), down.cols()) == (width, ff)
    };
    assert!(group.iter().all(fits), "experts: shapes differ");
    // Taken out of the scratch: this thread's tasks will want it, too.
    let mut room = std::mem::take(&mut Scratch::of_thread().group);
    check_places(group, outputs.top_k, outputs.out.len() / width, &mut room.taken);
    cut(group, &mut room.pieces);
    let pieces = std::mem::take(&mut room.pieces);
    let job = Job {
        cpu,
        group,
        pieces: &pieces,
        x,
        top_k: outputs.top_k,
        ff,
        width,
        out: Out::new(outputs.out, width),
        hidden: outputs.hidden.as_deref_mut().map(DisjointMut::new),
    };
    if pieces.len() >= 2 * cpu.threads() || cpu.threads() == 1 {
        job.by_expert();
    } else {
        job.by_panel(&mut room);
    }
    room.pieces = pieces;
    Scratch::of_thread().group = room;
}

/// Rows of experts on their way, kept between groups.
#[derive(Default)]
pub(crate) struct Room {
    /// Gathered inputs.
    x: InputBuffer,
    /// `[choices][ff]`.
    gate: Vec<f32>,
    up: Vec<f32>,
    /// `silu(gate) * up`, as inputs.
    hidden: InputBuffer,
    /// Output rows of the choices.
    places: Vec<usize>,
    pieces: Vec<Piece>,
    parts: Vec<PartOfRoom>,
    taken: Vec<bool>,
}

/// The most rows of an expert that are computed together: enough that decoding its weights again for the next costs
/// little, and room for them is bounded whatever the pass.
const MOST_ROWS: usize = 256;

/// Some choices of an expert: at most [`MOST_ROWS`].
#[derive(Clone, Copy)]
struct Piece {
    expert: usize,
    /// Its first choice.
    first: usize,
}

/// Cuts the choices of a group into pieces.
fn cut(group: &[Expert<'_>], pieces: &mut Vec<Piece>) {
    pieces.clear();
    for (expert, weights) in group.iter().enumerate() {
        for first in (0..weights.choices.len()).step_by(MOST_ROWS) {
            pieces.push(Piece { expert, first });
        }
    }
}

/// Where a piece's rows lie in a room.
#[derive(Clone, Copy, Default)]
struct PartOfRoom {
    /// Its first choice.
    choice: usize,
    x: usize,
    hidden: usize,
}

struct Job<'a> {
    cpu: &'a Cpu,
    group: &'a [Expert<'a>],
    pieces: &'a [Piece],
    x: &'a [f32],
    top_k: usize,
    ff: usize,
    width: usize,
    out: Out<'a>,
    hidden: Option<DisjointMut<'a, f32>>,
}

impl<'a> Job<'a> {
    /// An expert with the choices of a piece.
    fn piece(&self, piece: &Piece) -> Expert<'a> {
        let expert = self.group[piece.expert];
        Expert { choices: &expert.choices[piece.first..expert.choices.len().min(piece.first + MOST_ROWS)], ..expert }
    }

    /// Each thread takes whole pieces: their rows stay in its cache.
    fn by_expert(&self) {
        let &Self { cpu, pieces, ff, width, out, .. } = self;
        let products = cpu.products();
        cpu.pool.run(pieces.len(), false, Scratch::of_thread, |scratch, i| {
            let Scratch { panel, expert: room, .. } = &mut **scratch;
            let expert = &self.piece(&pieces[i]);
            let rows = expert.choices.len();
            self.make_room(rows, InputBuffer::len(products, rows, width), InputBuffer::len(products, rows, ff), room);
            self.gather(expert, PartOfRoom::default(), room);
            let x = room.x.view(products, 0, rows, width);
            let (gate, up) = (Out::new(&mut room.gate, ff), Out::new(&mut room.up, ff));
            for first in (0..ff).step_by(PANEL_ROWS) {
                // SAFETY: this thread's own rows, of this width.
                unsafe {
                    multiply_panel(cpu.isa(), &expert.gate, first, &x, gate, panel);
                    multiply_panel(cpu.isa(), &expert.up, first, &x, up, panel);
                }
            }
            silu_times(cpu.isa(), &mut room.gate[..rows * ff], &room.up[..rows * ff]);
            self.pass_on(expert, PartOfRoom::default(), room);
            let hidden = room.hidden.view(products, 0, rows, ff);
            let out = out.at_places(&room.places);
            for first in (0..width).step_by(PANEL_ROWS) {
                // SAFETY: `check_places`: nobody else has these rows of the output.
                unsafe { multiply_panel(cpu.isa(), &expert.down, first, &hidden, out, panel) };
            }
        });
    }

    /// All threads share the panels of every matrix: there are too few pieces to give each thread some.
    fn by_panel(&self, room: &mut Room) {
        let &Self { cpu, pieces, ff, width, out, .. } = self;
        let (isa, products) = (cpu.isa(), cpu.products());
        let mut end = PartOfRoom::default();
        room.parts.clear();
        for piece in pieces {
            room.parts.push(end);
            let rows = self.piece(piece).choices.len();
            end.choice += rows;
            end.x += InputBuffer::len(products, rows, width);
            end.hidden += InputBuffer::len(products, rows, ff);
        }
        self.make_room(end.choice, end.x, end.hidden, room);
        for (i, piece) in pieces.iter().enumerate() {
            self.gather(&self.piece(piece), room.parts[i], room);
        }

        let panels = ff.div_ceil(PANEL_ROWS);
        let (gate, up) = (Out::new(&mut room.gate, ff), Out::new(&mut room.up, ff));
        let (parts, inputs) = (&room.parts, &room.x);
        cpu.pool.run(pieces.len() * panels, false, Scratch::of_thread, |scratch, task| {
            let (expert, part) = (self.piece(&pieces[task / panels]), parts[task / panels]);
            let first = task % panels * PANEL_ROWS;
            let x = inputs.view(products, part.x, expert.choices.len(), width);
            // SAFETY: this task alone writes the columns of its panel in the rows of its expert.
            unsafe {
                multiply_panel(isa, &expert.gate, first, &x, gate.rows(part.choice), &mut scratch.panel);
                multiply_panel(isa, &expert.up, first, &x, up.rows(part.choice), &mut scratch.panel);
            }
        });

        let up = &room.up;
        cpu.for_rows(&mut room.gate[..end.choice * ff], ff, |row, gate| silu_times(isa, gate, &up[row * ff..][..ff]));
        for (i, piece) in pieces.iter().enumerate() {
            self.pass_on(&self.piece(piece), room.parts[i], room);
        }

        let panels = width.div_ceil(PANEL_ROWS);
        let (parts, hidden, places) = (&room.parts, &room.hidden, &room.places);
        cpu.pool.run(pieces.len() * panels, false, Scratch::of_thread, |scratch, task| {
            let (expert, part) = (self.piece(&pieces[task / panels]), parts[task / panels]);
            let rows = expert.choices.len();
            let hidden = hidden.view(products, part.hidden, rows, ff);
            let out = out.at_places(&places[part.choice..][..rows]);
            // SAFETY: this task alone writes the columns of its panel in the output rows of its expert, and
            // `check_places`: these are no other expert's.
            unsafe {
                multiply_panel(isa, &expert.down, task % panels * PANEL_ROWS, &hidden, out, &mut scratch.panel);
            }
        });
    }

    fn make_room(&self, choices: usize, x: usize, hidden: usize, room: &mut Room) {
        let products = self.cpu.products();
        room.x.reserve(products, x);
        room.hidden.reserve(products, hidden);
        grown(&mut room.gate, choices * self.ff, 0.0);
        grown(&mut room.up, choices * self.ff, 0.0);
        grown(&mut room.places, choices, 0);
    }

    /// Gathers the rows that chose an expert.
    fn gather(&self, expert: &Expert<'_>, part: PartOfRoom, room: &mut Room) {
        let &Self { x, width, .. } = self;
        let choices = expert.choices;
        room.x.write(self.cpu.products(), part.x, choices.len(), width, |i| {
            &x[choices[i].row as usize * width..][..width]
        });
        for (choice, place) in choices.iter().zip(&mut room.places[part.choice..]) {
            *place = choice.row as usize * self.top_k + choice.k as usize;
        }
    }

    /// Makes `silu(gate) * up` of an expert the inputs of its down product, and shows it to who wants to see it.
    fn pass_on(&self, expert: &Expert<'_>, part: PartOfRoom, room: &mut Room) {
        let (ff, rows) = (self.ff, expert.choices.len());
        let values = &room.gate[part.choice * ff..][..rows * ff];
        room.hidden.write(self.cpu.products(), part.hidden, rows, ff, |i| &values[i * ff..][..ff]);
        if let Some(hidden) = &self.hidden {
            for (place, row) in room.places[part.choice..].iter().zip(values.chunks_exact(ff)) {
                // SAFETY: `check_places`: no other choice has this place.
                unsafe { hidden.part(place * ff, ff) }.copy_from_slice(row);
            }
        }
    }
}

/// Panics unless each choice has one of the `places` for itself: threads will write them at the same time.
fn check_places(group: &[Expert<'_>], top_k: usize, places: usize, taken: &mut Vec<bool>) {
    taken.clear();
    taken.resize(places, false);
    for &Choice { row, k } in group.iter().flat_map(|e| e.choices) {
        let place = row as usize * top_k + k as usize;
        assert!((k as usize) < top_k && place < places, "choice {k} of row {row}: not among {places} of {top_k} a row");
        assert!(!std::mem::replace(&mut taken[place], true), "choice {k} of row {row} occurs twice");
    }
}

/// What a row's experts gave, of all rows of a strip.
pub struct Combined<'a> {
    /// Weights of the chosen experts, `[rows][top_k]`.
    pub weights: &'a [f32],
    /// Their outputs, `[rows][top_k][width]`.
    pub outputs: &'a [f32],
    /// Weight of the shared expert, `[rows]`.
    pub shared_gate: &'a [f32],
    /// Its output, `[rows][width]`.
    pub shared: &'a [f32],
}

/// `y = sum_k weights[k] * outputs[k] + shared_gate * shared` for each row, added in the order of `k`: whatever order the
/// experts were computed in does not show. `y` is `[rows][width]`.
pub fn combine(cpu: &Cpu, from: &Combined<'_>, y: &mut [f32]) {
    let rows = from.shared_gate.len();
    let (top_k, width) = (from.weights.len() / rows.max(1), y.len() / rows.max(1));
    let fits = y.len() == rows * width
        && from.weights.len() == rows * top_k
        && from.outputs.len() == rows * top_k * width
        && from.shared.len() == y.len();
    assert!(fits, "combine: shapes differ");
    let parts = cpu.parts_of_rows(rows, width);
    let columns = width.div_ceil(parts);
    let y = DisjointMut::new(y);
    cpu.for_ranges(rows * parts, 1, |units| {
        for unit in units {
            let (t, first) = (unit / parts, unit % parts * columns);
            let len = columns.min(width - first);
            // SAFETY: these columns of row `t` are this unit's alone.
            let y = unsafe { y.part(t * width + first, len) };
            let outputs = &from.outputs[t * top_k * width..][..top_k * width];
            let shared = &from.shared[t * width + first..][..len];
            combine_columns(cpu.isa(), &from.weights[t * top_k..][..top_k], outputs, first, y);
            add_scaled(cpu.isa(), y, from.shared_gate[t], shared);
        }
    });
}

dispatch! {
    fn combine_columns = combine_columns_body(weights: &[f32], outputs: &[f32], first: usize, y: &mut [f32])
}

#[inline(always)]
fn combine_columns_body<V: Lanes, const FUSED: bool>(weights: &[f32], outputs: &[f32], first: usize, y: &mut [f32]) {
    let width = outputs.len() / weights.len().max(1);
    y.fill(0.0);
    for (k, weight) in weights.iter().enumerate() {
        for (y, v) in y.iter_mut().zip(&outputs[k * width + first..]) {
            *y = add_product::<FUSED>(*y, *weight, *v);
        }
    }
}
