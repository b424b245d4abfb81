//! The recurrence token by token: the same bytes however a prompt was cut.
//!
//! Columns of the state do not touch each other: given keys, queries and gates, each is a recurrence of its own. So a
//! block of columns that fits the first-level cache is taken through all tokens of the strip, and blocks go to threads.
//! One step over the block writes the update of a token, reads the token's output, and reads what the next token finds
//! under its key; nothing is folded across columns, so the vector width does not show.

use super::state::{COLUMNS, State, VECTORS};
use super::{Head, Strip};
use crate::Cpu;
use crate::math::exp;
use crate::pool::DisjointMut;
use crate::vector::{LANES, Lanes, dispatch};

/// `M <- exp(g) M; M <- M + k (beta (v - M^T k))^T; o = M^T q` for each token of each head.
///
/// `out` is `[value_heads][tokens][width]`.
pub fn recurrent(cpu: &Cpu, strip: &Strip<'_>, state: &mut State, out: &mut [f32]) {
    let sizes @ (tokens, _, width) = strip.sizes(state, out);
    let (blocks, block_len) = (state.blocks(), state.block_len());
    let (state, out) = (DisjointMut::new(state.values_mut()), DisjointMut::new(out));
    cpu.pool.run(
        strip.value_heads * blocks,
        false,
        || (),
        |(), unit| {
            let (h, first) = (unit / blocks, unit % blocks * COLUMNS);
            let head = strip.head(h, sizes);
            // SAFETY: this block of the state is this task's alone.
            let m = unsafe { state.part(unit * block_len, block_len) };
            let columns = Columns { first, count: COLUMNS.min(width - first), start: h * tokens * width, out: &out };
            run_block(cpu.isa(), &head, m, &columns);
        },
    );
}

/// Columns `first .. first + count` of the values and outputs of a head, whose outputs begin at `start`. One task has them
/// to itself.
struct Columns<'a> {
    first: usize,
    count: usize,
    start: usize,
    out: &'a DisjointMut<'a, f32>,
}

dispatch! {
    /// Takes a block of the state, `[keys][COLUMNS]`, through the tokens of its head.
    fn run_block = run_block_body(head: &Head<'_>, m: &mut [f32], columns: &Columns<'_>)
}

#[inline(always)]
fn run_block_body<V: Lanes, const FUSED: bool>(head: &Head<'_>, m: &mut [f32], columns: &Columns<'_>) {
    let &Columns { first, count, .. } = columns;
    assert_eq!(m.len(), head.keys * COLUMNS, "a block of the state");
    let mut decay = exp(head.log_decay(0));
    // SAFETY: `m` is `[keys][COLUMNS]`, the key has `keys` values; `dispatch` vouches for the instructions.
    let mut found = unsafe { read::<V>(m, head.key(0)) };
    for t in 0..head.tokens {
        // What is new: beta (v - M^T k).
        let mut new = [0.0; COLUMNS];
        copy(&head.value(t)[first..][..count], &mut new[..count]);
        let beta = head.beta(t);
        for c in 0..COLUMNS {
            new[c] = beta * (new[c] - decay * found[c]);
        }
        // After the last token, what is read for the next is of no use.
        let next = (t + 1).min(head.tokens - 1);
        let mut out = [0.0; COLUMNS];
        // SAFETY: as for `read`; every vector has `keys` values.
        unsafe { step::<V>(m, decay, head.key(t), &new, head.query(t), head.key(next), &mut out, &mut found) };
        // SAFETY: the columns are this task's alone, and the part is dropped at once.
        let place = unsafe { columns.out.part(columns.start + t * head.width + first, count) };
        copy(&out[..count], place);
        decay = exp(head.log_decay(next));
    }
}

/// Copies a row of at most [`COLUMNS`] columns; of a full one the length is known, which saves the call.
#[inline(always)]
fn copy(from: &[f32], to: &mut [f32]) {
    match (<&[f32; COLUMNS]>::try_from(from), <&mut [f32; COLUMNS]>::try_from(&mut *to)) {
        (Ok(from), Ok(to)) => *to = *from,
        _ => to.copy_from_slice(from),
    }
}

/// `M^T k`.
///
/// # Safety
/// `m` is `[k.len()][COLUMNS]`; the processor must have the instructions of `V`.
#[inline(always)]
unsafe fn read<V: Lanes>(m: &[f32], k: &[f32]) -> [f32; COLUMNS] {
    let mut out = [0.0; COLUMNS];
    // SAFETY: row `i` of `m` has `COLUMNS` values, and so has `out`.
    unsafe {
        let mut sums = [V::zero(); VECTORS];
        for i in 0..k.len() {
            let k = V::splat(*k.get_unchecked(i));
            for c in 0..VECTORS {
                sums[c] = sums[c].add_product(V::load(m.as_ptr().add(i * COLUMNS + c * LANES)), k);
            }
        }
        for c in 0..VECTORS {
            sums[c].store(out.as_mut_ptr().add(c * LANES));
        }
    }
    out
}

/// `M <- decay M + k new^T`, `out = M^T q`, `found = M^T next_k`.
///
/// # Safety
/// `m` is `[k.len()][COLUMNS]`, `q` and `next_k` are as long as `k`; the processor must have the instructions of `V`.
#[allow(clippy::too_many_arguments)] // one recurrence step has that many parts
#[inline(always)]
unsafe fn step<V: Lanes>(
    m: &mut [f32],
    decay: f32,
    k: &[f32],
    new: &[f32; COLUMNS],
    q: &[f32],
    next_k: &[f32],
    out: &mut [f32; COLUMNS],
    found: &mut [f32; COLUMNS],
) {
    // SAFETY: row `i` of `m` has `COLUMNS` values, and so have `new`, `out` and `found`.
    unsafe {
        let decay = V::splat(decay);
        let mut fresh = [V::zero(); VECTORS];
        let (mut outs, mut founds) = (fresh, fresh);
        for c in 0..VECTORS {
            fresh[c] = V::load(new.as_ptr().add(c * LANES));
        }
        for i in 0..k.len() {
            let (k, q) = (V::splat(*k.get_unchecked(i)), V::splat(*q.get_unchecked(i)));
            let next_k = V::splat(*next_k.get_unchecked(i));
            for c in 0..VECTORS {
                let at = m.as_mut_ptr().add(i * COLUMNS + c * LANES);
                let m = V::load(at).times(decay).add_product(k, fresh[c]);
                m.store(at);
                outs[c] = outs[c].add_product(m, q);
                founds[c] = founds[c].add_product(m, next_k);
            }
        }
        for c in 0..VECTORS {
            outs[c].store(out.as_mut_ptr().add(c * LANES));
            founds[c].store(found.as_mut_ptr().add(c * LANES));
        }
    }
}
