//! Products in AMX tiles. Without the processor, the feature `emulated-amx` runs them; with neither, nothing is tested.

#![allow(unsafe_code)] // products are written through a pointer, as by threads that share an output

use std::panic::{AssertUnwindSafe, catch_unwind};

use strata_kernels::Isa;
use strata_kernels::amx::{COLUMN_BLOCK, Line, multiply, pack, packed_lines};

use crate::reference::{Random, bits, poison, poison_at};

const COLS: [usize; 9] = [1, 2, 31, 32, 40, 64, 96, 640, 2560];
const PANEL_ROWS: [usize; 12] = [1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 48, 70];
const ROWS: [usize; 10] = [1, 2, 5, 15, 16, 17, 31, 32, 33, 300];

/// The nearest bfloat16, by comparing the neighbours in double precision; subnormal numbers are zero.
fn rounded(value: f32) -> f32 {
    let below = f32::from_bits(value.to_bits() & 0xffff_0000); // towards zero
    let above = f32::from_bits(below.to_bits() + 0x1_0000);
    let (to_below, to_above) = (f64::from(value - below).abs(), (f64::from(above) - f64::from(value)).abs());
    let below_is_even = below.to_bits() & 0x1_0000 == 0;
    let nearest = if to_below < to_above || (to_below == to_above && below_is_even) { below } else { above };
    if value.is_subnormal() {
        return 0.0f32.copysign(value);
    }
    if value.is_infinite() { value } else { nearest }
}

/// Weights and inputs that are bfloat16 already, and what the kernels take of them.
struct Case {
    cols: usize,
    panel_rows: usize,
    weights: Vec<f32>,
    inputs: Vec<f32>,
    panel: Vec<u16>,
    packed: Vec<Line>,
}

impl Case {
    fn new(cols: usize, weights: Vec<f32>, inputs: Vec<f32>) -> Self {
        let padded = cols.next_multiple_of(COLUMN_BLOCK);
        let panel_rows = weights.len() / cols;
        let mut panel = vec![0; panel_rows * padded];
        for (padded, row) in panel.chunks_exact_mut(padded).zip(weights.chunks_exact(cols)) {
            padded.iter_mut().zip(row).for_each(|(bits, weight)| *bits = (weight.to_bits() >> 16) as u16);
        }
        let packed = packed(&inputs, cols);
        Self { cols, panel_rows, weights, inputs, panel, packed }
    }

    fn random(random: &mut Random, cols: usize, panel_rows: usize, rows: usize) -> Self {
        let mut floats = |len| random.floats(len).into_iter().map(rounded).collect();
        Self::new(cols, floats(panel_rows * cols), floats(rows * cols))
    }

    fn rows(&self) -> usize {
        self.inputs.len() / self.cols
    }

    /// The product `[rows][panel_rows]`. It is written into a wider, poisoned output, which must keep its poison.
    fn product(&self, scale: f32) -> Vec<f32> {
        let (rows, first, stride) = (self.rows(), 3, self.panel_rows + 8);
        let mut out = poison(rows * stride);
        // SAFETY: `panel_rows` values from the column `first` on are in each row of `out`.
        unsafe {
            multiply(&self.panel, self.panel_rows, &self.packed, rows, scale, out.as_mut_ptr().add(first), stride);
        }
        let mut product = Vec::new();
        for (at, value) in out.into_iter().enumerate() {
            if (first..first + self.panel_rows).contains(&(at % stride)) {
                product.push(value);
            } else {
                assert_eq!(value.to_bits(), poison_at(at).to_bits(), "written at {at}, row of {stride}");
            }
        }
        product
    }

    /// Calls `f(row of inputs, row of weights)` for every output in order.
    fn for_pairs(&self, mut f: impl FnMut(usize, &[f32], &[f32])) {
        let mut at = 0;
        for x in self.inputs.chunks_exact(self.cols) {
            for w in self.weights.chunks_exact(self.cols) {
                f(at, x, w);
                at += 1;
            }
        }
    }
}

fn packed(x: &[f32], cols: usize) -> Vec<Line> {
    let mut packed = vec![Line([0xffff; 32]); packed_lines(x.len() / cols, cols)];
    pack(x, cols, &mut packed);
    packed
}

/// The arithmetic of TDPBF16PS over blocks of 32 columns (Intel SDM, volume 2): products of even columns and of odd ones
/// are summed apart with one rounding a step, the two sums added, and that added to the result.
fn dot_in_tiles(x: &[f32], w: &[f32]) -> f32 {
    let mut result = 0.0;
    for (x, w) in x.chunks(32).zip(w.chunks(32)) {
        let mut sums = [0.0f32; 2];
        for (k, (x, w)) in x.iter().zip(w).enumerate() {
            sums[k % 2] = x.mul_add(*w, sums[k % 2]);
        }
        result += sums[0] + sums[1];
    }
    result
}

fn available() -> bool {
    let amx = Isa::Amx.is_available();
    if cfg!(all(feature = "emulated-amx", target_os = "linux")) {
        let emulator_runs = Isa::Avx512.is_available() && is_x86_feature_detected!("avx512bf16");
        assert_eq!(amx, emulator_runs);
    }
    amx
}

#[test]
fn inputs_are_rounded_and_packed_in_pairs_of_columns() {
    if !available() {
        return;
    }
    let mut random = Random::new(1);
    for cols in COLS {
        for rows in ROWS {
            let mut x = random.floats(rows * cols);
            // Equally far from two neighbours, above an even and above an odd one; subnormal; the smallest normal number.
            let special =
                [0x3f80_8000, 0x3f81_8000, 0xbf81_8000, 1, 0x807f_ffff, 0x0080_0000, 0x7f80_0000, 0x8000_0000];
            for (x, bits) in x.iter_mut().skip(random.below(3)).step_by(5).zip(special) {
                *x = f32::from_bits(bits);
            }
            let packed = packed(&x, cols);
            let pairs = cols.next_multiple_of(COLUMN_BLOCK) / 2;
            assert_eq!(packed.len(), rows.div_ceil(16) * pairs);
            for (at, line) in packed.iter().enumerate() {
                for (place, bits) in line.0.iter().enumerate() {
                    let (row, col) = (at / pairs * 16 + place / 2, at % pairs * 2 + place % 2);
                    let inside = row < rows && col < cols;
                    let want = if inside { (rounded(x[row * cols + col]).to_bits() >> 16) as u16 } else { 0 };
                    assert_eq!(*bits, want, "row {row} of {rows}, column {col} of {cols}");
                }
            }
        }
    }
}

#[test]
fn not_a_number_stays_one_when_packed() {
    if available() {
        let packed = packed(&[f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)], 2);
        assert!(packed[0].0[..2].iter().all(|bits| f32::from_bits(u32::from(*bits) << 16).is_nan()));
    }
}

#[test]
fn small_integers_are_multiplied_exactly() {
    if !available() {
        return;
    }
    let mut random = Random::new(2);
    for cols in COLS {
        let mut integers = |len| -> Vec<f32> { (0..len).map(|_| random.below(17) as f32 - 8.0).collect() };
        let case = Case::new(cols, integers(35 * cols), integers(18 * cols));
        let product = case.product(0.5);
        case.for_pairs(|at, x, w| {
            let want: i32 = x.iter().zip(w).map(|(x, w)| *x as i32 * *w as i32).sum();
            assert_eq!(product[at].to_bits(), (want as f32 * 0.5).to_bits(), "{cols} columns, output {at}");
        });
    }
}

#[test]
fn products_have_the_arithmetic_of_tiles_and_are_close_to_the_real_ones() {
    if !available() {
        return;
    }
    let mut random = Random::new(3);
    for cols in COLS {
        for panel_rows in PANEL_ROWS {
            for rows in [1, 5, 16, 33] {
                let case = Case::random(&mut random, cols, panel_rows, rows);
                let product = case.product(1.0);
                // Roundings that a product goes through, each with a relative error of at most 2^-24.
                let roundings = (16 + 1 + cols.div_ceil(COLUMN_BLOCK)) as f64 * f64::from(f32::EPSILON) / 2.0;
                case.for_pairs(|at, x, w| {
                    let what = format!("output {at} of {panel_rows} x {cols} times {rows}: {}", product[at]);
                    assert_eq!(product[at].to_bits(), dot_in_tiles(x, w).to_bits(), "{what}");
                    let products = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                    let (want, sizes) = products.fold((0.0, 0.0), |(sum, sizes), p| (sum + p, sizes + p.abs()));
                    let error = (f64::from(product[at]) - want).abs();
                    assert!(error <= roundings / (1.0 - roundings) * sizes, "{what}, want {want}");
                });
            }
        }
    }
}

#[test]
fn other_rows_and_other_weights_do_not_show() {
    if !available() {
        return;
    }
    let mut random = Random::new(4);
    for (cols, panel_rows) in [(32, 16), (40, 7), (96, 32), (640, 40), (2560, 16)] {
        let all = Case::random(&mut random, cols, panel_rows, *ROWS.last().unwrap());
        let product = all.product(1.5);
        for rows in ROWS {
            // The last rows, so that they are at different places of their group.
            let part = Case::new(cols, all.weights.clone(), all.inputs[all.inputs.len() - rows * cols..].to_vec());
            assert_eq!(bits(&part.product(1.5)), bits(&product[product.len() - rows * panel_rows..]), "{rows} rows");
        }
        for (row, want) in product.chunks_exact(panel_rows).enumerate().step_by(37) {
            let n = row % panel_rows;
            let (w, x) = (&all.weights[n * cols..][..cols], &all.inputs[row * cols..][..cols]);
            assert_eq!(Case::new(cols, w.to_vec(), x.to_vec()).product(1.5)[0].to_bits(), want[n].to_bits(), "{row}");
        }
    }
}

#[test]
fn subnormal_numbers_are_zeros() {
    if !available() {
        return;
    }
    let tiny = f32::from_bits(0x007f_0000);
    assert!(tiny.is_subnormal());
    let product = |w, x| Case::new(1, vec![w], vec![x]).product(1.0)[0];
    assert_eq!(product(tiny, 1e30), 0.0, "weight");
    let panel_of = |w: f32, x: f32| {
        let mut case = Case::new(1, vec![w], vec![1.0]);
        case.packed[0].0[0] = (x.to_bits() >> 16) as u16;
        case.product(1.0)[0]
    };
    assert_eq!(panel_of(rounded(1e30), tiny), 0.0, "input");
    assert_eq!(product(f32::MIN_POSITIVE, 0.5), 0.0, "result");
    assert_eq!(product(f32::MIN_POSITIVE, 1.0), f32::MIN_POSITIVE);
}

#[test]
fn threads_write_columns_of_one_output() {
    if !available() {
        return;
    }
    let mut random = Random::new(5);
    let (cols, panel_rows, panels, rows) = (96, 20, 6, 33);
    let cases: Vec<Case> = (0..panels).map(|_| Case::random(&mut random, cols, panel_rows, rows)).collect();
    let mut out = poison(rows * panels * panel_rows);
    let address = out.as_mut_ptr() as usize;
    std::thread::scope(|scope| {
        for (i, case) in cases.iter().enumerate() {
            scope.spawn(move || {
                let at = (address as *mut f32).wrapping_add(i * panel_rows);
                for _ in 0..20 {
                    // SAFETY: this thread alone writes these columns, which are in every row.
                    unsafe { multiply(&case.panel, panel_rows, &case.packed, rows, 1.0, at, panels * panel_rows) };
                }
            });
        }
    });
    let products: Vec<Vec<f32>> = cases.iter().map(|case| case.product(1.0)).collect();
    for (at, row) in out.chunks_exact(panel_rows).enumerate() {
        let want = &products[at % panels][at / panels * panel_rows..][..panel_rows];
        assert_eq!(bits(row), bits(want), "row {}, panel {}", at / panels, at % panels);
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    if !available() {
        return;
    }
    let panics = |f: &dyn Fn()| catch_unwind(AssertUnwindSafe(f)).is_err();
    let lines = |n| vec![Line::ZERO; n];
    assert!(panics(&|| pack(&[0.0; 65], 32, &mut lines(16))));
    assert!(panics(&|| pack(&[0.0; 64], 32, &mut lines(15))));
    assert!(panics(&|| pack(&[0.0; 33 * 2], 33, &mut lines(16))));
    let mut out = [0.0; 64];
    let out = out.as_mut_ptr() as usize;
    let multiplied = |weights, panel_rows, count, rows| {
        // SAFETY: `out` has room for what is asked for.
        unsafe { multiply(&vec![0; weights], panel_rows, &lines(count), rows, 1.0, out as *mut f32, 2) };
    };
    assert!(!panics(&|| multiplied(64, 2, 16, 16)));
    assert!(!panics(&|| multiplied(64, 2, 0, 0)));
    assert!(panics(&|| multiplied(80, 2, 32, 16)), "columns are not a multiple of 32");
    assert!(panics(&|| multiplied(65, 2, 16, 16)));
    assert!(panics(&|| multiplied(0, 2, 0, 16)));
    assert!(panics(&|| multiplied(64, 2, 16, 17)));
}

#[test]
fn without_the_instructions_nothing_runs() {
    if !available() {
        assert!(catch_unwind(|| pack(&[0.0; 32], 32, &mut [Line::ZERO; 16])).is_err());
        // SAFETY: it panics before it writes.
        let run = || unsafe { multiply(&[0; 32], 1, &[Line::ZERO; 16], 1, 1.0, std::ptr::dangling_mut(), 1) };
        assert!(catch_unwind(run).is_err());
    }
}
