//! Products in bfloat16, of dots and of tiles, against scalar models of the instructions and double precision. Tiles are
//! tested where the processor has them, and with the feature `emulated-amx`.

use strata_gguf::TensorType;
use strata_kernels::matmul::matmul;
use strata_kernels::{Cpu, Isa, bfloat16};

use crate::reference::{Random, THREADS, Weights, assert_close, bits, fast_isas, poison};

fn rounded(values: &[f32]) -> Vec<f32> {
    values.iter().map(|v| bfloat16::to_f32(bfloat16::round(*v))).collect()
}

/// The model of an instruction set's products, of values that are bfloat16 already.
fn model(isa: Isa, w: &[f32], x: &[f32]) -> f32 {
    match isa {
        Isa::Amx => dot_in_tiles(w, x),
        _ => dot_in_pairs(w, x),
    }
}

/// VDPBF16PS: sixteen sums; sum `l` takes the pairs `l`, `l + 16`, ..., of each pair the second product first, with one
/// rounding a product (Intel SDM, volume 2). Then folded by halves.
fn dot_in_pairs(w: &[f32], x: &[f32]) -> f32 {
    let mut sums = vec![0.0f32; 16];
    for (i, (w, x)) in w.chunks(2).zip(x.chunks(2)).enumerate() {
        let sum = &mut sums[i % 16];
        for (w, x) in w.iter().zip(x).rev() {
            *sum = w.mul_add(*x, *sum);
        }
    }
    while sums.len() > 1 {
        let upper = sums.split_off(sums.len() / 2);
        sums.iter_mut().zip(upper).for_each(|(a, b)| *a += b);
    }
    sums[0]
}

/// TDPBF16PS over blocks of 32 columns (Intel SDM, volume 2): products of even columns and of odd ones are summed apart
/// with one rounding a step, the two sums added, and that added to the result.
fn dot_in_tiles(w: &[f32], x: &[f32]) -> f32 {
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

fn product(cpu: &Cpu, w: &Weights, x: &[f32]) -> Vec<f32> {
    let mut y = poison(x.len() / w.cols * w.rows);
    matmul(cpu, &w.matrix(), x, &mut y);
    y
}

/// Types, and numbers of columns that they can have: whole lines, parts of one, single values.
fn types() -> impl Iterator<Item = (TensorType, Vec<usize>)> {
    TensorType::ALL.iter().map(|ty| match ty.block_weights() {
        1 => (*ty, vec![1, 31, 32, 33, 40, 101, 640]),
        block => (*ty, vec![block, 3 * block]),
    })
}

#[test]
fn products_are_the_models_bits_and_near_the_double_reference_for_every_type() {
    let mut random = Random::new(20);
    for isa in fast_isas() {
        let cpu = Cpu::fast(isa, 1).unwrap();
        for (ty, all_cols) in types() {
            for cols in all_cols {
                for (weight_rows, rows) in [(1, 1), (5, 7), (16, 2), (37, 16), (70, 21)] {
                    let scale = [1.0, 0.37][random.below(2)];
                    let w = Weights::random(&mut random, ty, weight_rows, cols, scale);
                    let x = random.floats(rows * cols);
                    let y = product(&cpu, &w, &x);
                    for (x, y) in x.chunks(cols).zip(y.chunks(weight_rows)) {
                        check_row(isa, &w, &rounded(x), y);
                    }
                }
            }
        }
    }
}

fn check_row(isa: Isa, w: &Weights, x: &[f32], y: &[f32]) {
    for (n, y) in y.iter().enumerate() {
        let what = format!("{isa}: weight row {n} of {} x {} {}", w.rows, w.cols, w.ty);
        let weights = rounded(w.row(n));
        let want = model(isa, &weights, x) * w.scale;
        assert_eq!(y.to_bits(), want.to_bits(), "{what}: {y} {want}");

        let products = || weights.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
        let (sum, size) = (products().sum::<f64>(), products().map(f64::abs).sum::<f64>());
        // One rounding for each product of a sum, at most all of them; a few where sums meet, one for the scale.
        let tolerance = size * (w.cols as f64 + 6.0) * f64::from(f32::EPSILON) / 2.0 * f64::from(w.scale);
        assert_close(&[*y], &[sum * f64::from(w.scale)], tolerance, &what);
    }
}

#[test]
fn a_row_has_the_same_bytes_alone_and_in_any_batch_on_any_threads() {
    let mut random = Random::new(21);
    let shapes = [(TensorType::Q4_0, 150, 512), (TensorType::IQ2_XS, 37, 256), (TensorType::BF16, 70, 101)];
    for (ty, weight_rows, cols) in shapes {
        let w = Weights::random(&mut random, ty, weight_rows, cols, 1.5);
        let x = random.floats(300 * cols);
        for isa in fast_isas() {
            let alone = Cpu::fast(isa, 1).unwrap();
            let all = product(&alone, &w, &x);
            for (t, x) in x.chunks(cols).enumerate().step_by(if isa == Isa::Amx { 37 } else { 1 }) {
                assert_eq!(bits(&product(&alone, &w, x)), bits(&all[t * weight_rows..][..weight_rows]), "{isa}, {ty}");
            }
            for &threads in THREADS {
                let cpu = Cpu::fast(isa, threads).unwrap();
                for batch in [2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 33, 300] {
                    let got = product(&cpu, &w, &x[..batch * cols]);
                    assert_eq!(
                        bits(&got),
                        bits(&all[..batch * weight_rows]),
                        "{isa}, {threads} threads, {batch} rows, {ty}"
                    );
                }
            }
        }
    }
}

/// What the file has as bfloat16 may lie at any byte.
#[test]
fn weights_in_place_may_start_anywhere() {
    let mut random = Random::new(22);
    let mut w = Weights::random(&mut random, TensorType::BF16, 19, 64, 1.0);
    let x = random.floats(7 * 64);
    for isa in fast_isas() {
        let cpu = Cpu::fast(isa, 1).unwrap();
        let want = product(&cpu, &w, &x);
        for shift in [1, 2, 33] {
            let mut moved = vec![0xff; shift];
            moved.append(&mut w.bytes);
            let matrix = strata_kernels::matmul::Matrix::new(TensorType::BF16, 19, 64, 1.0, &moved[shift..]);
            let mut y = poison(want.len());
            matmul(&cpu, &matrix, &x, &mut y);
            assert_eq!(bits(&y), bits(&want), "{isa}, {shift} bytes on");
            w.bytes = moved.split_off(shift);
        }
    }
}

#[test]
fn rounding_is_to_nearest_even_and_flushes() {
    let cases = [
        (0x3f80_8000, 0x3f80), // half way, above an even one
        (0x3f81_8000, 0x3f82), // half way, above an odd one
        (0xbf81_8001, 0xbf82),
        (0x3f80_7fff, 0x3f80),
        (0x0000_0001, 0x0000), // subnormal
        (0x807f_ffff, 0x8000),
        (0x0080_0000, 0x0080), // the smallest normal number
        (0x7f7f_ffff, 0x7f80), // rounds to infinity
        (0x7f80_0000, 0x7f80),
        (0xff80_0000, 0xff80),
    ];
    for (from, to) in cases {
        assert_eq!(bfloat16::round(f32::from_bits(from)), to, "{from:08x}");
    }
    assert!(
        bfloat16::to_f32(bfloat16::round(f32::from_bits(0x7f80_0001))).is_nan(),
        "a NaN whose upper half is infinity"
    );

    // And the vector code: one weight of 1 against each.
    let one = Weights {
        ty: TensorType::F32,
        rows: 1,
        cols: 1,
        scale: 1.0,
        bytes: 1f32.to_le_bytes().into(),
        decoded: vec![1.0],
    };
    let x: Vec<f32> = cases.iter().map(|(from, _)| f32::from_bits(*from)).collect();
    for isa in fast_isas() {
        for (y, (from, to)) in product(&Cpu::fast(isa, 1).unwrap(), &one, &x).iter().zip(cases) {
            let want = bfloat16::to_f32(to);
            // Sums begin with +0, so that a zero's sign is lost.
            assert_eq!((y + 0.0).to_bits(), (want + 0.0).to_bits(), "{isa}: {from:08x}");
        }
    }
}
