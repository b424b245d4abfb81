//! Routed experts: for each expert the rows that chose it are gathered, then gate and up, silu, down (spec 6.4).

use crate::Cpu;
use crate::hyper::add_scaled;
use crate::math::silu_times;
use crate::matmul::{Matrix, matmul_here, panel_len};
use crate::pool::DisjointMut;
use crate::vector::{Lanes, add_product, dispatch};

/// One expert's weights and the rows that chose it.
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
/// When a choice occurs twice, or is not one of the `top_k` of a row.
pub fn experts(cpu: &Cpu, group: &[Expert<'_>], x: &[f32], outputs: &mut Outputs<'_>) {
    let Some(first) = group.first() else { return };
    let (ff, width) = (first.gate.rows(), first.gate.cols());
    let top_k = outputs.top_k;
    check_places(group, top_k, outputs.out.len() / width);
    let out = DisjointMut::new(outputs.out);
    let hidden = outputs.hidden.as_deref_mut().map(DisjointMut::new);

    let most = group.iter().map(|e| e.choices.len()).max().unwrap_or(0);
    let scratch = || Scratch {
        x: vec![0.0; most * width],
        gate: vec![0.0; most * ff],
        up: vec![0.0; most * ff],
        down: vec![0.0; most * width],
        panel: vec![0.0; panel_len(width.max(ff))],
    };
    cpu.pool.run(group.len(), false, scratch, |s: &mut Scratch, task| {
        let Expert { gate, up, down, choices } = &group[task];
        let rows = choices.len();
        for (choice, row) in choices.iter().zip(s.x.chunks_exact_mut(width)) {
            row.copy_from_slice(&x[choice.row as usize * width..][..width]);
        }
        let (x, g, u) = (&s.x[..rows * width], &mut s.gate[..rows * ff], &mut s.up[..rows * ff]);
        matmul_here(cpu.isa(), gate, x, g, &mut s.panel);
        matmul_here(cpu.isa(), up, x, u, &mut s.panel);
        silu_times(cpu.isa(), g, u);
        let d = &mut s.down[..rows * width];
        matmul_here(cpu.isa(), down, g, d, &mut s.panel);
        for (i, choice) in choices.iter().enumerate() {
            let at = choice.row as usize * top_k + choice.k as usize;
            // SAFETY: `check_places`: no other choice has row `at`.
            unsafe { out.part(at * width, width) }.copy_from_slice(&d[i * width..][..width]);
            if let Some(hidden) = &hidden {
                // SAFETY: as above.
                unsafe { hidden.part(at * ff, ff) }.copy_from_slice(&g[i * ff..][..ff]);
            }
        }
    });
}

struct Scratch {
    x: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    down: Vec<f32>,
    panel: Vec<f32>,
}

/// Panics unless each choice has one of the `places` for itself: threads will write them at the same time.
fn check_places(group: &[Expert<'_>], top_k: usize, places: usize) {
    let mut taken = vec![false; places];
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
