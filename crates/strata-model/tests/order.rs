//! The order of operations of a pass, seen by a backend that only records, and what a pass does when its store fails,
//! forecasts, or hands experts out one by one.

mod common;

use std::sync::{Arc, Mutex};

use common::{Recorded, data, logits, max_difference};
use strata_backend::{Backend, Call, Choice, CpuBackend, Isa, RecordingBackend};
use strata_gguf::Gguf;
use strata_model::ModelError;
use strata_model::qwen4exp::{LayerView, Moce, Model, Moment, Observer, Options, Rows, Unobserved};
use strata_store::reads::{self, ReaderKind};
use strata_store::{Demand, ExpertId, ExpertStore, PassKind, PassNumber, Slot, StoreError, StreamingStore};

fn oracle(name: &str) -> Gguf {
    Gguf::open(&data(&format!("oracle/{name}/model-f16.gguf"))).unwrap()
}

/// What a [`Watched`] store saw and what it should do.
#[derive(Default)]
struct Script {
    log: Vec<String>,
    forecasts: Vec<(u32, Vec<Demand>)>,
    /// Of single rows.
    ranked: Vec<(u32, Vec<u32>)>,
    demands: Vec<(u32, Vec<Demand>)>,
    wants_forecast: bool,
    /// Where early forecasts are wanted, too.
    wants_early: bool,
    /// Hand experts out last first, one by one.
    reversed: bool,
    /// Fail when this layer's experts are asked for.
    fails_at: Option<u32>,
    slots_out: i64,
}

/// A store that follows a script.
struct Watched {
    inner: StreamingStore,
    script: Arc<Mutex<Script>>,
    waiting: Vec<Slot>,
    /// The layer whose experts are all in `waiting`, or were.
    gathered: Option<u32>,
}

impl ExpertStore for Watched {
    fn begin_pass(&mut self, kind: PassKind) -> PassNumber {
        self.gathered = None;
        self.inner.begin_pass(kind)
    }

    fn resume(&mut self, pass: PassNumber) {
        self.inner.resume(pass);
    }

    fn poll(&mut self) {
        self.inner.poll();
    }

    fn end_pass(&mut self) {
        self.inner.end_pass();
    }

    fn skip_to(&mut self, layer: u32) {
        self.inner.skip_to(layer);
    }

    fn demand(&mut self, layer: u32, experts: &[Demand]) -> Result<(), StoreError> {
        let mut script = self.script.lock().unwrap();
        script.log.push(format!("demand {layer}"));
        script.demands.push((layer, experts.to_vec()));
        self.inner.demand(layer, experts)
    }

    fn forecast(&mut self, layer: u32, experts: &[Demand]) {
        let mut script = self.script.lock().unwrap();
        script.log.push(format!("forecast {layer}"));
        script.forecasts.push((layer, experts.to_vec()));
    }

    fn forecast_ranked(&mut self, layer: u32, experts: &[u32]) {
        let mut script = self.script.lock().unwrap();
        script.log.push(format!("forecast {layer}"));
        script.ranked.push((layer, experts.to_vec()));
    }

    fn wants_forecast(&self) -> bool {
        self.script.lock().unwrap().wants_forecast
    }

    fn wants_early_forecast(&self) -> bool {
        let mut script = self.script.lock().unwrap();
        script.log.push("early?".to_owned());
        script.wants_early
    }

    fn close(&mut self, layer: u32) {
        self.script.lock().unwrap().log.push(format!("close {layer}"));
        self.inner.close(layer);
    }

    fn ready(&mut self, layer: u32, slots: &mut Vec<Slot>) -> Result<(), StoreError> {
        let mut script = self.script.lock().unwrap();
        if script.fails_at == Some(layer) {
            return Err(StoreError::EndOfFile {
                file: "model.gguf".into(),
                offset: 77,
                wanted_bytes: 10,
                got_bytes: 3,
            });
        }
        if script.reversed {
            // All are waited for first, so that what came last can go first.
            let mut before = None;
            while self.gathered != Some(layer) && before != Some(self.waiting.len()) {
                before = Some(self.waiting.len());
                self.inner.ready(layer, &mut self.waiting)?;
            }
            self.gathered = Some(layer);
            slots.extend(self.waiting.pop());
        } else {
            self.inner.ready(layer, slots)?;
        }
        script.slots_out += slots.len() as i64;
        Ok(())
    }

    fn release(&mut self, slot: Slot) {
        self.script.lock().unwrap().slots_out -= 1;
        self.inner.release(slot);
    }

    fn abandon(&mut self, pass: PassNumber) {
        self.script.lock().unwrap().log.push("abandon".to_owned());
        self.inner.abandon(pass);
    }
}

fn watched(name: &str, backend: Box<dyn Backend>, options: Options, script: Script) -> (Model, Arc<Mutex<Script>>) {
    let (gguf, script) = (oracle(name), Arc::new(Mutex::new(script)));
    let open = |files: &[_], areas: &[_], depth| reads::open(ReaderKind::Auto, files, areas, depth);
    let wrap = |inner| Box::new(Watched { inner, script: script.clone(), waiting: Vec::new(), gathered: None }) as _;
    let model = Model::load_with(&gguf, backend, options, &open, wrap);
    (model.unwrap(), script)
}

fn cpu() -> Box<dyn Backend> {
    Box::new(CpuBackend::precise(Isa::best(), 2).unwrap())
}

#[test]
fn a_pass_goes_through_a_layer_strip_by_strip_before_the_next_layer() {
    let backend = RecordingBackend::default();
    let recording = backend.recording();
    let options = Options { strip_rows: 3, pass_tokens: 7, ..Options::default() };
    let (mut model, script) = watched("moe8ple", Box::new(backend), options, Script::default());
    let mut sequence = model.new_sequence().unwrap();
    let (ids, mut logits) = ([5u32; 7], Vec::new());
    model.forward(&mut sequence, &ids, Rows::Last, &mut logits, &mut Unobserved).unwrap();
    assert_eq!(logits, vec![0.0; model.vocabulary()]);

    let recorded = recording.lock().unwrap();
    assert_eq!(recorded.unread_results, 0, "tickets were left behind");
    let mut calls = recorded.calls.iter().peekable();
    assert_eq!(calls.next(), Some(&Call::Embed { first_row: 0, ids: ids.to_vec() }));
    for layer in 0..8 {
        for rows in [0..3, 3..6, 6..7] {
            if layer == 1 {
                // Sixteen hash rows a token would be the real model's; this one has 2 x 4 of 16 halves of a byte each.
                let Some(Call::AddNgrams { rows: got, table_bytes }) = calls.next() else { panic!("n-grams first") };
                assert_eq!((got, *table_bytes), (&rows, rows.len() * 8 * 8 * 2));
            }
            assert_eq!(calls.next(), Some(&Call::ReadStreams { rows: rows.clone() }));
            match calls.next().unwrap() {
                Call::MixGdn { rows: got, .. } if layer % 4 != 3 => assert_eq!(*got, rows),
                Call::MixQsa { rows: got, .. } if layer % 4 == 3 => assert_eq!(*got, rows),
                other => panic!("layer {layer}: {other:?}"),
            }
            assert_eq!(calls.next(), Some(&Call::WriteStreams { rows: rows.clone() }));
            assert_eq!(calls.next(), Some(&Call::ReadStreams { rows: rows.clone() }));
            assert_eq!(calls.next(), Some(&Call::Route { rows }));
        }
        for rows in [0..3, 3..6, 6..7] {
            assert_eq!(calls.next(), Some(&Call::SharedExpert { rows }));
        }
        // The recording backend sends row r to experts r, r + 1, r + 2, r + 3: 7 rows use experts 0 to 9, each once.
        // In as many groups as they arrived in.
        let (mut experts, mut choices) = (Vec::<ExpertId>::new(), Vec::<Choice>::new());
        while let Some(Call::Experts { experts: more, choices: more_choices }) = calls.peek() {
            experts.extend(more);
            choices.extend(more_choices);
            calls.next();
        }
        let mut indexes: Vec<_> = experts.iter().map(|id| id.index).collect();
        indexes.sort_unstable();
        assert_eq!(indexes, (0..10).collect::<Vec<_>>());
        assert!(experts.iter().all(|id| id.layer == layer));
        let mut uses: Vec<_> = choices.iter().map(|choice| (choice.row, choice.k)).collect();
        uses.sort_unstable();
        assert_eq!(uses, (0..7).flat_map(|row| (0..4).map(move |k| (row, k))).collect::<Vec<_>>());
        for rows in [0..3, 3..6, 6..7] {
            assert_eq!(calls.next(), Some(&Call::Combine { rows: rows.clone() }));
            assert_eq!(calls.next(), Some(&Call::WriteStreams { rows }));
        }
    }
    assert_eq!(calls.next(), Some(&Call::Head { rows: 6..7 }));
    assert_eq!(calls.next(), None);

    let script = script.lock().unwrap();
    let per_layer =
        |l: u32| [format!("demand {l}"), format!("demand {l}"), format!("demand {l}"), format!("close {l}")];
    assert_eq!(script.log, (0..8).flat_map(per_layer).collect::<Vec<_>>());
    assert_eq!(script.slots_out, 0, "slots were kept");
}

#[test]
fn cached_routes_are_chosen_from_logits_and_told_to_the_backend() {
    let backend = RecordingBackend::default();
    let recording = backend.recording();
    let moce = Moce { slots: 12, bonus: 1.0, keep: 1, mass: 1.0 };
    let options = Options { moce: Some(moce), ..Options::default() };
    let (mut model, script) = watched("moe8ple", Box::new(backend), options, Script::default());
    let mut sequence = model.new_sequence().unwrap();
    // The recording backend sends row r of the prompt to experts r to r + 3: of rows 0 to 15, experts 7 to 18 are the last
    // twelve. Then all logits are 0, so that the router's choice is 0 to 3: one stays, and three of the last give way to
    // 7 to 9, which are resident.
    model.forward(&mut sequence, &[5; 16], Rows::Last, &mut Vec::new(), &mut Unobserved).unwrap();
    model.decode(&mut sequence, &[5], Rows::Last, &mut Vec::new(), &mut Unobserved).unwrap();
    let recorded = recording.lock().unwrap();
    assert_eq!(recorded.unread_results, 0, "tickets were left behind");
    let of_routes = |call: &&Call| {
        matches!(call, Call::Route { .. } | Call::RouterLogits { .. } | Call::SetRoutes { .. } | Call::Combine { .. })
    };
    let calls: Vec<_> = recorded.calls.iter().filter(of_routes).cloned().collect();
    let prompt = [Call::Route { rows: 0..16 }, Call::Combine { rows: 0..16 }];
    let routes = vec![0, 7, 8, 9];
    let decode =
        [Call::RouterLogits { rows: 0..1 }, Call::SetRoutes { rows: 0..1, routes }, Call::Combine { rows: 0..1 }];
    let layers = |calls: &[Call]| std::iter::repeat_n(calls.to_vec(), 8).flatten().collect::<Vec<_>>();
    assert_eq!(calls, [layers(&prompt), layers(&decode)].concat());
    let demanded: Vec<u32> = script.lock().unwrap().demands[8].1.iter().map(|demand| demand.expert).collect();
    assert_eq!(demanded, [0, 7, 8, 9]);
}

#[test]
fn the_order_in_which_experts_arrive_does_not_show() {
    let ids: Vec<u32> = (0..60).map(|i| i * 7 % 500).collect();
    let run = |reversed, wants_forecast| {
        let script = Script { reversed, wants_forecast, ..Script::default() };
        let (mut model, script) = watched("moe8ple", cpu(), Options { strip_rows: 16, ..Options::default() }, script);
        let mut sequence = model.new_sequence().unwrap();
        let logits = logits(&mut model, &mut sequence, &ids, &[50, 1]);
        assert_eq!(script.lock().unwrap().slots_out, 0, "slots were kept");
        logits.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
    };
    let plain = run(false, false);
    assert!(run(true, false) == plain, "reversed arrival changed bits");
    assert!(run(true, true) == plain, "forecasts changed bits");
}

#[test]
fn forecasts_are_the_next_router_on_the_same_input() {
    let script = Script { wants_forecast: true, ..Script::default() };
    let (mut model, script) = watched("moe8ple", cpu(), Options { strip_rows: 10, ..Options::default() }, script);
    let recorded = Recorded::open(&data("oracle/moe8ple/reference.safetensors"));
    let ids = recorded.u32("prefill.input_ids");
    let mut sequence = model.new_sequence().unwrap();
    let got = logits(&mut model, &mut sequence, &ids, &[ids.len()]);
    assert!(max_difference(&got, &recorded.f32("prefill.logits")) <= 5e-5);
    let script = script.lock().unwrap();
    let strips = ids.len().div_ceil(10);
    // One forecast a strip for every layer but the first; as many tokens as the demand of the same strip.
    assert_eq!(script.forecasts.len(), 7 * strips);
    let tokens = |demands: &[Demand]| demands.iter().map(|d| d.tokens).sum::<u32>();
    let mut hits = 0;
    for (i, (layer, forecast)) in script.forecasts.iter().enumerate() {
        assert_eq!(*layer as usize, i / strips + 1);
        let (of_layer, demand) = &script.demands[i + strips];
        assert_eq!((of_layer, tokens(forecast)), (layer, tokens(demand)));
        assert!(forecast.windows(2).all(|pair| pair[0].tokens >= pair[1].tokens), "most tokens first");
        hits += forecast.iter().filter(|f| demand.iter().any(|d| d.expert == f.expert)).count();
    }
    assert!(hits > 0);
}

/// What the next layer's router would choose, as an observer sees it.
#[derive(Default)]
struct Choices(Vec<(u32, Vec<u32>)>);

impl Observer for Choices {
    fn at(&mut self, moment: Moment, view: &mut LayerView<'_>) {
        if moment == Moment::LayerDone
            && let Some(forecast) = view.forecast().unwrap()
        {
            self.0.push((view.layer as u32 + 1, forecast.ids));
        }
    }
}

#[test]
fn a_single_row_is_forecast_by_rank_and_wider_than_it_will_be_routed() {
    let script = Script { wants_forecast: true, ..Script::default() };
    let (mut model, script) = watched("moe8ple", cpu(), Options::default(), script);
    let (mut sequence, mut seen) = (model.new_sequence().unwrap(), Choices::default());
    model.forward(&mut sequence, &[7], Rows::Last, &mut Vec::new(), &mut seen).unwrap();
    let script = script.lock().unwrap();
    assert!(script.forecasts.is_empty());
    // Four of a row and three more; the first four as they would be routed.
    assert_eq!(script.ranked.iter().map(|(layer, _)| *layer).collect::<Vec<_>>(), (1..8).collect::<Vec<_>>());
    for ((layer, ranked), (_, choices)) in script.ranked.iter().zip(&seen.0) {
        assert_eq!((ranked.len(), &ranked[..4]), (7, &choices[..]), "layer {layer}");
        let mut distinct = ranked.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 7, "{ranked:?}");
    }
}

#[test]
fn an_early_forecast_is_the_router_after_the_next_one_on_the_same_input() {
    let run = |wants_early, ids: &[u32]| {
        let backend = RecordingBackend::default();
        let recording = backend.recording();
        let script = Script { wants_forecast: true, wants_early, ..Script::default() };
        let (mut model, script) = watched("moe8ple", Box::new(backend), Options::default(), script);
        let mut sequence = model.new_sequence().unwrap();
        model.forward(&mut sequence, ids, Rows::Last, &mut Vec::new(), &mut Unobserved).unwrap();
        let (script, calls) = (std::mem::take(&mut *script.lock().unwrap()), recording.lock().unwrap().calls.clone());
        // What each router after a layer's own is asked directly after it, before the layer's input is gone.
        let of_layers: Vec<Vec<_>> = (0..calls.len())
            .filter(|at| matches!(calls[*at], Call::Route { .. }))
            .map(|at| {
                let router = |call: &Call| if let Call::Forecast { router, .. } = call { Some(*router) } else { None };
                calls[at + 1..].iter().map_while(router).collect()
            })
            .collect();
        let asked = script.log.iter().filter(|line| *line == "early?").count();
        (script.ranked.iter().map(|(layer, _)| *layer).collect::<Vec<_>>(), of_layers, asked)
    };
    let (layers, routers, asked) = run(true, &[7]);
    // The next layer's comes first; the last layer but one has none after the next.
    assert_eq!((layers, asked), (vec![1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7], 6));
    assert_eq!(routers.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 2, 2, 2, 2, 1, 0]);
    for (routers, of_next) in routers.iter().zip(&routers[1..7]) {
        assert!(routers[1] == of_next[0] && routers[0] != routers[1], "{routers:?}, {of_next:?}");
    }
    // Computed only where the store wants it, which it is asked of single rows.
    let (layers, routers, asked) = run(false, &[7]);
    assert_eq!((layers.len(), routers.concat().len(), asked), (7, 7, 6));
    let (layers, routers, asked) = run(true, &[7, 8]);
    assert_eq!((layers.len(), routers.concat().len(), asked), (0, 7, 0));
}

/// Counts how often each layer's forecast names each expert.
#[derive(Default)]
struct Forecasts(Vec<(u32, Vec<u32>)>);

impl Observer for Forecasts {
    fn at(&mut self, moment: Moment, view: &mut LayerView<'_>) {
        if moment == Moment::LayerDone
            && let Some(forecast) = view.forecast().unwrap()
        {
            let mut counts = vec![0; 32];
            forecast.ids.iter().for_each(|id| counts[*id as usize] += 1);
            self.0.push((view.layer as u32 + 1, counts));
        }
    }
}

#[test]
fn an_observer_sees_the_forecast_that_the_store_is_told() {
    let script = Script { wants_forecast: true, ..Script::default() };
    let (mut model, script) = watched("moe8ple", cpu(), Options { strip_rows: 10, ..Options::default() }, script);
    let ids: Vec<u32> = (0..37).map(|i| i * 7 % 500).collect();
    let (mut sequence, mut seen) = (model.new_sequence().unwrap(), Forecasts::default());
    model.forward(&mut sequence, &ids, Rows::Last, &mut Vec::new(), &mut seen).unwrap();
    let mut told: Vec<(u32, Vec<u32>)> = (1..8).map(|layer| (layer, vec![0; 32])).collect();
    for (layer, demands) in &script.lock().unwrap().forecasts {
        demands.iter().for_each(|demand| told[*layer as usize - 1].1[demand.expert as usize] += demand.tokens);
    }
    assert_eq!(seen.0, told);
}

#[test]
fn an_expert_that_cannot_be_read_ends_the_request_and_nothing_else() {
    let (mut model, script) = watched("moe8ple", cpu(), Options::default(), Script::default());
    let recorded = Recorded::open(&data("oracle/moe8ple/reference.safetensors"));
    let ids = recorded.u32("prefill.input_ids");
    let mut sequence = model.new_sequence().unwrap();
    script.lock().unwrap().fails_at = Some(5);
    let mut out = Vec::new();
    let error = model.forward(&mut sequence, &ids, Rows::All, &mut out, &mut Unobserved).unwrap_err();
    let text = error.to_string();
    for part in ["model.gguf", "offset 77", "3 of the 10 bytes"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(out.is_empty());
    assert_eq!(script.lock().unwrap().log.last().unwrap(), "abandon");

    // The torn sequence says so; reset, it gives the right answer.
    script.lock().unwrap().fails_at = None;
    let error = model.forward(&mut sequence, &ids, Rows::All, &mut out, &mut Unobserved).unwrap_err();
    assert!(matches!(error, ModelError::Interrupted));
    model.reset(&mut sequence);
    let got = logits(&mut model, &mut sequence, &ids, &[ids.len()]);
    assert!(max_difference(&got, &recorded.f32("prefill.logits")) <= 5e-5);
}
