//! The reference's measurements, simulated.

use strata_store::scheduler::Class;
use strata_store::sim::{Lookahead, Policy, Report, reference, simulate};

#[track_caller]
fn within(what: &str, found: f64, measured: f64, tolerance: f64) {
    assert!((found / measured - 1.0).abs() <= tolerance, "{what}: {found:.3} for {measured}");
}

#[test]
fn every_line_of_the_table_is_within_a_tenth() {
    for line in reference::table() {
        for seed in 0..3 {
            let middle = f64::midpoint(line.low_ms, line.high_ms);
            within(&format!("{line:?}"), line.simulate(seed).wall_ns as f64 / 1e6, middle, 0.1);
        }
    }
}

/// Look-ups in per cent: resident, ahead, missed.
fn lookups(report: &Report) -> [f64; 3] {
    let counts = [report.counts.resident, report.counts.ahead, report.counts.missed].map(|tally| tally.records as f64);
    counts.map(|count| 100.0 * count / counts.iter().sum::<f64>())
}

fn reads(report: &Report) -> f64 {
    (report.counts.read[Class::Demand].records + report.counts.read[Class::ReadAhead].records) as f64
}

#[track_caller]
fn near(found: [f64; 3], measured: [f64; 3], points: f64) {
    let is_near = found.iter().zip(measured).all(|(found, measured)| (found - measured).abs() <= points);
    assert!(is_near, "{found:.1?} for {measured:?}");
}

#[test]
fn lookups_reads_and_waits_of_a_chunk_are_as_measured() {
    let table = reference::table();
    let (before, after) = (table[0].simulate(0), table[1].simulate(0));
    near(lookups(&before), [14.8, 50.9, 34.3], 0.5);
    near(lookups(&after), [14.0, 76.4, 9.6], 2.0);
    within("needed before", before.needed_bytes() as f64, 24.7e9, 0.02);
    within("reads before", reads(&before), 18.0e3, 0.02);
    within("reads after", reads(&after), 18.4e3, 0.02);
    assert_eq!(before.counts.read[Class::ReadAhead].records, 40 * 256 + 8 * 128);
    within("unused before", before.counts.wasted[Class::ReadAhead].records as f64, 1.2e3, 0.05);
    within("wrong guesses", after.counts.wasted[Class::ReadAhead].records as f64, 1.4e3, 0.05);
    within("bytes after", after.read_bytes() as f64, 27.0e9, 0.02);
    within("wait before", before.expert_wait_ns as f64, 1.35e9, 0.1);
    // What is waited for after is more than measured, 0.56 to 0.61 s: the wall time is right, so other waits are in it.
    within("wait after", after.expert_wait_ns as f64, 0.585e9, 0.2);
}

#[test]
fn a_longer_chunk_reads_each_expert_once() {
    let table = reference::table();
    let (two, one) = (reads(&table[5].simulate(0)), reads(&table[6].simulate(0)));
    within("in two chunks", two, 32.6e3, 0.1);
    within("in one", one, 18.5e3, 0.1);
}

/// Not fitted, and not good: experts that one token is expected to use are more often right in truth than here. The
/// direction is: fewer reads, more misses, slower.
#[test]
fn forecasts_of_two_tokens_miss_more() {
    let machine = reference::machine();
    let (trace, _) = reference::text(1023, 1024, 0);
    let hot = reference::any_experts(0, reference::LAYERS, reference::EXPERTS);
    let all = reference::after(1024);
    let two = Policy { lookahead: Lookahead::Router { min_tokens: 2 }, ..all.clone() };
    let [all, two] = [all, two].map(|policy| simulate(&trace, &machine, &policy, &hot, None).unwrap());
    within("read ahead", two.counts.read[Class::ReadAhead].records as f64, 14.3e3, 0.15);
    let missed = lookups(&two)[2];
    assert!((17.0..25.0).contains(&missed), "{missed}");
    assert!(two.wall_ns > all.wall_ns && reads(&two) < reads(&all));
}

/// The engine's own policies are better on that machine than the reference's.
#[test]
fn arrival_order_and_longer_passes_pay() {
    let machine = reference::machine();
    let hot = reference::any_experts(0, reference::LAYERS, reference::EXPERTS);
    let run = |policy: &Policy| {
        let (trace, _) = reference::text(8192, 256, 0);
        simulate(&trace, &machine, policy, &hot, None).unwrap()
    };
    let walls = [1024, 2048, 4096, 8192].map(|pass| run(&reference::strata(pass)).wall_ns);
    assert!(walls.is_sorted_by(|a, b| a > b), "{walls:?}");
    let long = run(&reference::strata(8192));
    assert!(long.ratio() < 1.05, "{}", long.ratio());
    assert!(long.wall_ns <= run(&reference::after(8192)).wall_ns);
}
