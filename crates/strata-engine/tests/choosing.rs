//! Penalties, biases and probabilities against numbers made by hand.

use strata_engine::{Chooser, Sampler, SamplerParams, SamplingError};

fn chooser(params: SamplerParams, bias: &[(u32, f32)]) -> Chooser {
    Chooser::new(params, bias.to_vec(), None, None).unwrap()
}

fn choices(chooser: &mut Chooser, logits: &[f32], count: usize) -> Vec<u32> {
    (0..count).map(|_| chooser.choose(logits).unwrap().0).collect()
}

#[test]
fn with_nothing_set_it_is_the_sampler() {
    let logits: Vec<f32> = (0..300).map(|id| ((id * 37) % 101) as f32 / 20.0).collect();
    let params = SamplerParams { temperature: 0.9, top_k: 50, top_p: 0.9, min_p: 0.02, seed: 3, ..Default::default() };
    let mut sampler = Sampler::new(params).unwrap();
    let expected: Vec<u32> = (0..50).map(|_| sampler.sample(&logits).unwrap()).collect();
    let mut plain = chooser(params, &[]);
    plain.read(&[1, 2, 3]);
    assert_eq!(choices(&mut plain, &logits, 50), expected);
    // A bias that changes nothing changes nothing.
    assert_eq!(choices(&mut chooser(params, &[(7, 0.0)]), &logits, 50), expected);
}

#[test]
fn openai_penalties_count_what_was_written() {
    let logits = [3.0, 2.5, 2.2, -1.0];
    // 3.0 and 2.5, 2.2 lose 0.6 once each, whatever their number.
    let presence = SamplerParams { presence_penalty: 0.6, ..Default::default() };
    assert_eq!(choices(&mut chooser(presence, &[]), &logits, 5), [0, 1, 0, 0, 0]);
    // Token 0: 3.0, 2.6, 2.2, 1.8; token 1: 2.5, 2.1, 1.7; token 2: 2.2, 1.8. Among equals the lowest id.
    let frequency = SamplerParams { frequency_penalty: 0.4, ..Default::default() };
    assert_eq!(choices(&mut chooser(frequency, &[]), &logits, 6), [0, 0, 1, 0, 2, 1]);
    let rewarded = SamplerParams { frequency_penalty: -2.0, ..Default::default() };
    assert_eq!(choices(&mut chooser(rewarded, &[]), &logits, 3), [0, 0, 0]);
    // Prompts do not count.
    let mut after_prompt = chooser(frequency, &[]);
    after_prompt.read(&[0, 0, 0, 0]);
    assert_eq!(choices(&mut after_prompt, &logits, 2), [0, 0]);
}

#[test]
fn the_repeat_penalty_looks_at_a_window() {
    let params = SamplerParams { repeat_penalty: 2.0, repeat_window: 2, ..Default::default() };
    let logits = [3.0, 2.5, 2.0, -1.0];
    // Each halves while it is among the last two.
    assert_eq!(choices(&mut chooser(params, &[]), &logits, 7), [0, 1, 2, 0, 1, 2, 0]);
    // The prompt is in the window: here its last two tokens.
    let mut after_prompt = chooser(params, &[]);
    after_prompt.read(&[2, 0, 1]);
    assert_eq!(choices(&mut after_prompt, &logits, 2), [2, 0]);
    // Below zero it multiplies: -1 becomes -2, less than -1.5.
    assert_eq!(choices(&mut chooser(params, &[]), &[-1.0, -1.5], 2), [0, 1]);
    let none = SamplerParams { repeat_window: 0, ..params };
    assert_eq!(choices(&mut chooser(none, &[]), &logits, 3), [0, 0, 0]);
}

#[test]
fn biases_add_and_forbid() {
    let logits = [1.0, 3.0, 2.0];
    assert_eq!(choices(&mut chooser(Default::default(), &[(0, 2.5)]), &logits, 1), [0]);
    assert_eq!(choices(&mut chooser(Default::default(), &[(1, -100.0)]), &logits, 1), [2]);
    let hot = SamplerParams { temperature: 100.0, ..Default::default() };
    assert!(!choices(&mut chooser(hot, &[(1, -100.0)]), &logits, 500).contains(&1));
    let error = |bias: &[(u32, f32)]| chooser(Default::default(), bias).choose(&logits).unwrap_err();
    assert_eq!(error(&[(3, 1.0)]), SamplingError::NoSuchToken { id: 3, count: 3 });
    assert_eq!(error(&[(0, -100.0), (1, -100.0), (2, -200.0)]), SamplingError::AllMasked { count: 3 });
    let new = Chooser::new(Default::default(), vec![(2, f32::NAN)], None, None);
    assert!(matches!(new, Err(SamplingError::BadBias { id: 2, .. })));
}

#[test]
fn probabilities_are_the_models_own() {
    // 0.5, 0.25, 0.125, 0.125, and a masked one; everything is raised by 3, which changes nothing.
    let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125, 0.0].iter().map(|p| p.ln() + 3.0).collect();
    let params = SamplerParams { temperature: 0.1, presence_penalty: 2.0, ..Default::default() };
    let mut chooser = Chooser::new(params, vec![(0, -100.0)], None, Some(3)).unwrap();
    let (id, choice) = chooser.choose(&logits).unwrap();
    let choice = choice.unwrap();
    assert_eq!(id, 1);
    let near = |got: f32, p: f32| (got - p.ln()).abs() < 1e-6;
    assert!(near(choice.logprob, 0.25), "{choice:?}");
    assert_eq!(choice.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(near(choice.top[0].1, 0.5) && near(choice.top[1].1, 0.25) && near(choice.top[2].1, 0.125), "{choice:?}");
    let alone = Chooser::new(params, Vec::new(), None, Some(0)).unwrap().choose(&logits).unwrap().1.unwrap();
    assert!(near(alone.logprob, 0.5) && alone.top.is_empty());
    let all = Chooser::new(params, Vec::new(), None, Some(100)).unwrap().choose(&logits).unwrap().1.unwrap();
    let sum: f64 = all.top.iter().map(|(_, logprob)| f64::from(*logprob).exp()).sum();
    assert!((sum - 1.0).abs() < 1e-6 && all.top.len() == 4, "{all:?}");
}

#[test]
fn broken_logits_are_errors_whatever_is_forbidden() {
    let mut chooser = chooser(Default::default(), &[(1, -100.0)]);
    assert!(matches!(chooser.choose(&[0.0, f32::NAN]), Err(SamplingError::NotFinite { id: 1, .. })));
}

#[test]
fn penalties_out_of_range_are_errors() {
    let name = |params| match Chooser::new(params, Vec::new(), None, None) {
        Err(SamplingError::BadParam { name, .. }) => name,
        other => panic!("{other:?}"),
    };
    for value in [-2.1, 2.1, f32::NAN] {
        assert_eq!(name(SamplerParams { presence_penalty: value, ..Default::default() }), "presence_penalty");
        assert_eq!(name(SamplerParams { frequency_penalty: value, ..Default::default() }), "frequency_penalty");
    }
    for value in [0.0, 11.0, f32::NAN] {
        assert_eq!(name(SamplerParams { repeat_penalty: value, ..Default::default() }), "repeat_penalty");
    }
}
