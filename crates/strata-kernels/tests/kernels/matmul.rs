//! Products with matrices of every type.

use strata_gguf::TensorType;
use strata_kernels::inputs::InputBuffer;
use strata_kernels::matmul::{Matrix, matmul, matmul_of};
use strata_kernels::{Cpu, Isa, dot};

use crate::reference::{Random, THREADS, Weights, assert_close, bits, cpus, dot_in_lanes, is_fused, isas, poison};

/// Input rows of a batch: around the tile of four rows, and more.
const BATCHES: &[usize] = if cfg!(miri) { &[0, 1, 4, 6] } else { &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 64] };
/// Weight rows: around the panel of sixteen rows and the tile of four.
const WEIGHT_ROWS: &[usize] = if cfg!(miri) { &[19] } else { &[1, 3, 16, 17, 37] };

/// Types, and numbers of columns that they can have.
fn types() -> impl Iterator<Item = (TensorType, Vec<usize>)> {
    let types = if cfg!(miri) { &[TensorType::F32, TensorType::Q8_0] } else { TensorType::ALL };
    types.iter().map(|ty| match ty.block_weights() {
        1 if cfg!(miri) => (*ty, vec![37]),
        1 => (*ty, vec![1, 15, 16, 17, 101, 512]),
        block if cfg!(miri) => (*ty, vec![block]),
        block => (*ty, vec![block, 3 * block]),
    })
}

/// Products of `x` into poisoned memory.
fn product(cpu: &Cpu, w: &Matrix<'_>, x: &[f32]) -> Vec<f32> {
    let mut y = poison(x.len() / w.cols() * w.rows());
    matmul(cpu, w, x, &mut y);
    y
}

#[test]
fn products_of_a_known_matrix() {
    let bytes: Vec<u8> = [1f32, 2.0, 3.0, -4.0, 0.5, 0.25].iter().flat_map(|v| v.to_le_bytes()).collect();
    for cpu in cpus() {
        let y = product(&cpu, &Matrix::new(TensorType::F32, 2, 3, 2.0, &bytes), &[1.0, 10.0, 100.0, 4.0, 2.0, 8.0]);
        assert_eq!(y, [642.0, 52.0, 64.0, -26.0]);
    }
}

#[test]
fn products_match_the_double_reference_for_every_type_and_size() {
    let mut random = Random::new(1);
    let rows = *BATCHES.last().unwrap();
    for (ty, all_cols) in types() {
        for (&cols, &weight_rows) in all_cols.iter().flat_map(|cols| WEIGHT_ROWS.iter().map(move |n| (cols, n))) {
            let scale = [1.0, 0.37][random.below(2)];
            let w = Weights::random(&mut random, ty, weight_rows, cols, scale);
            let x = random.floats(rows * cols);
            for isa in isas() {
                let y = product(&Cpu::precise(isa, 1).unwrap(), &w.matrix(), &x);
                for (x, y) in x.chunks(cols).zip(y.chunks(weight_rows)) {
                    check_row(isa, &w, x, y);
                }
            }
        }
    }
}

/// Each value is the very bits of the promised arithmetic, and within its worst-case error of the true value.
fn check_row(isa: Isa, w: &Weights, x: &[f32], y: &[f32]) {
    for (n, y) in y.iter().enumerate() {
        let what = format!("{isa}: weight row {n} of {} x {} {}", w.rows, w.cols, w.ty);
        let want = dot_in_lanes(is_fused(isa), w.row(n), x) * w.scale;
        assert_eq!(y.to_bits(), want.to_bits(), "{what}: {y} {want}");

        let products = || w.row(n).iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
        let (sum, size) = (products().sum::<f64>(), products().map(f64::abs).sum::<f64>());
        // Two roundings for each of a lane's products, four when lanes are folded, one for the scale.
        let roundings = (2 * w.cols.div_ceil(16) + 4 + 1) as f64;
        let tolerance = size * roundings * f64::from(f32::EPSILON) / 2.0 * f64::from(w.scale);
        assert_close(&[*y], &[sum * f64::from(w.scale)], tolerance, &what);
    }
}

#[test]
fn a_row_has_the_same_bytes_alone_and_in_any_batch_on_any_threads() {
    let mut random = Random::new(2);
    let rows = *BATCHES.last().unwrap();
    // The first is large enough for all threads, even with one row.
    let shapes = [(TensorType::Q4_0, 150, 512), (TensorType::IQ2_XS, 37, 256), (TensorType::F32, 33, 101)];
    for (ty, weight_rows, cols) in if cfg!(miri) { &shapes[2..] } else { &shapes } {
        let w = Weights::random(&mut random, *ty, *weight_rows, *cols, 1.5);
        let x = random.floats(rows * cols);
        for isa in isas() {
            let alone = Cpu::precise(isa, 1).unwrap();
            let want: Vec<f32> = x.chunks(*cols).flat_map(|x| product(&alone, &w.matrix(), x)).collect();
            for &threads in THREADS {
                let cpu = Cpu::precise(isa, threads).unwrap();
                for &batch in BATCHES.iter().filter(|batch| **batch > 0) {
                    let got: Vec<f32> = x.chunks(batch * cols).flat_map(|x| product(&cpu, &w.matrix(), x)).collect();
                    assert_eq!(bits(&got), bits(&want), "{isa}, {threads} threads, batches of {batch}, {ty}");
                }
                for &batch in BATCHES {
                    let got = product(&cpu, &w.matrix(), &x[..batch * cols]);
                    assert_eq!(
                        bits(&got),
                        bits(&want[..batch * weight_rows]),
                        "{isa}, {threads} threads, {batch} rows"
                    );
                }
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "sixty-four threads take long there")]
fn sixty_four_threads_give_the_same_bytes() {
    let mut random = Random::new(5);
    let w = Weights::random(&mut random, TensorType::Q4_0, 1200, 256, 1.0);
    let x = random.floats(9 * 256);
    for isa in isas() {
        for cpu in [Cpu::precise, Cpu::fast] {
            let want = product(&cpu(isa, 1).unwrap(), &w.matrix(), &x);
            let many = cpu(isa, 64).unwrap();
            assert_eq!(many.threads(), 64);
            for _ in 0..20 {
                assert_eq!(bits(&product(&many, &w.matrix(), &x)), bits(&want), "{isa} {}", many.arithmetic());
            }
        }
    }
}

#[test]
fn dot_has_the_promised_arithmetic_at_every_length_and_alignment() {
    let mut random = Random::new(3);
    let (a, b) = (random.floats(150), random.floats(150));
    for len in (0..130).step_by(if cfg!(miri) { 13 } else { 1 }) {
        let (a, b) = (&a[len % 7..][..len], &b[len % 5..][..len]);
        for isa in isas() {
            let want = dot_in_lanes(is_fused(isa), a, b);
            assert_eq!(dot(isa, a, b).to_bits(), want.to_bits(), "{isa}, length {len}");
        }
    }
}

#[test]
fn rows_decode_from_the_middle_of_a_matrix() {
    let mut random = Random::new(4);
    for (ty, all_cols) in types() {
        let w = Weights::random(&mut random, ty, 7, all_cols[0], 3.0);
        for (first, count) in [(0, 7), (2, 3), (6, 1), (4, 0)] {
            for isa in isas() {
                let mut out = poison(count * w.cols);
                w.matrix().decode(isa, first, &mut out);
                let want = &w.decoded[first * w.cols..][..count * w.cols];
                assert_eq!(bits(&out), bits(want), "{ty} {isa}, {count} from {first}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "bytes of a 2 x 32 matrix of Q8_0")]
fn a_matrix_of_too_few_bytes_is_refused() {
    Matrix::new(TensorType::Q8_0, 2, 32, 1.0, &[0; 67]);
}

#[test]
#[should_panic(expected = "a whole number of blocks")]
fn a_matrix_of_partial_blocks_is_refused() {
    Matrix::new(TensorType::Q8_0, 1, 33, 1.0, &[0; 34]);
}

#[test]
#[should_panic(expected = "inputs of another arithmetic")]
fn inputs_that_were_rounded_for_another_arithmetic_are_refused() {
    let isa = Isa::best();
    let (precise, fast) = (Cpu::precise(isa, 1).unwrap(), Cpu::fast(isa, 1).unwrap());
    assert_ne!(precise.arithmetic(), fast.arithmetic(), "inputs of another arithmetic do not exist on this machine");
    let w = Matrix::new(TensorType::F32, 2, 3, 1.0, &[0; 24]);
    let mut buffer = InputBuffer::default();
    matmul_of(&precise, &w, &buffer.inputs(&fast, &[0.0; 3], 3), &mut [0.0; 2]);
}

#[test]
fn wrong_shapes_are_refused() {
    let cpu = Cpu::precise(Isa::best(), 1).unwrap();
    let w = Matrix::new(TensorType::F32, 2, 3, 1.0, &[0; 24]);
    for (x, y) in [(6, 3), (6, 5), (5, 2), (5, 4), (0, 2)] {
        let run = || matmul(&cpu, &w, &vec![0.0; x], &mut vec![0.0; y]);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err(), "{x} inputs, {y} outputs");
    }
}
