//! `strata run`: one prompt, one answer.

use std::io::Write;

use strata_engine::bench::Counted;
use strata_engine::{Engine, EngineOptions, Finish, GenerateOptions, Generated};

use crate::error::CliError;
use crate::flags::RunFlags;
use crate::{input, interrupt, note, profile, route, setup, timeline};

pub(crate) fn run(flags: &RunFlags) -> Result<(), CliError> {
    setup::check_sampling(&flags.sampling)?;
    let prompt = prompt(flags)?;
    interrupt::install()?;
    let path = setup::model_path(flags.model.model.as_deref())?;
    let recorder = timeline::recorder(flags.timeline.as_deref())?;
    let mut engine_options = EngineOptions {
        is_profiled: flags.profile,
        drafts: setup::drafts(&flags.drafts),
        ..setup::engine_options(&flags.engine)
    };
    engine_options.model.timeline = recorder.clone();
    let mut engine = setup::open_telling(&path, &engine_options)?;
    let ids = encode(&engine, flags, prompt)?;
    let options = GenerateOptions {
        max_tokens: flags.sampling.tokens,
        sampling: setup::sampling(&flags.sampling, engine.sampling()?),
    };
    let mut session = engine.new_session()?;
    recorder.begin();
    let generated = stream(&mut engine, &mut session, &ids, &options)?;
    recorder.end();
    // What was expected of the run does not know what it used.
    setup::save_generated(&engine.run_keeper(), "run", &generated);
    setup::save_usage(&mut engine);
    writeln!(std::io::stdout())?;
    note::line(summary(&generated));
    if let Some(line) = streamed_summary(&mut engine) {
        note::line(line);
    }
    if let Some(profile) = engine.take_profile() {
        note::part(profile::table(&profile));
    }
    let Generated { prompt_tokens, tokens, .. } = &generated;
    let title = format!("run, {prompt_tokens} tokens of prompt, {} written", tokens.len());
    timeline::write(&recorder, flags.timeline.as_deref(), &title, &setup::describe(&engine))?;
    match generated.finish {
        Finish::Stopped => Err(CliError::Interrupted),
        _ => Ok(()),
    }
}

/// Generates and prints text as it comes. Ctrl-C ends it; so does a reader that goes away.
fn stream(
    engine: &mut Engine,
    session: &mut strata_engine::Session,
    ids: &[u32],
    options: &GenerateOptions,
) -> Result<Generated, CliError> {
    let mut stdout = std::io::stdout();
    let mut written = Ok(());
    let generated = interrupt::stoppable(|stop| {
        engine.generate(session, ids, options, stop, |text| {
            if written.is_ok() {
                written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
            }
            if written.is_err() {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        })
    })?;
    written?;
    Ok(generated)
}

fn prompt(flags: &RunFlags) -> Result<String, CliError> {
    let Some(path) = &flags.file else {
        return input::argument_or_stdin(flags.prompt.as_deref(), "prompt");
    };
    let text = input::text_file(path)?;
    Ok(match flags.prompt.as_deref() {
        None => text,
        Some("-") => return Err(CliError::Usage("the prompt `-` and --file cannot be used together".to_owned())),
        Some(prompt) => format!("{prompt}\n\n{text}"),
    })
}

fn encode(engine: &Engine, flags: &RunFlags, prompt: String) -> Result<Vec<u32>, CliError> {
    if prompt.is_empty() {
        return Err(strata_engine::EngineError::EmptyPrompt.into());
    }
    // A file without a tokenizer often has no chat template either: the message about the former is the one that helps.
    let tokenizer = engine.tokenizer()?;
    if flags.raw {
        return Ok(tokenizer.encode(&prompt, true).map_err(strata_engine::EngineError::from)?);
    }
    let system = flags.system.iter().map(|text| ("system".to_owned(), text.clone()));
    let messages: Vec<_> = system.chain([("user".to_owned(), prompt)]).collect();
    Ok(engine.encode_chat(&messages)?)
}

/// One line on where experts came from, and what the forecasts for single tokens were worth; `None` where all have slots.
fn streamed_summary(engine: &mut Engine) -> Option<String> {
    if !engine.streams() {
        return None;
    }
    let streamed = engine.counted().since(&Counted::default());
    let all = (streamed.resident + streamed.ahead + streamed.missed).max(1) as f64;
    let part = |n: u64| 100.0 * n as f64 / all;
    let [forecast, early] = [("forecast", streamed.forecast), ("early", streamed.early_forecast)].map(|(name, of)| {
        of.precision().zip(of.recall()).map_or(String::new(), |(precision, recall)| {
            format!(" | {name}: {:.1} % right, {:.1} % of what was missing", 100.0 * precision, 100.0 * recall)
        })
    });
    Some(format!(
        "[experts: {:.1} % resident, {:.1} % ahead, {:.1} % missed, {:.2} GB read{forecast}{early}]",
        part(streamed.resident),
        part(streamed.ahead),
        part(streamed.missed),
        streamed.read.bytes as f64 / 1e9,
    ))
}

/// One line on what a generation took.
pub(crate) fn summary(generated: &Generated) -> String {
    let rate = |tokens: usize, time: std::time::Duration| match (tokens, time.as_secs_f64()) {
        (0, _) => String::new(),
        (_, 0.0) => String::new(),
        (tokens, seconds) => format!(", {:.1} tok/s", tokens as f64 / seconds),
    };
    let Generated { tokens, prompt_tokens, reused_tokens, prompt_time, decode_time, finish, drafts, routes } =
        generated;
    let reused = if *reused_tokens > 0 { format!(" ({reused_tokens} known)") } else { String::new() };
    let finish = match finish {
        Finish::EndOfTurn => "",
        Finish::MaxTokens => ", stopped at --tokens",
        Finish::ContextFull => ", stopped: the context is full",
        Finish::Stopped => ", stopped",
        Finish::Repeated => ", stopped: one token again and again",
    };
    let drafts = match drafts.proposed {
        0 => String::new(),
        all => format!(" | drafts: {} % of {all} accepted", (100 * drafts.accepted + all / 2) / all),
    };
    let routes = routes.as_ref().and_then(route::summary).map(|routes| format!(" | {routes}")).unwrap_or_default();
    // The first token comes with the prompt's logits: the time of the rest is that of one token less.
    format!(
        "[prompt: {prompt_tokens} tokens{reused}{} | written: {} tokens{}{finish}{drafts}{routes}]",
        rate(prompt_tokens - reused_tokens, *prompt_time),
        tokens.len(),
        rate(tokens.len().saturating_sub(1), *decode_time),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn field_report_26_rates_are_never_zero_or_infinite() {
        let generated = |prompt_tokens, tokens: usize, ms| Generated {
            tokens: vec![1; tokens],
            finish: Finish::Stopped,
            prompt_tokens,
            reused_tokens: 0,
            prompt_time: Duration::from_millis(ms),
            decode_time: Duration::from_millis(ms),
            drafts: Default::default(),
            routes: None,
        };
        for (prompt_tokens, tokens, ms) in [(0, 0, 0), (0, 1, 0), (5, 5, 0), (5, 0, 10), (5, 1, 10), (0, 0, 10)] {
            let shown = summary(&generated(prompt_tokens, tokens, ms));
            assert!(!shown.contains("inf") && !shown.contains("NaN") && !shown.contains(" 0.0 tok/s"), "{shown}");
        }
        let shown = summary(&generated(5, 3, 500));
        assert!(shown.contains("5 tokens, 10.0 tok/s") && shown.contains("3 tokens, 4.0 tok/s"), "{shown}");
    }
}
