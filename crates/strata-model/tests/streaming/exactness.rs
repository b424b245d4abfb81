//! One text, run in many ways: one setting changed at a time, some by chance together, and all of them give the bytes of a
//! run with every expert and the whole n-gram table in memory.

use std::time::Duration;

use strata_backend::Field;
use strata_gguf::Gguf;
use strata_model::qwen4exp::{LayerView, Moment, Observer, Options, Rows, RowsWhen, Streaming, Unobserved};
use strata_store::Lookahead;
use strata_store::reads::faulty::{Fault, Faults, Rule};
use strata_store::reads::{self, ReaderKind};

use crate::{Bed, mini, reference, run_unobserved, streams};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Slots {
    /// The smallest legal arena.
    Smallest,
    Quarter,
    All,
}

/// A way to run a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) slots: Slots,
    pub(crate) threads: usize,
    pub(crate) reader: ReaderKind,
    pub(crate) lookahead: Lookahead,
    pub(crate) forecast_min: u32,
    pub(crate) rows_when: RowsWhen,
    pub(crate) pass_tokens: usize,
    pub(crate) strip_rows: usize,
    /// Whether reads come late and in another order.
    pub(crate) is_late: bool,
}

pub(crate) const BASE: Way = Way {
    slots: Slots::Quarter,
    threads: 2,
    reader: ReaderKind::Auto,
    lookahead: Lookahead::Router,
    forecast_min: 1,
    rows_when: RowsWhen::Beside,
    pass_tokens: 1024,
    strip_rows: 256,
    is_late: false,
};

/// One thing changed at a time; passes and strips are divided by `scale`.
pub(crate) fn ways(readers: &[ReaderKind], scale: usize) -> Vec<Way> {
    let base = Way { pass_tokens: BASE.pass_tokens / scale, strip_rows: BASE.strip_rows / scale, ..BASE };
    let mut ways = vec![
        base,
        Way { slots: Slots::Smallest, ..base },
        Way { slots: Slots::All, ..base },
        Way { threads: 1, ..base },
        Way { lookahead: Lookahead::Off, ..base },
        Way { lookahead: Lookahead::Profile, ..base },
        Way { forecast_min: 3, ..base },
        Way { rows_when: RowsWhen::Before, ..base },
        Way { pass_tokens: 256 / scale, ..base },
        Way { pass_tokens: 4096 / scale, ..base },
        Way { strip_rows: 100 / scale, ..base },
        Way { is_late: true, ..base },
    ];
    ways.extend(readers.iter().map(|reader| Way { reader: *reader, ..base }));
    ways
}

/// Many things changed at a time.
pub(crate) fn random_ways(readers: &[ReaderKind], scale: usize, count: usize) -> Vec<Way> {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |limit: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 33) as usize % limit
    };
    let way = |_| Way {
        slots: [Slots::Smallest, Slots::Quarter, Slots::All][below(3)],
        threads: 1 + below(2),
        reader: readers[below(readers.len())],
        lookahead: [Lookahead::Off, Lookahead::Profile, Lookahead::Router, Lookahead::Router2][below(4)],
        forecast_min: [1, 3][below(2)],
        rows_when: [RowsWhen::Before, RowsWhen::Beside][below(2)],
        pass_tokens: [256, 1024, 4096][below(3)] / scale,
        strip_rows: [64, 100, 256][below(3)] / scale,
        is_late: below(2) == 0,
    };
    (0..count).map(way).collect()
}

/// Kinds of readers that this system has.
pub(crate) fn readers(bed: &Bed) -> Vec<ReaderKind> {
    let files = Gguf::open(&bed.path).unwrap().reopen_files().unwrap();
    let readers: Vec<_> =
        ReaderKind::ALL.into_iter().filter(|kind| reads::open(*kind, &files, &[], 4).is_ok()).collect();
    assert!(readers.len() >= 3, "{readers:?}");
    readers
}

/// Reads that come late by up to this time, and in an order by chance.
pub(crate) fn late(most: Duration) -> Faults {
    let faults = Faults::default();
    faults.set(vec![Rule { file: 0, bytes: 0..u64::MAX, one_in: 8, times: u32::MAX, fault: Fault::Late(most) }]);
    faults
}

pub(crate) fn options(way: &Way, (experts, top_k): (usize, usize), usage: &[u32]) -> Options {
    let slots = match way.slots {
        Slots::Smallest => 2 * top_k + 1,
        Slots::Quarter => experts / 4,
        Slots::All => experts,
    };
    let usage = if way.lookahead == Lookahead::Profile { usage.to_vec() } else { Vec::new() };
    let options = streams(slots);
    let &Way { reader, lookahead, forecast_min, rows_when, pass_tokens, strip_rows, .. } = way;
    let streaming = Streaming { reader, lookahead, forecast_min, rows_when, usage, ..options.streaming };
    Options { streaming, pass_tokens, strip_rows, ..options }
}

/// Runs `bed` in all of these ways; each must give the bytes of the run from memory.
fn check(bed: &Bed, ways: &[Way]) {
    let experts = bed.experts();
    let mut resident = bed.open(2, Options::default(), &Faults::default()).0;
    let expected = run_unobserved(&mut resident, &bed.ids).unwrap();
    assert!(expected.iter().all(|bits| f32::from_bits(*bits).is_finite()));
    let usage = resident.streaming().unwrap().usage().counts().to_vec();
    assert!(usage.iter().sum::<u32>() as usize >= bed.ids.len() * experts.1);
    drop(resident);
    for way in ways {
        let faults = if way.is_late { late(Duration::from_micros(800)) } else { Faults::default() };
        let (mut model, seen) = bed.open(way.threads, options(way, experts, &usage), &faults);
        if way.lookahead == Lookahead::Profile {
            model.load_experts(&mut |_, _| true).unwrap();
        }
        let logits = run_unobserved(&mut model, &bed.ids).unwrap_or_else(|error| panic!("{way:?}: {error}"));
        assert!(logits == expected, "{way:?}");
        seen.check_none_is_out();
        let store = model.streaming().unwrap();
        assert!(store.resident() <= store.slots(), "{way:?}");
        let (counts, slots) = (*store.counts(), store.slots());
        assert!(slots == experts.0 || counts.evictions > 0, "records had to give way: {way:?}");
        assert_eq!(model.row_counts().rows > 0, model.config().ple.is_some(), "rows were streamed: {way:?}");
    }
}

#[test]
fn field_report_32_40_the_shipped_model_gives_the_same_bytes_in_every_way() {
    let bed = mini(520);
    let readers = readers(&bed);
    let mut all = ways(&readers, 1);
    all.extend(random_ways(&readers, 1, 3));
    check(&bed, &all);
}

/// The ring wraps many times: 1,152 experts a pass go through 17 slots.
#[test]
fn field_report_32_prompts_of_1k_and_4k_tokens_give_the_same_bytes() {
    let text = mini(520).ids;
    for (tokens, pass_tokens) in [(1024, 1024), (4000, 1000)] {
        let ids: Vec<u32> = (0..tokens).map(|at| text[at * 7 % text.len()]).collect();
        let bed = Bed { ids, ..mini(0) };
        check(&bed, &[Way { slots: Slots::Smallest, pass_tokens, ..BASE }]);
    }
}

#[test]
fn field_report_32_40_float32_gives_the_same_bytes_in_every_way() {
    let bed = Bed { is_precise: true, ..mini(300) };
    check(&bed, &random_ways(&readers(&bed), 2, 4));
}

#[test]
fn a_reference_model_gives_the_same_bytes_in_every_way() {
    for is_precise in [false, true] {
        let bed = Bed { is_precise, ..reference("moe8ple") };
        let readers = readers(&bed);
        let mut all = ways(&readers, 16);
        all.extend(random_ways(&readers, 16, 20));
        check(&bed, &all);
    }
}

#[test]
fn field_report_33_a_long_text_gives_the_same_bytes_in_every_way() {
    let bed = reference("longqsa");
    check(&bed, &random_ways(&readers(&bed), 8, 8));
}

/// Everything that can be looked at.
#[derive(Default, PartialEq)]
struct Dump {
    /// With the layer and the name of the field, row by row.
    values: Vec<(usize, &'static str, Vec<u32>)>,
}

impl Dump {
    fn add(&mut self, view: &mut LayerView<'_>, fields: &[(&'static str, Field)]) {
        for (name, field) in fields {
            let values: Vec<u32> = view.read(*field).into_iter().map(f32::to_bits).collect();
            self.append(view.layer, name, values);
        }
    }

    /// Rows come in order, whatever strips and passes they come in.
    fn append(&mut self, layer: usize, name: &'static str, values: Vec<u32>) {
        match self.values.iter_mut().find(|(l, n, _)| (*l, *n) == (layer, name)) {
            Some((_, _, all)) => all.extend(values),
            None => self.values.push((layer, name, values)),
        }
    }
}

impl Observer for Dump {
    fn at(&mut self, moment: Moment, view: &mut LayerView<'_>) {
        if moment == Moment::StripMixed {
            self.add(view, &[("mixer inject", Field::Inject), ("mixer output", Field::Output)]);
            for row in view.rows.clone() {
                let blocks = view.selected_blocks(row).unwrap_or_default();
                self.append(view.layer, "blocks", blocks);
            }
            return;
        }
        let fields = [
            ("streams", Field::Streams),
            ("input", Field::Mixed),
            ("inject", Field::Inject),
            ("output", Field::Output),
            ("router logits", Field::RouterLogits),
            ("expert hidden", Field::ExpertHidden),
            ("expert output", Field::ExpertOutput),
            ("shared gate", Field::SharedGate),
        ];
        self.add(view, &fields);
        self.append(view.layer, "route", view.routes.ids.clone());
        self.append(view.layer, "weights", view.routes.weights.iter().map(|weight| weight.to_bits()).collect());
        self.append(view.layer, "n-gram rows", view.ple_rows.iter().map(|row| *row as u32).collect());
    }
}

#[test]
fn everything_that_is_computed_is_the_same() {
    for bed in [mini(100), reference("moe8ple")] {
        let experts = bed.experts();
        let dump = |options: Options, threads, faults: &Faults| {
            let mut model = bed.open(threads, Options { keep_details: true, ..options }, faults).0;
            let mut sequence = model.new_sequence().unwrap();
            let (mut logits, mut dump) = (Vec::new(), Dump::default());
            model.forward(&mut sequence, &bed.ids, Rows::All, &mut logits, &mut dump).unwrap();
            (logits.into_iter().map(f32::to_bits).collect::<Vec<_>>(), dump, model.config().layers)
        };
        let (logits, whole, layers) = dump(Options::default(), 2, &Faults::default());
        assert_eq!(whole.values.len(), layers * 14, "fields of a layer");
        let smallest = Way { slots: Slots::Smallest, pass_tokens: 64, strip_rows: 24, is_late: true, ..BASE };
        let quarter = Way { lookahead: Lookahead::Off, rows_when: RowsWhen::Before, pass_tokens: 40, ..BASE };
        for (way, threads) in [(smallest, 1), (quarter, 2)] {
            let faults = if way.is_late { late(Duration::from_micros(800)) } else { Faults::default() };
            let (other_logits, other, _) = dump(options(&way, experts, &[]), threads, &faults);
            for ((layer, name, a), (_, _, b)) in whole.values.iter().zip(&other.values) {
                assert!(a == b, "{name} of layer {layer}: {way:?}");
            }
            assert!(other == whole && other_logits == logits, "{way:?}");
        }
    }
}

/// Tokens one by one, with a slow drive, so that some experts are read ahead in time, some too late, and some in vain.
#[test]
fn tokens_one_by_one_are_the_same_whatever_is_read_ahead() {
    for (bed, tokens) in [(mini(64), 24), (reference("moe8ple"), 12)] {
        let experts = bed.experts();
        let (context, ids) = bed.ids.split_at(bed.ids.len() - tokens);
        let decode = |model: &mut strata_model::qwen4exp::Model| {
            let (mut sequence, mut logits) = (model.new_sequence().unwrap(), Vec::new());
            for piece in std::iter::once(context).chain(ids.chunks(1)) {
                model.forward(&mut sequence, piece, Rows::Last, &mut logits, &mut Unobserved).unwrap();
            }
            logits.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let expected = decode(&mut bed.open(2, Options::default(), &Faults::default()).0);
        for lookahead in [Lookahead::Off, Lookahead::Profile, Lookahead::Router, Lookahead::Router2] {
            for (slots, bytes_per_second) in [(Slots::Smallest, 2e9), (Slots::Quarter, 0.5e9), (Slots::Quarter, 2e9)] {
                let faults = late(Duration::from_micros(200));
                faults.slow_down(Some(bytes_per_second));
                let way = Way { slots, lookahead, ..BASE };
                let mut model = bed.open(2, options(&way, experts, &[]), &faults).0;
                assert!(decode(&mut model) == expected, "{way:?}, {bytes_per_second} B/s");
                let counts = *model.streaming().unwrap().counts();
                let forecast = counts.forecast;
                let asks_routers = matches!(lookahead, Lookahead::Router | Lookahead::Router2);
                assert_eq!(forecast.named > 0, asks_routers, "{way:?}: {forecast:?}");
                // Whether there was time for early ones is the machine's matter.
                let early = counts.early_forecast;
                assert!(early.named == 0 || lookahead == Lookahead::Router2, "{way:?}: {early:?}");
                assert!(early.right <= early.named.min(early.missing), "{way:?}: {early:?}");
                assert!(forecast.right <= forecast.named.min(forecast.missing), "{way:?}: {forecast:?}");
                // More tokens than one need what the forecast names: it is better than chance.
                let by_chance = experts.1 as f64 / (experts.0 / model.config().layers) as f64;
                assert!(forecast.precision().is_none_or(|part| part > by_chance), "{way:?}: {forecast:?}");
            }
        }
    }
}
