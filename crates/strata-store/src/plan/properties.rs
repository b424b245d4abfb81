//! What holds for every machine, model and request.

use proptest::prelude::*;

use super::tests::{flash_next, unknown};
use super::*;

/// Any number, of any magnitude.
fn any_size() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0u32..64).prop_map(|(value, shift)| value >> shift)
}

fn any_shape() -> impl Strategy<Value = ModelShape> {
    let parts = prop::collection::vec([any_size(), any_size(), any_size()], 0..5);
    (parts, prop::collection::vec(any_size(), 15)).prop_map(|(part_bytes, n)| ModelShape {
        dense_bytes: n[0],
        experts: n[1],
        top_k: n[2],
        part_bytes,
        state_bytes: n[3],
        cache_token_bytes: n[4],
        context_token_bytes: n[5],
        strip_bytes: n[6],
        thread_bytes: n[7],
        pass_token_bytes: n[8],
        room_token_bytes: n[9],
        ple_rows: n[10],
        ple_row_bytes: n[11],
        ple_table_bytes: n[12],
        checkpoint_bytes: n[13],
        logits_bytes: n[14],
    })
}

fn any_machine() -> impl Strategy<Value = MachineFacts> {
    let memory = prop::collection::vec(prop::option::of(any_size()), 4);
    let drive = prop::option::of((any_size(), any_size()));
    (memory, any_size(), any_size(), any_size(), drive).prop_map(|(memory, used, page_bytes, threads, drive)| {
        MachineFacts {
            total_bytes: memory[0],
            available_bytes: memory[1],
            group_limit_bytes: memory[2],
            group_used_bytes: used,
            lock_limit_bytes: memory[3],
            page_bytes,
            threads,
            drive: drive.map(|(bytes_per_second, latency_ns)| Drive { bytes_per_second, latency_ns }),
        }
    })
}

fn any_request() -> impl Strategy<Value = Request> {
    let wishes = prop::collection::vec(prop::option::of(any_size()), 3);
    let texts = prop::option::of([any_size(), any_size(), any_size(), any_size()]);
    (wishes, any_size(), any_size(), texts).prop_map(|(wishes, context_tokens, io_depth, texts)| {
        let [sequences, side_rows, step_rows, checkpoints] = texts.unwrap_or([1, 0, 0, 0]);
        Request {
            memory_bytes: wishes[0],
            arena_bytes: wishes[1],
            pass_tokens: wishes[2],
            context_tokens,
            io_depth,
            sequences,
            side_rows,
            step_rows,
            checkpoints,
        }
    })
}

/// Shapes and requests that a machine of some GiB may well satisfy.
fn likely() -> impl Strategy<Value = (ModelShape, MachineFacts, Request)> {
    let cache = prop::sample::select(vec![26_112, 50_688]);
    let shape = (1u64..600, 1u64..20, 1u64..3_000_000, 0u64..8 << 30, 1usize..50, 0u64..100_000);
    let texts = (0u64..20, 0u64..5000, 0u64..200, 0u64..40);
    let request = (1u64..100_000, prop::option::of(1u64..20_000), 0u64..100, texts);
    (shape, request, 0u64..70, cache).prop_map(|(shape, request, threads, cache_token_bytes)| {
        let (experts, top_k, part, dense_bytes, layers, room_token_bytes) = shape;
        let part_bytes = vec![[part, part / 2, part / 3 + 1]; layers];
        let shape =
            ModelShape { experts, top_k, part_bytes, dense_bytes, room_token_bytes, cache_token_bytes, ..flash_next() };
        let (context_tokens, pass_tokens, io_depth, texts) = request;
        let (sequences, side_rows, step_rows, checkpoints) = texts;
        let request = Request {
            context_tokens,
            pass_tokens,
            io_depth,
            sequences,
            side_rows,
            step_rows,
            checkpoints,
            ..Request::default()
        };
        (shape, MachineFacts { threads, ..unknown() }, request)
    })
}

/// What a plan promises, whoever asked.
fn check(plan: &Plan, request: &Request) {
    let parts = [plan.dense_bytes, plan.state_bytes, plan.cache_bytes, plan.workspace_bytes, plan.ple_bytes];
    let beside = [plan.side_bytes, plan.step_bytes, plan.checkpoint_bytes];
    let parts = parts
        .iter()
        .chain(&beside)
        .chain([&plan.reserve_bytes, &plan.arena_bytes])
        .map(|part| u128::from(*part))
        .sum::<u128>();
    assert!(parts <= u128::from(plan.budget_bytes), "{plan:?}");
    assert!(request.memory_bytes.is_none_or(|bytes| plan.budget_bytes <= bytes));
    assert!(request.arena_bytes.is_none_or(|bytes| plan.arena_bytes <= bytes));
    assert!(plan.smallest_slots <= plan.slots && plan.slots <= plan.experts);
    assert!((1..=plan.context_tokens).contains(&plan.pass_tokens));
    assert!(plan.areas.saturating_mul(plan.area_slots) >= plan.slots);
    assert!(plan.area_slots == 1 || plan.area_slots * plan.slot_bytes <= 1 << 30);
    assert_eq!(
        request.pass_tokens.map(|tokens| tokens.clamp(1, plan.context_tokens)).unwrap_or(plan.pass_tokens),
        plan.pass_tokens
    );
}

/// The error's advice, followed on a machine that has as much memory as anyone may ask for.
fn follow(shape: &ModelShape, machine: &MachineFacts, request: &Request, error: &PlanError) {
    let vast = MachineFacts { total_bytes: None, available_bytes: None, group_limit_bytes: None, ..machine.clone() };
    match *error {
        PlanError::DoesNotFit { needed_bytes, shorter_context_tokens, budget_bytes, .. } => {
            if let Some(needed_bytes) = needed_bytes {
                let larger = Request { memory_bytes: Some(needed_bytes), ..request.clone() };
                check(&plan(shape, &vast, &larger).expect("the budget that was suggested works"), &larger);
                let less = Request { memory_bytes: Some(needed_bytes - 1), ..request.clone() };
                plan(shape, &vast, &less).expect_err("no smaller one does");
            }
            if let Some(context_tokens) = shorter_context_tokens {
                let shorter = Request { memory_bytes: Some(budget_bytes), context_tokens, ..request.clone() };
                check(&plan(shape, &vast, &shorter).expect("the context that was suggested works"), &shorter);
            }
        }
        PlanError::ArenaTooSmall { needed_bytes: Some(needed_bytes), .. } => {
            let larger = Request { arena_bytes: Some(needed_bytes), ..request.clone() };
            match plan(shape, machine, &larger) {
                Ok(plan) => check(&plan, &larger),
                Err(PlanError::ArenaTooSmall { .. }) => panic!("the arena that was suggested works"),
                Err(_) => {}
            }
        }
        PlanError::MoreThanThereIs { most_bytes, .. } => {
            let smaller = Request { memory_bytes: Some(most_bytes), ..request.clone() };
            let again = plan(shape, machine, &smaller);
            assert!(!matches!(again, Err(PlanError::MoreThanThereIs { .. })), "{again:?}");
        }
        PlanError::ArenaTooSmall { .. } | PlanError::UnknownMachine => {}
    }
    _ = (error.to_string(), error.missing_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_numbers_have_an_answer(shape in any_shape(), machine in any_machine(), request in any_request()) {
        match plan(&shape, &machine, &request) {
            Ok(plan) => check(&plan, &request),
            Err(error) => follow(&shape, &machine, &request, &error),
        }
    }

    #[test]
    fn advice_works((shape, machine, request) in likely(), memory in 0u64..64 << 30, arena in prop::option::of(0u64..64 << 30)) {
        let request = Request { memory_bytes: Some(memory), arena_bytes: arena, ..request };
        match plan(&shape, &machine, &request) {
            Ok(plan) => check(&plan, &request),
            Err(error) => follow(&shape, &machine, &request, &error),
        }
    }

    #[test]
    fn more_budget_never_gives_fewer_slots(
        (shape, machine, request) in likely(), memory in 0u64..64 << 30, more in prop::collection::vec(any_size(), 4)
    ) {
        let slots = |memory| {
            let request = Request { memory_bytes: Some(memory), ..request.clone() };
            plan(&shape, &machine, &request).map_or(0, |plan| plan.slots)
        };
        for more in more {
            let (few, many) = (slots(memory), slots(memory.saturating_add(more)));
            prop_assert!(few <= many, "{memory} + {more}: {few} {many}");
        }
    }
}
