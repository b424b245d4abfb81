//! What holds for all texts, machines and policies.

use proptest::prelude::*;
use strata_store::sim::reference::any_experts;
use strata_store::sim::{Compute, Drive, Habits, Lookahead, Machine, Policy, Synthetic, simulate};

fn texts() -> impl Strategy<Value = Synthetic> {
    (1..7_u32, 2..40_u32, 1..6_u32, 1..200_u32, 1..40_u32, any::<u64>()).prop_map(
        |(layers, experts, top_k, tokens, strip_rows, seed)| {
            let habits = Habits { foreseen: 0.6, ranked: 0.7 };
            Synthetic { layers, experts, top_k, tokens, strip_rows, habits, seed }
        },
    )
}

fn machines() -> impl Strategy<Value = Machine> {
    let drive = (0..200_000_u64, 1..12_u32, 0.0..5_000.0_f64, 0.0..0.9_f64);
    let compute = (0.0..1e5_f64, 0.0..1e4_f64, 0.0..1e4_f64, 0.0..1e3_f64, 0.0..1e6_f64);
    (1e7..1e10_f64, drive, compute, 0..100_u32, 0..100_u32).prop_map(
        |(bytes_per_second, (latency_ns, depth, ple_token_ns, ple_share), compute, more_slots, hot_slots)| Machine {
            drive: Drive { bytes_per_second, latency_ns, depth, ple_token_ns, ple_share },
            compute: Compute {
                layer_ns: compute.0,
                mixer_row_ns: compute.1,
                expert_ns: compute.2,
                expert_row_ns: compute.3,
                prompt_ns: compute.4,
            },
            record_bytes: 100_000,
            slots: 12 + depth + more_slots,
            hot_slots,
        },
    )
}

fn policies() -> impl Strategy<Value = Policy> {
    let lookahead = prop_oneof![
        Just(Lookahead::Off),
        (0..40_u32, 0..6_u32, 0..10_u32).prop_map(|(cap, late_layer, late_cap)| Lookahead::Profile {
            cap,
            late_layer,
            late_cap
        }),
        (1..3_u32).prop_map(|min_tokens| Lookahead::Router { min_tokens }),
    ];
    (1..200_u32, lookahead, any::<[bool; 4]>()).prop_map(
        |(pass_tokens, lookahead, [queues_after_wait, finishes_ahead, waits_for_all, ple_first])| Policy {
            pass_tokens,
            lookahead,
            queues_after_wait,
            finishes_ahead,
            waits_for_all,
            ple_first,
        },
    )
}

proptest! {
    #[test]
    fn times_and_bytes_add_up(text in texts(), machine in machines(), policy in policies()) {
        let (trace, ranking) = text.routes();
        let hot = any_experts(text.seed, text.layers, text.experts);
        let report = simulate(&trace, &machine, &policy, &hot, Some(&ranking)).unwrap();
        prop_assert_eq!(report.wall_ns, report.compute_floor_ns + report.expert_wait_ns + report.ple_wait_ns);
        prop_assert!(report.wall_ns >= report.drive_floor_ns && report.ratio() >= 1.0);
        prop_assert!(report.read_bytes() >= report.needed_bytes());
        prop_assert_eq!(report.tokens, u64::from(text.tokens));
        let counts = report.counts;
        let lookups = counts.resident.records + counts.ahead.records + counts.missed.records;
        let passes = trace.passes(policy.pass_tokens);
        let distinct = |strips: &[strata_store::sim::Strip]| {
            let all = strips.iter().flat_map(|strip| (0u32..).zip(&strip.layers));
            let used = all.flat_map(|(layer, routes)| routes.demand.iter().map(move |d| (layer, d.expert)));
            used.collect::<std::collections::BTreeSet<_>>().len() as u64
        };
        prop_assert_eq!(lookups, passes.iter().map(|strips| distinct(strips)).sum::<u64>());
        let again = simulate(&trace, &machine, &policy, &hot, Some(&ranking)).unwrap();
        prop_assert_eq!(report, again);
    }

    /// Of one pass: what an earlier pass leaves in memory depends on the order in which reads ended, and may be less useful.
    #[test]
    fn a_faster_drive_is_not_slower_without_read_ahead(text in texts(), machine in machines(), policy in policies()) {
        let (trace, _) = text.routes();
        let policy = Policy { lookahead: Lookahead::Off, waits_for_all: true, pass_tokens: text.tokens, ..policy };
        let mut faster = machine.clone();
        faster.drive.bytes_per_second *= 2.0;
        let slow = simulate(&trace, &machine, &policy, &[], None).unwrap();
        let fast = simulate(&trace, &faster, &policy, &[], None).unwrap();
        prop_assert!(fast.wall_ns <= slow.wall_ns, "{} {}", fast.wall_ns, slow.wall_ns);
    }
}
