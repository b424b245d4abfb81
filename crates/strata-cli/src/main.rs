//! The `strata` command.
//!
//! Owns: what a user types and sees. Refuses: to know how anything is computed.
//!
//! Exit codes: 0 done; 1 it failed, `parity` found a difference, or `doctor` something broken; 2 the command line is wrong; 130 stopped by Ctrl-C
//! (`serve`: by a second one; the first ends it well).

mod bench;
mod calibrate;
mod chat;
mod doctor;
mod error;
mod exact;
mod flags;
mod hub;
mod input;
mod inspect;
mod interrupt;
mod models;
mod note;
mod plan;
mod priority;
mod probe;
mod profile;
mod pull;
mod route;
mod run;
mod serve;
mod setup;
mod sim;
mod synth;
mod timeline;
mod tokenize;
mod trace;

use std::process::ExitCode;

use clap::CommandFactory;

use crate::error::CliError;
use crate::flags::{BenchCommand, Cli, Command, EvalCommand, TraceCommand};

fn main() -> ExitCode {
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers; a reader that went away is no reason to complain.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { CliError::USAGE } else { 0 });
        }
    };
    let result = match cli.command {
        Command::Run(flags) => run::run(&flags),
        Command::Chat(flags) => chat::chat(&flags),
        Command::Serve(flags) => serve::serve(&flags),
        Command::Pull(flags) => pull::pull(&flags),
        Command::Models(flags) => models::models(&flags),
        Command::Inspect(flags) => inspect::inspect(&flags),
        Command::Plan(flags) => plan::plan(&flags),
        Command::Sim(flags) => sim::sim(&flags),
        Command::Trace(TraceCommand::Record(flags)) => trace::record(&flags),
        Command::Trace(TraceCommand::Replay(flags)) => trace::replay(&flags),
        Command::Probe(flags) => probe::probe(&flags),
        Command::Tokenize(flags) => tokenize::tokenize(&flags),
        Command::Logits(flags) => exact::logits(&flags),
        Command::Dump(flags) => exact::dump(&flags),
        Command::Parity(flags) => exact::parity(&flags),
        Command::Kld(flags) => exact::kld(&flags),
        Command::Eval(EvalCommand::Ppl(flags)) => exact::perplexity(&flags),
        Command::Synth(flags) => synth::synth(&flags),
        Command::Bench(BenchCommand::Prefill(flags)) => bench::prefill(&flags),
        Command::Bench(BenchCommand::Decode(flags)) => bench::decode(&flags),
        Command::Bench(BenchCommand::Kernels(flags)) => bench::kernels(&flags),
        Command::Report(flags) => timeline::report(&flags),
        Command::Doctor(flags) => doctor::doctor(&flags),
        Command::Calibrate(flags) => calibrate::calibrate(&flags),
        Command::Completions { shell } => completions(shell),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(text) = error.text() {
                note::line(format_args!("strata: {text}"));
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "strata", &mut script);
    Ok(std::io::Write::write_all(&mut std::io::stdout(), &script)?)
}
