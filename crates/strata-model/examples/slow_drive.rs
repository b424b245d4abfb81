//! Tokens one by one from drives of several speeds, without read-ahead, with forecasts of the next layer and with early ones,
//! too, in turns, on the model that ships:
//!
//!     cargo run --release -p strata-model --example slow_drive [TURNS]
//!
//! Three tenths of the experts have slots. The drive is simulated: the file is in memory, and reads end when a drive of that
//! speed would have done them one after the other.

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use common::{Recorded, strata_mini};
use strata_backend::{CpuBackend, Isa};
use strata_gguf::Gguf;
use strata_model::ModelError;
use strata_model::qwen4exp::{Model, Options, Rows, Streaming, Unobserved};
use strata_store::reads::faulty::{Faults, Faulty};
use strata_store::reads::{self, Port, ReaderKind};
use strata_store::scheduler::{Class, Counts, Forecasts};
use strata_store::{Lookahead, StoreError};

const SIDES: [Lookahead; 3] = [Lookahead::Off, Lookahead::Router, Lookahead::Router2];
const CONTEXT_TOKENS: usize = 64;
const TOKENS: usize = 128;

fn main() {
    let turns = std::env::args().nth(1).map_or(9, |turns| turns.parse().expect("a number of turns"));
    let ids = Recorded::open(&strata_mini("reference.safetensors")).u32("prompt2.token_ids");
    let (warm_up, ids) = ids.split_at(ids.len() / 2);
    let ids = &ids[..CONTEXT_TOKENS + TOKENS];
    println!("                                                        right, of what was missing        read/needed");
    println!("drive      off tok/s   router/off   router2/router   router         router2: early     router  router2");
    for bytes_per_second in [0.25e9, 0.5e9, 1e9, 2e9, f64::INFINITY] {
        measure(bytes_per_second, turns, warm_up, ids).expect("the shipped model can be read");
    }
}

fn measure(bytes_per_second: f64, turns: usize, warm_up: &[u32], ids: &[u32]) -> Result<(), ModelError> {
    let faults = Faults::default();
    let mut model = open(&faults)?;
    let mut sequence = model.new_sequence()?;
    model.forward(&mut sequence, warm_up, Rows::Last, &mut Vec::new(), &mut Unobserved)?;
    model.free(sequence);
    store(&mut model).start_over()?;
    let mut seconds = SIDES.map(|_| Vec::new());
    let mut counts = SIDES.map(|_| Counts::default());
    for turn in 0..=turns {
        for side in (0..SIDES.len()).map(|at| (at + turn) % SIDES.len()) {
            faults.slow_down(None);
            let streaming = Streaming { lookahead: SIDES[side], forecast_min: 1, ..Streaming::default() };
            model.set_streaming(1024, &streaming);
            store(&mut model).forget_all()?;
            model.load_experts(&mut |_, _| true)?;
            let mut sequence = model.new_sequence()?;
            let (context, ids) = ids.split_at(CONTEXT_TOKENS);
            model.forward(&mut sequence, context, Rows::Last, &mut Vec::new(), &mut Unobserved)?;
            let before = *store(&mut model).counts();
            faults.slow_down(Some(bytes_per_second));
            let (start, mut logits) = (Instant::now(), Vec::new());
            for id in ids {
                logits.clear();
                model.forward(&mut sequence, &[*id], Rows::Last, &mut logits, &mut Unobserved)?;
            }
            // The first turn warms up.
            if turn > 0 {
                seconds[side].push(start.elapsed().as_secs_f64());
            }
            counts[side] = between(&before, store(&mut model).counts());
            model.free(sequence);
        }
    }
    let ratio = |a: usize, b: usize| median(seconds[a].iter().zip(&seconds[b]).map(|(a, b)| a / b).collect());
    let worth = |of: Forecasts| {
        let percent = |part: Option<f64>| 100.0 * part.unwrap_or(0.0);
        format!("{:4.1} % {:5.1} %", percent(of.precision()), percent(of.recall()))
    };
    let read_by_needed = |counts: &Counts| {
        let read = counts.read[Class::Demand] + counts.read[Class::ReadAhead];
        read.bytes as f64 / (counts.ahead + counts.missed).bytes as f64
    };
    println!(
        "{:>4.2} GB/s {:>10.1} {:>12.3} {:>16.3}   {}  {}: {}   {:.2}    {:.2}",
        bytes_per_second / 1e9,
        TOKENS as f64 / median(seconds[0].clone()),
        ratio(1, 0),
        ratio(2, 1),
        worth(counts[1].forecast),
        worth(counts[2].forecast),
        worth(counts[2].early_forecast),
        read_by_needed(&counts[1]),
        read_by_needed(&counts[2]),
    );
    Ok(())
}

fn open(faults: &Faults) -> Result<Model, ModelError> {
    let gguf = Gguf::open(&strata_mini("strata-mini-iq2xs-q4_0.gguf"))?;
    let port = |files: &[_], areas: &[_], depth: usize| -> Result<Box<dyn Port>, StoreError> {
        Ok(Box::new(Faulty::new(reads::open(ReaderKind::Auto, files, areas, depth)?, depth as u64, faults)))
    };
    // Twelve layers of 96.
    let streaming = Streaming { slots: Some(12 * 96 * 3 / 10), ..Streaming::default() };
    let backend = CpuBackend::fast(Isa::best(), 0).expect("the best that this machine has");
    Model::load_with(&gguf, Box::new(backend), Options { streaming, ..Options::default() }, &port, |store| {
        Box::new(store)
    })
}

fn store(model: &mut Model) -> &mut strata_store::StreamingStore {
    model.streaming().expect("it streams")
}

fn between(before: &Counts, after: &Counts) -> Counts {
    let mut counts = *after;
    counts.ahead = after.ahead - before.ahead;
    counts.missed = after.missed - before.missed;
    for class in [Class::Demand, Class::ReadAhead] {
        counts.read[class] = after.read[class] - before.read[class];
    }
    counts.forecast = after.forecast - before.forecast;
    counts.early_forecast = after.early_forecast - before.early_forecast;
    counts
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
}
