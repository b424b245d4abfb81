//! The terminal of a conversation: one thread shows it and listens to keys, the caller's answers.
//!
//! Promises: whatever ends the conversation (keys, a signal, an error, a panic), the terminal is as it was before.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, DisableBracketedPaste, EnableBracketedPaste, Event, KeyEventKind};
use ratatui::crossterm::execute;
use strata_engine::bench::Counted;
use strata_engine::{Generated, Memory, Stop};

use super::view::{Action, Answered, Asked, Told, View};
use super::{Chat, Turn, has_answer};
use crate::error::CliError;
use crate::{interrupt, run, setup};

/// How soon text is shown, and a signal is heeded.
const TICK: Duration = Duration::from_millis(50);
/// How often the memory of the process is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(super) fn talk(chat: &mut Chat) -> Result<(), CliError> {
    let (ask, asked) = channel();
    let (tell, told) = channel();
    let name = chat.engine.path().file_name().unwrap_or_default().display().to_string();
    let model = format!("{name} on {}", chat.engine.model().describe_backend());
    let view = View::new(model, chat.engine.model().context_tokens(), chat.engine.plan().total_bytes());
    let progress = tell.clone();
    chat.engine.on_prompt_progress(move |done| drop(progress.send(Told::Reading(done))));
    let is_hung_up = hang_up_flag().map_err(|error| terminal_failed(&error))?;
    // Ends an answer; a signal ends the conversation, too.
    let stop = Stop::new(false);
    let mut last = None;
    let (answered, shown, is_signalled) = interrupt::stoppable(|leave| {
        let is_over = || leave.load(Ordering::Relaxed) || is_hung_up.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            let screen = scope.spawn(|| Screen { view, ask, told, stop: &stop }.show(is_over));
            let answered = {
                let _ending = Ending(&tell);
                answer_all(chat, &asked, &tell, &stop, &mut last)
            };
            (answered, screen.join(), is_over())
        })
    });
    if let Some(generated) = last {
        setup::save_generated(&chat.engine, "chat", &generated);
    }
    match shown {
        Ok(Ok(())) if is_signalled => answered.and(Err(CliError::Interrupted)),
        Ok(shown) => answered.and(shown.map_err(|error| terminal_failed(&error))),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Ends the screen with whoever answers, a panic included: it is waited for.
struct Ending<'a>(&'a Sender<Told>);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        // The screen may have gone already.
        let _ = self.0.send(Told::End);
    }
}

fn terminal_failed(error: &io::Error) -> CliError {
    CliError::Failed(format!("the terminal: {error}: --plain shows lines only"))
}

/// Set when the system asks the program to end, or its terminal goes away.
fn hang_up_flag() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    #[cfg(unix)]
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// Answers what is asked, until nobody asks any more.
fn answer_all(
    chat: &mut Chat,
    asked: &Receiver<Asked>,
    tell: &Sender<Told>,
    stop: &Stop,
    last: &mut Option<Generated>,
) -> Result<(), CliError> {
    while let Ok(asked) = asked.recv() {
        let text = match asked {
            Asked::Say { text, is_again } => {
                if is_again {
                    chat.take_back();
                }
                text
            }
            Asked::Clear => {
                chat.clear();
                continue;
            }
        };
        let before = chat.engine.counted();
        let start = Instant::now();
        let mut first: Option<Instant> = None;
        let mut pieces = 0;
        let turn = chat.say(&text, |engine, session, ids, options| {
            let generated = engine.generate(session, ids, options, stop, |text| {
                // The first came with the prompt.
                let seconds = first.get_or_insert_with(Instant::now).elapsed().as_secs_f64();
                let tokens_s = (pieces > 0 && seconds > 0.0).then(|| f64::from(pieces) / seconds);
                pieces += 1;
                let _ = tell.send(Told::Text { text: text.to_owned(), tokens_s });
            });
            Ok(generated?)
        })?;
        let seconds = start.elapsed().as_secs_f64();
        let _ = tell.send(match turn {
            Turn::Answered(generated) => {
                let told = answered(&generated, chat.engine.counted(), &before, seconds);
                *last = Some(generated);
                Told::Answered(told)
            }
            Turn::Refused(problem) | Turn::Failed(problem) => Told::Unanswered(problem),
        });
    }
    Ok(())
}

/// An answer in figures.
fn answered(generated: &Generated, after: Counted, before: &Counted, seconds: f64) -> Answered {
    let rate =
        |tokens: usize, time: Duration| (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64());
    let streamed = after.since(before);
    Answered {
        summary: run::summary(generated),
        has_answer: has_answer(generated),
        used_tokens: generated.prompt_tokens + generated.tokens.len(),
        prompt_tokens_s: rate(generated.prompt_tokens - generated.reused_tokens, generated.prompt_time),
        tokens_s: rate(generated.tokens.len().saturating_sub(1), generated.decode_time),
        drive_bytes_s: streamed.read.bytes as f64 / seconds.max(1e-9),
        lookups: [streamed.resident, streamed.ahead, streamed.missed],
    }
}

struct Screen<'a> {
    view: View,
    ask: Sender<Asked>,
    told: Receiver<Told>,
    stop: &'a Stop,
}

/// Ends the answer that is on its way with the screen, a panic included.
impl Drop for Screen<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Screen<'_> {
    /// Shows the conversation until the user leaves it, or it `is_over`.
    fn show(mut self, is_over: impl Fn() -> bool) -> io::Result<()> {
        // A panic of any thread brings the terminal back before it is told.
        let mut terminal = ratatui::try_init()?;
        let shown = execute!(io::stdout(), EnableBracketedPaste).and_then(|()| self.show_on(&mut terminal, is_over));
        let restored = execute!(io::stdout(), DisableBracketedPaste).and(ratatui::try_restore());
        shown.and(restored)
    }

    fn show_on(&mut self, terminal: &mut DefaultTerminal, is_over: impl Fn() -> bool) -> io::Result<()> {
        let mut looked: Option<Instant> = None;
        let mut is_changed = true;
        while !is_over() {
            if looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
                looked = Some(Instant::now());
                self.view.set_rss(Memory::rss_bytes());
                is_changed = true;
            }
            while let Ok(told) = self.told.try_recv() {
                if matches!(told, Told::End) {
                    return Ok(());
                }
                self.view.hear(told);
                is_changed = true;
            }
            if std::mem::take(&mut is_changed) {
                terminal.draw(|frame| self.view.draw(frame))?;
            }
            if !event::poll(TICK)? {
                continue;
            }
            is_changed = true;
            let action = match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => self.view.press(key),
                Event::Paste(text) => self.view.paste(&text),
                _ => None,
            };
            match action {
                None => {}
                Some(Action::Leave) => return Ok(()),
                Some(Action::Stop) => self.stop.store(true, Ordering::Relaxed),
                Some(Action::Ask(asked)) => {
                    self.stop.store(false, Ordering::Relaxed);
                    if self.ask.send(asked).is_err() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}
