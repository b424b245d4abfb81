//! The terminal of a conversation: shows it and what the host is doing, and listens to keys.
//!
//! Promises: whatever ends the conversation (keys, a signal, an error, a panic), the terminal is as it was before.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, DisableBracketedPaste, EnableBracketedPaste, Event, KeyEventKind};
use ratatui::crossterm::execute;

use super::view::{Action, Asked, View};
use super::{Chat, Heard};
use crate::error::CliError;
use crate::interrupt;

/// How soon text is shown, and a signal is heeded.
const TICK: Duration = Duration::from_millis(50);
/// How often the host is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(super) fn talk(chat: &mut Chat) -> Result<(), CliError> {
    let is_hung_up = hang_up_flag().map_err(|error| terminal_failed(&error))?;
    let (shown, is_signalled) = interrupt::stoppable(|leave| {
        let is_over = || leave.load(Ordering::Relaxed) || is_hung_up.load(Ordering::Relaxed);
        (show(chat, is_over), is_over())
    });
    match shown {
        Ok(()) if is_signalled => Err(CliError::Interrupted),
        shown => shown.map_err(|error| terminal_failed(&error)),
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

/// Shows the conversation until the user leaves it, or it `is_over`.
fn show(chat: &mut Chat, is_over: impl Fn() -> bool) -> io::Result<()> {
    // A panic of any thread brings the terminal back before it is told.
    let mut terminal = ratatui::try_init()?;
    let shown = execute!(io::stdout(), EnableBracketedPaste).and_then(|()| show_on(&mut terminal, chat, is_over));
    let restored = execute!(io::stdout(), DisableBracketedPaste).and(ratatui::try_restore());
    shown.and(restored)
}

fn show_on(terminal: &mut DefaultTerminal, chat: &mut Chat, is_over: impl Fn() -> bool) -> io::Result<()> {
    let mut view = View::new(chat.model.clone());
    let mut looked: Option<Instant> = None;
    let mut is_changed = true;
    while !is_over() {
        if looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
            looked = Some(Instant::now());
            view.see(chat.host.status());
            is_changed = true;
        }
        while let Some(heard) = chat.hear() {
            view.hear(heard);
            is_changed = true;
        }
        if std::mem::take(&mut is_changed) {
            terminal.draw(|frame| view.draw(frame))?;
        }
        if !event::poll(TICK)? {
            continue;
        }
        is_changed = true;
        let action = match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => view.press(key),
            Event::Paste(text) => view.paste(&text),
            _ => None,
        };
        match action {
            None => {}
            Some(Action::Leave) => return Ok(()),
            Some(Action::Stop) => chat.stop(),
            Some(Action::Ask(Asked::Clear)) => chat.clear(),
            Some(Action::Ask(Asked::Say { text, is_again })) => {
                if is_again {
                    chat.take_back();
                }
                if let Err(problem) = chat.say(&text) {
                    view.hear(Heard::Failed(problem));
                }
            }
        }
    }
    Ok(())
}
