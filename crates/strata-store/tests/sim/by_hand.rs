//! Small prompts whose times follow from pen and paper. A transfer takes 100 ns.

use strata_store::sim::{
    Compute, Drive, LayerRoutes, Lookahead, Machine, Policy, Ranking, Report, Strip, Trace, simulate,
};
use strata_store::{Demand, ExpertId};

const EXPERTS: u32 = 8;

fn drive() -> Drive {
    Drive { bytes_per_second: 1e9, latency_ns: 10, depth: 4, ple_token_ns: 0.0, ple_share: 0.0 }
}

fn machine() -> Machine {
    Machine {
        drive: drive(),
        compute: Compute { layer_ns: 5.0, mixer_row_ns: 20.0, expert_ns: 3.0, expert_row_ns: 15.0, prompt_ns: 0.0 },
        record_bytes: 100,
        slots: 16,
        hot_slots: 0,
    }
}

/// Reads nothing ahead and computes by arrival.
fn policy() -> Policy {
    Policy {
        pass_tokens: 100,
        lookahead: Lookahead::Off,
        queues_after_wait: false,
        finishes_ahead: false,
        waits_for_all: false,
        ple_first: false,
    }
}

fn router() -> Lookahead {
    Lookahead::Router { min_tokens: 1 }
}

fn list(all: &[(u32, u32)]) -> Vec<Demand> {
    all.iter().map(|(expert, tokens)| Demand { expert: *expert, tokens: *tokens }).collect()
}

/// Experts and their tokens.
type List<'a> = &'a [(u32, u32)];
/// Demand and forecast of a strip, by layer.
type Routes<'a> = &'a [(List<'a>, List<'a>)];

/// Strips of two rows; a row uses one expert.
fn trace(strips: &[Routes<'_>]) -> Trace {
    let strip = |layers: &Routes<'_>| Strip {
        rows: 2,
        layers: layers
            .iter()
            .map(|(demand, forecast)| LayerRoutes { demand: list(demand), forecast: list(forecast) })
            .collect(),
    };
    let layers = strips[0].len() as u32;
    Trace { layers, experts: EXPERTS, top_k: 1, strips: strips.iter().map(strip).collect(), decode: Vec::new() }
}

fn run(trace: &Trace, machine: &Machine, policy: &Policy) -> Report {
    simulate(trace, machine, policy, &[], None).unwrap()
}

/// Two layers, each with two experts of a row.
fn two_layers() -> Trace {
    trace(&[&[(&[(0, 1), (1, 1)], &[(2, 1), (3, 1)]), (&[(2, 1), (3, 1)], &[])]])
}

#[test]
fn experts_that_arrive_are_computed_while_others_are_read() {
    // A layer: 5 + 40 for the mixer, 100 + 10 until the first expert is there, 18 for it, 82 until the second, 18.
    let report = run(&two_layers(), &machine(), &policy());
    assert_eq!(report.wall_ns, 2 * (45 + 110 + 18 + 82 + 18));
    assert_eq!((report.expert_wait_ns, report.compute_floor_ns), (2 * (110 + 82), 2 * (45 + 36)));
    assert_eq!((report.drive_floor_ns, report.needed_bytes(), report.counts.missed.records), (400, 400, 4));
}

#[test]
fn experts_that_wait_for_all_take_longer() {
    let report = run(&two_layers(), &machine(), &Policy { waits_for_all: true, ..policy() });
    assert_eq!(report.wall_ns, 2 * (45 + 210 + 36));
}

#[test]
fn one_read_at_a_time_pays_every_latency() {
    let mut machine = machine();
    machine.drive.depth = 1;
    let report = run(&two_layers(), &machine, &policy());
    assert_eq!(report.wall_ns, 2 * (45 + 110 + 110 + 18));
}

#[test]
fn what_is_forecast_is_read_beside_the_work() {
    let policy = Policy { lookahead: router(), ..policy() };
    let report = run(&two_layers(), &machine(), &policy);
    // The drive reads from 45 to 445 without a pause.
    assert_eq!(report.wall_ns, 45 + 400 + 10 + 18);
    assert_eq!((report.counts.ahead.records, report.counts.missed.records), (2, 2));
    // Queued when the second expert has arrived, at 255, the two arrive at 365 and 465.
    let late = run(&two_layers(), &machine(), &Policy { queues_after_wait: true, ..policy });
    assert_eq!(late.wall_ns, 465 + 18);
    // Nothing is expected by two tokens.
    let none = Policy { lookahead: Lookahead::Router { min_tokens: 2 }, ..policy };
    assert_eq!(run(&two_layers(), &machine(), &none), run(&two_layers(), &machine(), &self::policy()));
}

#[test]
fn wrong_guesses_are_dropped_or_finished() {
    // Layer 1 is expected to need 5 and 6 besides.
    let trace = trace(&[&[(&[(0, 2)], &[(2, 3), (3, 3), (5, 2), (6, 1)]), (&[(2, 2)], &[])]]);
    let mut machine = machine();
    machine.drive.depth = 1;
    // 45, 155 expert 0 is there, 185 + 45 = 230: the read of 2, from 155 to 265, is under way.
    let policy = Policy { lookahead: router(), ..policy() };
    let report = run(&trace, &machine, &policy);
    assert_eq!(report.wall_ns, 265 + 33);
    assert_eq!((report.read_bytes(), report.wasted_bytes()), (200, 0));
    // Finished: three more reads are started before the demand of layer 1 counts.
    let report = run(&trace, &machine, &Policy { finishes_ahead: true, ..policy });
    assert_eq!(report.wall_ns, 265 + 2 * 110 + 33);
    assert_eq!((report.read_bytes(), report.wasted_bytes()), (400, 200), "one is still under way");
}

#[test]
fn a_ranking_is_read_ahead_in_its_order() {
    let ranking = Ranking { layers: vec![vec![7, 6, 5, 4, 3, 2, 1, 0]; 2] };
    let lookahead = Lookahead::Profile { cap: 2, late_layer: 1, late_cap: 1 };
    let policy = Policy { lookahead, ..policy() };
    let machine = Machine { slots: 20, hot_slots: 1, ..machine() };
    let hot = [ExpertId { layer: 0, index: 7 }, ExpertId { layer: 1, index: 7 }];
    let trace = trace(&[&[(&[(5, 1), (7, 1)], &[]), (&[(6, 1), (7, 1)], &[])]]);
    let report = simulate(&trace, &machine, &policy, &hot, Some(&ranking)).unwrap();
    // In layer 0, 7 is hot, and 6 and 5 are read, of which 5 is used; in layer 1, 7 is read and 6 missed.
    let counts = report.counts;
    assert_eq!((counts.resident.records, counts.ahead.records, counts.missed.records), (1, 2, 1));
    assert_eq!((report.wasted_bytes(), report.read_bytes()), (100, 400));
}

#[test]
fn rows_of_the_table_come_first_or_beside() {
    let mut machine = machine();
    machine.drive.ple_token_ns = 50.0;
    // 100 for two rows. First:
    let report = run(&two_layers(), &machine, &Policy { ple_first: true, ..policy() });
    assert_eq!((report.wall_ns, report.ple_wait_ns), (100 + 2 * (45 + 110 + 18 + 82 + 18), 100));
    // Beside, they are there long before layer 1; from 45 to 100 they take half of the drive.
    machine.drive.ple_share = 0.5;
    let report = run(&two_layers(), &machine, &policy());
    assert_eq!(report.ple_wait_ns, 0);
    // 27.5 of the transfer of expert 0 are done at 100, so that it ends at 172.5, and that of expert 1 at 272.5.
    assert_eq!(report.wall_ns, 283 + 18 + (45 + 110 + 18 + 82 + 18));
    // A slow table is waited for before layer 1.
    machine.drive.ple_token_ns = 500.0;
    machine.drive.ple_share = 0.0;
    let report = run(&two_layers(), &machine, &policy());
    assert_eq!((report.wall_ns, report.ple_wait_ns), (1000 + 273, 1000 - 273));
}

#[test]
fn strips_of_a_pass_share_their_experts() {
    let strip: Routes<'_> = &[(&[(0, 1), (1, 1)], &[])];
    let trace = trace(&[strip, strip]);
    let one = run(&trace, &machine(), &policy());
    // Reads start with the first strip, at 45; the second is through at 85; both experts have two rows: 33 each.
    assert_eq!((one.wall_ns, one.passes, one.read_bytes()), (255 + 33, 1, 200));
    let two = run(&trace, &machine(), &Policy { pass_tokens: 2, ..policy() });
    assert_eq!((two.passes, two.counts.resident.records), (2, 2), "they are still there");
    assert_eq!(two.wall_ns, 45 + 110 + 18 + 82 + 18 + 45 + 36);
    assert_eq!(two.tokens, 4);
}

#[test]
fn an_arena_without_room_for_a_layer_goes_on_in_parts() {
    let machine = Machine { slots: 6, ..machine() };
    let all: Vec<_> = (0..EXPERTS).map(|expert| (expert, 1)).collect();
    let trace = Trace { top_k: 1, ..trace(&[&[(&all, &[])]]) };
    let report = run(&trace, &machine, &Policy { waits_for_all: true, ..policy() });
    // Six are read by 45 + 600 + 10; then, while they are computed, slots come free for two more.
    assert_eq!(report.wall_ns, 655 + 18 * 6 + (200 + 10 - 18 * 5) + 18 * 2);
    assert_eq!(report.counts.missed.records, 8);
}

#[test]
fn too_small_an_arena_is_refused() {
    let machine = Machine { slots: 5, ..machine() };
    assert!(simulate(&two_layers(), &machine, &policy(), &[], None).is_err());
}
