//! Choosing instructions and threads, and running rows on them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use strata_kernels::{Cpu, Isa, UnavailableIsa, dot};

use crate::reference::{THREADS, isas};

fn cpus() -> impl Iterator<Item = Cpu> {
    THREADS.iter().map(|threads| Cpu::precise(Isa::Portable, *threads).unwrap())
}

fn panics(f: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

#[test]
fn only_available_instructions_are_run() {
    assert!(Isa::Portable.is_available() && Isa::best().is_available());
    for isa in Isa::ALL {
        let cpu = Cpu::precise(isa, 1);
        if isa.is_available() {
            assert_eq!(cpu.unwrap().isa(), isa);
            assert!(isa <= Isa::best());
        } else {
            assert_eq!(cpu.err(), Some(UnavailableIsa(isa)));
            assert!(panics(|| _ = dot(isa, &[1.0], &[1.0])), "{isa} kernel ran");
        }
    }
    let message = UnavailableIsa(Isa::Avx512).to_string();
    assert!(message.contains("`avx512`") && message.contains(Isa::best().name()), "{message}");
}

#[test]
fn threads_are_as_asked() {
    for &threads in THREADS {
        assert_eq!(Cpu::precise(Isa::Portable, threads).unwrap().threads(), threads);
    }
    if cfg!(not(miri)) {
        let all = std::thread::available_parallelism().unwrap().get();
        assert_eq!(Cpu::precise(Isa::Portable, 0).unwrap().threads(), all);
    }
}

#[test]
fn every_row_is_visited_once() {
    for cpu in cpus() {
        for (rows, width) in [(0, 3), (1, 1), (1, 7), (2, 5), (99, 1), (100, 3)] {
            let mut out = vec![0; rows * width];
            cpu.for_rows(&mut out, width, |i, row| {
                assert_eq!(row.len(), width);
                row.iter_mut().enumerate().for_each(|(j, v)| *v += i * width + j + 1);
            });
            assert!(out.iter().copied().eq(1..=rows * width), "{rows} x {width}");
        }
    }
}

#[test]
fn every_pair_of_rows_is_visited_once() {
    for cpu in cpus() {
        for (rows, a_width, b_width) in [(0, 2, 3), (1, 4, 1), (50, 1, 3), (37, 5, 2)] {
            let (mut a, mut b) = (vec![0usize; rows * a_width], vec![0u8; rows * b_width]);
            cpu.for_row_pairs((&mut a, a_width), (&mut b, b_width), |i, a, b| {
                assert_eq!((a.len(), b.len()), (a_width, b_width));
                a.iter_mut().for_each(|v| *v += i + 1);
                b.iter_mut().for_each(|v| *v += i as u8 + 1);
            });
            assert!(a.iter().enumerate().all(|(at, v)| *v == at / a_width + 1));
            assert!(b.iter().enumerate().all(|(at, v)| usize::from(*v) == at / b_width + 1));
        }
    }
}

#[test]
fn what_a_thread_keeps_is_made_at_most_once_a_thread() {
    for cpu in cpus() {
        let made = AtomicUsize::new(0);
        let mut out = vec![0; 1000];
        let init = || {
            made.fetch_add(1, Ordering::Relaxed);
            0
        };
        cpu.for_rows_with(&mut out, 2, init, |rows_before: &mut usize, _, row| {
            row[0] = *rows_before;
            *rows_before += 1;
        });
        let made = made.into_inner();
        assert!((1..=cpu.threads()).contains(&made), "{made} times on {} threads", cpu.threads());
        // Each value kept starts at 0 and counts the rows it sees, so there are as many zeros as values.
        assert_eq!(out.iter().step_by(2).filter(|v| **v == 0).count(), made);
    }
}

#[test]
fn rows_may_run_rows_of_their_own() {
    for cpu in cpus() {
        let mut out = vec![0; 12 * 10];
        cpu.for_rows(&mut out, 10, |i, row| cpu.for_rows(row, 1, |j, v| v[0] = i * 10 + j));
        assert!(out.iter().copied().eq(0..120));
    }
}

#[test]
fn sizes_that_are_not_whole_rows_are_refused() {
    for cpu in cpus() {
        assert!(panics(|| cpu.for_rows(&mut [0; 10], 3, |_, _| {})));
        assert!(panics(|| cpu.for_rows(&mut [0; 2], 3, |_, _| {})));
        assert!(panics(|| cpu.for_rows(&mut [0; 2], 0, |_, _| {})));
        assert!(panics(|| cpu.for_rows_with(&mut [0; 10], 4, || (), |(), _, _| {})));
        assert!(panics(|| cpu.for_row_pairs((&mut [0; 10], 3), (&mut [0; 3], 1), |_, _, _| {})));
        assert!(panics(|| cpu.for_row_pairs((&mut [0; 9], 3), (&mut [0; 4], 1), |_, _, _| {})));
        assert!(panics(|| cpu.for_row_pairs((&mut [0; 9], 3), (&mut [0; 2], 1), |_, _, _| {})));
        assert!(panics(|| cpu.for_row_pairs((&mut [0; 9], 3), (&mut [0; 0], 1), |_, _, _| {})));
    }
}

#[test]
fn a_panic_in_a_row_reaches_the_caller_and_the_threads_live_on() {
    for cpu in cpus() {
        let mut out = [0; 20];
        assert!(panics(|| cpu.for_rows(&mut out, 1, |i, _| assert_ne!(i, 13))));
        cpu.for_rows(&mut out, 1, |i, v| v[0] = i);
        assert!(out.iter().copied().eq(0..20));
    }
}

#[test]
fn names_are_those_of_the_command_line() {
    assert_eq!(Isa::ALL.map(Isa::name), ["portable", "avx2", "avx512", "amx"]);
    assert_eq!(format!("{:>9}", Isa::Avx2), "     avx2");
    assert!(isas().any(|isa| isa == Isa::Portable));
}
