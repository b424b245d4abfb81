//! What steps of several sequences save: each of them writes the same number of tokens one after the other, and all of them
//! together, in turns.
//!
//!     cargo run --release -p strata-model --example company [MODEL.gguf] [SEQUENCES] [TOKENS] [SLOTS]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use strata_backend::{CpuBackend, Isa};
use strata_gguf::Gguf;
use strata_model::ModelError;
use strata_model::qwen4exp::{Model, Options, Part, Rows, Sequence, Streaming, Unobserved};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mini = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/strata-mini/strata-mini-iq2xs-q4_0.gguf");
    let path = PathBuf::from(args.next().unwrap_or(mini.to_owned()));
    let count: usize = args.next().map_or(Ok(4), |count| count.parse())?;
    let tokens: u32 = args.next().map_or(Ok(32), |tokens| tokens.parse())?;
    let slots = args.next().map(|slots| slots.parse()).transpose()?;
    let options = Options { streaming: Streaming { slots, ..Streaming::default() }, ..Options::default() };
    let backend = Box::new(CpuBackend::fast(Isa::best(), 0)?);
    let mut model = Model::load(&Gguf::open(&path)?, backend, options)?;
    model.load_experts(&mut |_, _| true)?;
    let mut sequences = Vec::new();
    for at in 0..count as u32 {
        let mut sequence = model.new_sequence()?;
        let prompt: Vec<u32> = (0..64).map(|token| (at * 131 + token * 7) % 500).collect();
        model.forward(&mut sequence, &prompt, Rows::Last, &mut Vec::new(), &mut Unobserved)?;
        sequences.push(sequence);
    }
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for turn in 0..tokens {
        alone.push(one_by_one(&mut model, &mut sequences, turn % 500)?);
        together.push(in_a_step(&mut model, &mut sequences, turn % 500)?);
    }
    let [alone, together] = [alone, together].map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    });
    println!(
        "{count} tokens one by one {alone:.1?}, together {together:.1?}: {:.3}",
        together.as_secs_f64() / alone.as_secs_f64()
    );
    Ok(())
}

fn one_by_one(model: &mut Model, sequences: &mut [Sequence], id: u32) -> Result<Duration, ModelError> {
    let start = Instant::now();
    for sequence in sequences {
        model.decode(sequence, &[id], Rows::Last, &mut Vec::new(), &mut Unobserved)?;
    }
    Ok(start.elapsed())
}

fn in_a_step(model: &mut Model, sequences: &mut [Sequence], id: u32) -> Result<Duration, ModelError> {
    let mut workspace = model.new_workspace(sequences.len())?;
    let ids = [id];
    let mut parts: Vec<_> = sequences.iter_mut().map(|sequence| Part { sequence, ids: &ids }).collect();
    let start = Instant::now();
    model.step(&mut workspace, &mut parts, &mut Vec::new(), &mut Unobserved)?;
    let time = start.elapsed();
    model.free_workspace(workspace);
    Ok(time)
}
