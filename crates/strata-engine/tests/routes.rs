//! Cache-aware routing in texts: neither drafts nor measuring its divergence change what is written.

use std::path::Path;

use strata_engine::{
    DraftKind, DraftOptions, Engine, EngineOptions, GenerateOptions, Generated, MoceOptions, Route, SamplerParams, Stop,
};
use strata_model::qwen4exp::MixerKind;

/// What the shipped model writes after a text that says things twice.
fn write(route: Route, kind: DraftKind, kl_every: usize) -> Generated {
    let mini = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/strata-mini/strata-mini-iq2xs-q4_0.gguf");
    let moce = MoceOptions { slots: Some(20), bonus: 1.0, keep: 1, mass: 0.9, kl_every };
    let mut options = EngineOptions { route, moce, ..EngineOptions::default() };
    options.drafts = DraftOptions { kind, ..DraftOptions::default() };
    let mut engine = Engine::open(&mini, &options).unwrap();
    let text = "The reader opens the file and reads the first page. The writer opens the file and reads the first page. \
                The reader";
    let prompt = engine.tokenizer().unwrap().encode(text, true).unwrap();
    let sampling =
        SamplerParams { temperature: 0.9, top_k: 40, top_p: 0.95, min_p: 0.05, seed: 11, ..SamplerParams::default() };
    let mut session = engine.new_session().unwrap();
    let options = GenerateOptions { max_tokens: 60, sampling };
    engine.generate(&mut session, &prompt, &options, &Stop::new(false), |_| ()).unwrap()
}

#[test]
fn drafts_and_measuring_change_no_cached_text() {
    let plain = write(Route::Cached, DraftKind::Off, 0);
    let routes = plain.routes.unwrap();
    assert_eq!((routes.counts.rows, routes.kl_tokens, routes.mean_kl()), (plain.tokens.len() as u64 - 1, 0, None));
    assert!(routes.agreement().unwrap() < 0.95 && routes.substituted_mass().unwrap() > 0.01, "{routes:?}");

    let measured = write(Route::Cached, DraftKind::Off, 8);
    let receipt = measured.routes.unwrap();
    assert!(measured.tokens == plain.tokens && receipt.counts == routes.counts);
    assert_eq!(receipt.kl_tokens, routes.counts.rows / 8);
    assert!(receipt.mean_kl().unwrap() > 1e-4, "{receipt:?}");

    let drafted = write(Route::Cached, DraftKind::Lookup, 4);
    assert!(drafted.tokens == plain.tokens, "drafts changed the text");
    assert!(drafted.drafts.proposed > 0 && drafted.routes.unwrap().kl_tokens > 0, "{drafted:?}");

    let exact = write(Route::Exact, DraftKind::Off, 8);
    assert!(exact.tokens != plain.tokens && exact.routes.is_none());
}

/// Measuring the divergence copies the state, and drafts do so too.
#[test]
fn the_plan_counts_copies_of_the_state() {
    let mini = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/strata-mini/strata-mini-iq2xs-q4_0.gguf");
    let state_bytes = |route, kl_every, kind| {
        let moce = MoceOptions { kl_every, ..MoceOptions::default() };
        let mut options = EngineOptions { route, moce, ..EngineOptions::default() };
        options.drafts.kind = kind;
        strata_engine::plan(&mini, &options, None).unwrap().state_bytes
    };
    let alone = state_bytes(Route::Exact, 64, DraftKind::Off);
    let drafted = state_bytes(Route::Exact, 64, DraftKind::Lookup);
    // The matrices of DeltaNet, and what convolutions look back at.
    let copy_bytes = state_bytes(Route::Cached, 64, DraftKind::Off) - alone;
    let config = Engine::open(&mini, &EngineOptions::default()).unwrap().model().config().clone();
    let gdn_layers = config.mixers.iter().filter(|mixer| matches!(mixer, MixerKind::Gdn)).count();
    let matrices_bytes = (gdn_layers * config.gdn.value_heads * config.gdn.head_dim * config.gdn.head_dim * 4) as u64;
    assert!(copy_bytes > matrices_bytes && copy_bytes < 2 * matrices_bytes, "{copy_bytes} for {matrices_bytes}");
    assert_eq!(state_bytes(Route::Cached, 0, DraftKind::Off), alone);
    assert_eq!(state_bytes(Route::Cached, 64, DraftKind::Lookup), drafted + copy_bytes);
}
