//! Plans of simulated machines. The numbers are those that `tools/plan_reference.py` finds by search.

use super::*;

const GIB: u64 = 1 << 30;
/// Two parts of 473,600 bytes are 116 pages each, one of 537,600 is 132; a page more for each.
const SLOT: u64 = (117 + 117 + 133) * 4096;

/// The published model's numbers, or nearly.
pub(super) fn flash_next() -> ModelShape {
    ModelShape {
        dense_bytes: 3_800_000_000,
        experts: 512,
        top_k: 10,
        part_bytes: vec![[473_600, 473_600, 537_600]; 48],
        state_bytes: 117_669_888,
        checkpoint_bytes: 118_000_000,
        logits_bytes: 993_280,
        cache_token_bytes: 26_112,
        context_token_bytes: 16,
        strip_bytes: 60_000_000,
        thread_bytes: 2_000_000,
        pass_token_bytes: 157_000,
        room_token_bytes: 18_000,
        ple_rows: 16,
        ple_row_bytes: 90,
        ple_table_bytes: 0,
    }
}

/// A machine of eight threads with this much memory, in GiB.
fn machine(total: u64, available: u64) -> MachineFacts {
    MachineFacts { total_bytes: Some(total * GIB), available_bytes: Some(available * GIB), ..unknown() }
}

pub(super) fn unknown() -> MachineFacts {
    MachineFacts {
        total_bytes: None,
        available_bytes: None,
        group_limit_bytes: None,
        group_used_bytes: 0,
        lock_limit_bytes: None,
        page_bytes: 4096,
        threads: 8,
        drive: None,
    }
}

/// So many texts at a time, with these rows beside the pass of one, and checkpoints.
fn texts(sequences: u64, side_rows: u64, step_rows: u64, checkpoints: u64) -> Request {
    Request { sequences, side_rows, step_rows, checkpoints, ..Request::default() }
}

#[derive(Debug, PartialEq)]
enum Outcome {
    /// Budget, slots, tokens of a pass, sum of all parts.
    Fits(u64, u64, u64, u64),
    /// The arena must be this large.
    Arena(u64),
    /// The memory must be this large, or the context this short.
    Needs(u64, Option<u64>),
    /// There is only so much.
    Only(u64),
    Unknown,
}

use Outcome::{Arena, Fits, Needs, Only, Unknown};

fn outcome(shape: &ModelShape, machine: &MachineFacts, request: &Request) -> Outcome {
    match plan(shape, machine, request) {
        Ok(plan) => {
            assert_eq!(plan.arena_bytes, plan.slots * SLOT);
            Fits(plan.budget_bytes, plan.slots, plan.pass_tokens, plan.total_bytes())
        }
        Err(PlanError::ArenaTooSmall { needed_bytes, .. }) => Arena(needed_bytes.unwrap()),
        Err(PlanError::DoesNotFit { needed_bytes, shorter_context_tokens, .. }) => {
            Needs(needed_bytes.unwrap(), shorter_context_tokens)
        }
        Err(PlanError::MoreThanThereIs { most_bytes, .. }) => Only(most_bytes),
        Err(PlanError::UnknownMachine) => Unknown,
    }
}

#[test]
#[rustfmt::skip] // a table
fn plans_of_simulated_machines() {
    let machines = [
        ("8 GB laptop", machine(8, 6), Request::default(), Fits(6_039_797_760, 450, 512, 6_024_507_648)),
        ("8 GB laptop, busy", machine(8, 4), Request::default(), Needs(5_385_292_032, None)),
        ("12 GB", machine(12, 10), Request::default(), Fits(10_066_329_600, 2_794, 3_584, 10_039_234_816)),
        ("16 GB", machine(16, 13), Request::default(), Fits(13_086_228_480, 4_551, 5_888, 13_048_776_960)),
        ("24 GB", machine(24, 21), Request::default(), Fits(21_139_292_160, 9_688, 8_192, 21_139_243_264)),
        ("24 GB, arena of 6.5", machine(24, 21), Request { arena_bytes: Some(13 * GIB / 2), ..Request::default() }, Fits(21_139_292_160, 4_642, 8_192, 13_553_934_592)),
        ("24 GB, memory of 10", machine(24, 21), Request { memory_bytes: Some(10 * GIB), ..Request::default() }, Fits(10_737_418_240, 3_184, 4_096, 10_707_353_856)),
        ("24 GB, two threads", MachineFacts { threads: 2, ..machine(24, 21) }, Request::default(), Fits(21_139_292_160, 9_767, 8_192, 21_137_888_768)),
        ("24 GB, pass of 1024", machine(24, 21), Request { pass_tokens: Some(1024), ..Request::default() }, Fits(21_139_292_160, 10_450, 1_024, 21_138_686_208)),
        ("32 GB", machine(32, 28), Request::default(), Fits(28_185_722_880, 14_375, 8_192, 28_184_891_648)),
        ("48 GB", machine(48, 45), Request::default(), Fits(45_298_483_200, 24_576, 1_024, 42_373_341_440)),
        ("64 GB", machine(64, 60), Request::default(), Fits(60_397_977_600, 24_576, 1_024, 42_373_341_440)),
        ("128 GB", MachineFacts { threads: 32, ..machine(128, 120) }, Request::default(), Fits(120_795_955_200, 24_576, 1_024, 42_853_780_736)),
        ("256 GB in a container of 32", MachineFacts { group_limit_bytes: Some(32 * GIB), threads: 64, ..machine(256, 250) }, Request::default(), Fits(32_212_254_720, 16_308, 8_192, 32_211_664_128)),
        ("container of 4", MachineFacts { group_limit_bytes: Some(4 * GIB), ..machine(256, 250) }, Request::default(), Needs(5_385_292_032, None)),
        ("context of a million", machine(64, 60), Request { context_tokens: 1 << 20, ..Request::default() }, Fits(60_397_977_600, 18_148, 8_192, 60_397_617_408)),
        ("context of a million, 24 GB", machine(24, 21), Request { context_tokens: 1 << 20, ..Request::default() }, Needs(31_926_323_456, Some(635_722))),
        ("context of one", machine(24, 21), Request { context_tokens: 1, ..Request::default() }, Fits(21_139_292_160, 11_128, 1, 21_138_184_088)),
        ("memory too small for a token", machine(24, 21), Request { memory_bytes: Some(4 * GIB), ..Request::default() }, Needs(5_385_292_032, None)),
        ("arena too small for a token", machine(24, 21), Request { arena_bytes: Some(51 * SLOT), ..Request::default() }, Arena(78_168_064)),
        ("smallest arena", machine(24, 21), Request { arena_bytes: Some(52 * SLOT), ..Request::default() }, Fits(21_139_292_160, 52, 8_192, 6_654_099_712)),
        ("more than there is", machine(16, 13), Request { memory_bytes: Some(14 * GIB), ..Request::default() }, Only(13_958_643_712)),
        ("arena of more than there is", machine(16, 13), Request { arena_bytes: Some(20 * GIB), ..Request::default() }, Needs(26_780_793_088, None)),
        ("unknown machine", unknown(), Request::default(), Unknown),
        ("unknown machine, memory of 16", unknown(), Request { memory_bytes: Some(16 * GIB), ..Request::default() }, Fits(17_179_869_184, 7_054, 8_192, 17_179_730_176)),
        ("unknown machine, arena of 8", unknown(), Request { arena_bytes: Some(8 * GIB), ..Request::default() }, Fits(u64::MAX, 5_714, 8_192, 15_165_399_296)),
        ("four texts", machine(24, 21), texts(4, 3 * 256, 32, 8), Fits(21_139_292_160, 6_984, 8_192, 21_137_847_808)),
        ("sixteen texts", machine(64, 60), texts(16, 15 * 256, 128, 0), Fits(60_397_977_600, 24_576, 1_024, 57_861_643_520)),
        ("sixteen texts, 16 GB", machine(16, 13), texts(16, 15 * 256, 128, 16), Needs(22_777_486_592, Some(9_572))),
        ("all experts and a small pass", unknown(), Request { memory_bytes: Some(44 * GIB), ..Request::default() }, Fits(47_244_640_256, 24_576, 1_024, 42_373_341_440)),
    ];
    assert!(machines.len() >= 20);
    for (name, machine, request, expected) in machines {
        assert_eq!(outcome(&flash_next(), &machine, &request), expected, "{name}");
    }
}

/// 12 layers have keys and values of two heads of 256 for each token, and a float32 key of 128 for each four tokens.
#[test]
fn plans_by_what_keys_and_values_are_kept_in() {
    let (f32, bf16, q8_0) = (12 * (1024 * 4 + 128), 12 * (1024 * 2 + 128), 12 * (1024 / 32 * 34 + 128));
    assert_eq!([f32, bf16, q8_0], [50_688, 26_112, 14_592]);
    let (large, small) = (machine(24, 21), machine(16, 13));
    for (cache_token_bytes, machine, context_tokens, expected) in [
        (f32, &small, 32_768, Fits(13_086_228_480, 4_083, 5_376, 13_068_712_192)),
        (q8_0, &small, 32_768, Fits(13_086_228_480, 4_771, 6_400, 13_083_859_200)),
        (f32, &large, 262_144, Fits(21_139_292_160, 2_000, 2_560, 21_117_538_560)),
        (bf16, &large, 262_144, Fits(21_139_292_160, 5_750, 7_680, 21_130_793_216)),
        (q8_0, &large, 262_144, Fits(21_139_292_160, 7_710, 8_192, 21_139_087_616)),
        (f32, &small, 262_144, Needs(17_820_879_104, Some(168_765))),
    ] {
        let shape = ModelShape { cache_token_bytes, ..flash_next() };
        let request = Request { context_tokens, ..Request::default() };
        let what = format!("{context_tokens} tokens of {cache_token_bytes} bytes");
        assert_eq!(outcome(&shape, machine, &request), expected, "{what}");
        if let Ok(plan) = plan(&shape, machine, &request) {
            assert_eq!(plan.cache_bytes, context_tokens * cache_token_bytes, "{what}");
        }
    }
}

/// Every part, by hand, of a machine of 24 GiB of which 21 can be had.
#[test]
fn the_parts_of_a_plan() {
    let machine = MachineFacts { lock_limit_bytes: Some(16 * GIB), ..machine(24, 21) };
    let plan = plan(&flash_next(), &machine, &Request::default()).unwrap();
    assert_eq!(plan.budget_bytes, 21 * GIB - 21 * GIB / 16);
    assert_eq!(plan.dense_bytes, 3_800_000_000);
    assert_eq!(plan.state_bytes, 117_669_888);
    assert_eq!(plan.cache_bytes, 32_768 * 26_112);
    // Eight threads and a group of up to fifteen pieces have a room each.
    let rooms = (8 + 15) * 256 * 18_000;
    assert_eq!(plan.workspace_bytes, 60_000_000 + 8 * 2_000_000 + 32_768 * 16 + rooms + 8192 * 157_000);
    // Rows of 90 bytes, 16 a token, of two passes; windows of two pages for 1,024 reads.
    assert_eq!(plan.ple_bytes, 8192 * 2 * 16 * 90 + 1024 * 2 * 4096);
    assert_eq!(plan.reserve_bytes, (256 << 20) + 8 * (4 << 20));
    // 714 slots of 1,503,232 bytes make an area of at most 1 GiB; 13 such areas and a rest.
    assert_eq!((plan.slot_bytes, plan.area_slots, plan.areas), (1_503_232, 714, 14));
    assert_eq!((plan.experts, plan.smallest_slots, plan.limit), (24_576, 52, Limit::Available));
    assert!(plan.can_lock);
    assert_eq!(plan.share(), 9688.0 / 24_576.0);
}

/// What four texts take besides, by hand: a token of a pass is 157,000 bytes and 32 rows of 90.
#[test]
fn the_parts_of_several_texts() {
    let plan = plan(&flash_next(), &machine(24, 21), &texts(4, 768, 32, 8)).unwrap();
    let alone = super::plan(&flash_next(), &machine(24, 21), &Request::default()).unwrap();
    assert_eq!((plan.sequences, alone.sequences), (4, 1));
    assert_eq!((plan.state_bytes, plan.cache_bytes), (4 * alone.state_bytes, 4 * alone.cache_bytes));
    assert_eq!(plan.side_bytes, 768 * (157_000 + 32 * 90));
    assert_eq!(plan.step_bytes, 32 * (157_000 + 32 * 90 + 2 * 993_280));
    assert_eq!(plan.checkpoint_bytes, 8 * (118_000_000 + 993_280));
    assert_eq!((alone.side_bytes, alone.step_bytes, alone.checkpoint_bytes), (0, 0, 0));
    assert_eq!((plan.workspace_bytes, plan.ple_bytes), (alone.workspace_bytes, alone.ple_bytes));
}

#[test]
fn what_limits_is_said() {
    let limit = |machine: &MachineFacts, request: Request| plan(&flash_next(), machine, &request).unwrap().limit;
    let small = machine(24, 24);
    let group = MachineFacts { group_limit_bytes: Some(20 * GIB), group_used_bytes: GIB, ..small.clone() };
    let memory = |gib| Request { memory_bytes: Some(gib * GIB), ..Request::default() };
    let arena = |gib| Request { arena_bytes: Some(gib * GIB), ..Request::default() };
    assert_eq!(limit(&group, Request::default()), Limit::ControlGroup);
    assert_eq!(limit(&MachineFacts { available_bytes: None, ..small.clone() }, Request::default()), Limit::Machine);
    assert_eq!(limit(&small, memory(12)), Limit::Memory);
    assert_eq!(limit(&small, arena(6)), Limit::Arena);
    assert_eq!(limit(&machine(64, 60), Request::default()), Limit::Nothing);
    assert_eq!(limit(&machine(64, 60), arena(50)), Limit::Nothing);
    let used = plan(&flash_next(), &group, &memory(20)).unwrap_err();
    assert_eq!(
        used.to_string(),
        "20.00 GiB of memory were asked for, but this process's control group has only 19.00 GiB"
    );
    assert_eq!(used.missing_bytes(), Some(GIB));
}

#[test]
fn errors_say_what_would_help() {
    let error = |request: Request| plan(&flash_next(), &machine(24, 24), &request).unwrap_err();
    let large = error(Request { context_tokens: 1 << 20, ..Request::default() });
    assert_eq!(
        large.to_string(),
        "with a context of 1048576 tokens the model does not fit into 22.50 GiB (what other programs leave of this \
         machine's memory); it needs 29.74 GiB, or a context of at most 751303 tokens"
    );
    let arena = error(Request { arena_bytes: Some(50 << 20), ..Request::default() });
    assert_eq!(arena.to_string(), "an arena of 0.05 GiB is too small: one token needs 52 slots; it needs 0.08 GiB");
    assert_eq!(arena.missing_bytes(), Some(52 * SLOT - (50 << 20)));
    let absurd = error(Request { context_tokens: u64::MAX, ..Request::default() });
    assert!(absurd.to_string().ends_with("; no memory would be enough"), "{absurd}");
}

/// Records of layers differ: the largest sets the slot, wherever its parts begin.
#[test]
fn a_slot_holds_the_largest_record() {
    let part_bytes = vec![[1, 4096, 4097], [8192, 1, 1], [0, 0, 0]];
    let shape = ModelShape { part_bytes, experts: 3, top_k: 1, ..ModelShape::default() };
    let plan = plan(&shape, &machine(8, 8), &Request::default()).unwrap();
    assert_eq!(plan.slot_bytes, (2 + 2 + 3) * 4096);
    assert_eq!((plan.slots, plan.limit), (9, Limit::Nothing));
}

/// The figures that the concentration was solved from: 410 experts at 1,023 tokens, about 470 at 2,047; one token uses ten.
#[test]
fn experts_that_tokens_touch() {
    let touched = |tokens| touched_experts(512, 10, tokens);
    assert_eq!(touched(0), 0.0);
    assert!((touched(1) - 10.0).abs() < 1e-9);
    assert!((touched(1023) - 410.0).abs() < 1.0, "{}", touched(1023));
    assert!((touched(2047) - 470.0).abs() < 1.0, "{}", touched(2047));
    assert!(touched(u64::MAX) <= 512.0);
}

/// Reads by hand: 48 layers of records of 1,484,800 bytes; 8 GB a second.
#[test]
fn prompts_by_hand() {
    let drive = Some(Drive { bytes_per_second: 8_000_000_000, latency_ns: 100_000 });
    let machine = MachineFacts { drive, ..machine(24, 21) };
    let request = Request { arena_bytes: Some(6144 * SLOT), pass_tokens: Some(1024), ..Request::default() };
    let plan = plan(&flash_next(), &machine, &request).unwrap();
    let counts: Vec<_> = plan.prompts.iter().map(|p| (p.prompt_tokens, p.passes)).collect();
    assert_eq!(counts, [(1024, 1), (4096, 4), (32_768, 32)]);
    // A quarter of the experts has slots, and 85 % of these stay.
    let cold = 1.0 - 0.85 * 0.25;
    let first = &plan.prompts[0];
    let by_hand = 48.0 * 1_484_800.0 * cold * touched_experts(512, 10, 1024);
    assert!((first.expert_bytes as f64 - by_hand).abs() < 1e3, "{} {by_hand}", first.expert_bytes);
    assert_eq!(first.ple_bytes, 1024 * 16 * 4096);
    // Records are limited by bandwidth; table rows by latency: 32 at a time.
    let seconds = by_hand / 8e9 + 1024.0 * 16.0 * 100e-6 / 32.0;
    assert!((first.seconds.unwrap() - seconds).abs() < 1e-6);
    assert!(plan.prompts[1].expert_bytes.abs_diff(4 * first.expert_bytes) < 4);

    // A tiny drive: everything takes as long as its bytes.
    let drive = Some(Drive { bytes_per_second: 100_000_000, latency_ns: 0 });
    let slow = super::plan(&flash_next(), &MachineFacts { drive, ..machine }, &request).unwrap();
    let bytes = slow.prompts[0].expert_bytes + slow.prompts[0].ple_bytes;
    assert!((slow.prompts[0].seconds.unwrap() - bytes as f64 / 1e8).abs() < 1e-6);
}

#[test]
fn a_resident_model_reads_no_experts_and_short_contexts_no_long_prompts() {
    let request = Request { context_tokens: 5000, ..Request::default() };
    let plan = plan(&flash_next(), &machine(64, 60), &request).unwrap();
    assert_eq!(plan.prompts.len(), 2);
    assert!(plan.prompts.iter().all(|prompt| prompt.expert_bytes == 0 && prompt.seconds.is_none()));
}
