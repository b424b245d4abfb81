//! What a conversation looks like in a terminal, and what its keys mean. Knows neither a terminal nor an engine.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Position, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph};

use strata_engine::host::Status;

use super::input::{Input, wrap};
use super::panel::figures;
use super::{Heard, has_answer};
use crate::run;

/// Columns of the panel of figures, and of a terminal that has room for it.
const PANEL_COLUMNS: u16 = 30;
const WIDE_COLUMNS: u16 = 80;
const HELP: &str = "Enter send | ^C stop | ^R again | Up earlier | PgUp scroll | /clear | ^D leave";

/// What the user asks of the conversation.
#[derive(Debug, PartialEq)]
pub(super) enum Asked {
    /// An answer; another one to what was said last, if `is_again`.
    Say {
        text: String,
        is_again: bool,
    },
    Clear,
}

/// What a key means to others than the view.
#[derive(Debug, PartialEq)]
pub(super) enum Action {
    Ask(Asked),
    /// The answer that is on its way.
    Stop,
    Leave,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Who {
    User,
    Model,
    /// The program.
    Note,
}

enum Phase {
    Idle,
    Reading(f64),
    Writing,
}

pub(super) struct View {
    model: String,
    entries: Vec<(Who, String)>,
    input: Input,
    phase: Phase,
    /// Whether what was said last got an answer.
    is_answered: bool,
    /// Lines between the end of the transcript and the last one that is shown.
    scrolled: usize,
    /// Lines that fit, when it was last drawn.
    page: usize,
    /// What the host is doing.
    status: Status,
    /// Tokens of the conversation.
    used_tokens: usize,
}

impl View {
    pub(super) fn new(model: String) -> Self {
        Self {
            model,
            entries: Vec::new(),
            input: Input::default(),
            phase: Phase::Idle,
            is_answered: false,
            scrolled: 0,
            page: 1,
            status: Status::default(),
            used_tokens: 0,
        }
    }

    /// What the host is doing now.
    pub(super) fn see(&mut self, status: Status) {
        if let Some(request) = status.active.first() {
            self.used_tokens = request.prompt_tokens + request.written_tokens;
        }
        self.status = status;
    }

    pub(super) fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Reading(done) if done < 1.0 => self.phase = Phase::Reading(done),
            Heard::Reading(_) => self.phase = Phase::Writing,
            Heard::Text(text) => {
                self.phase = Phase::Writing;
                self.write(&text);
            }
            Heard::Answered(rest, generated) => {
                self.phase = Phase::Idle;
                self.write(&rest);
                self.is_answered = has_answer(&generated);
                self.used_tokens = generated.prompt_tokens + generated.tokens.len();
                self.entries.push((Who::Note, run::summary(&generated)));
            }
            Heard::Failed(problem) => {
                self.phase = Phase::Idle;
                self.entries.push((Who::Note, problem));
            }
        }
    }

    fn write(&mut self, text: &str) {
        match self.entries.last_mut() {
            _ if text.is_empty() => {}
            Some((Who::Model, answer)) => answer.push_str(text),
            _ => self.entries.push((Who::Model, text.to_owned())),
        }
    }

    fn is_answering(&self) -> bool {
        !matches!(self.phase, Phase::Idle)
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> Option<Action> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') if self.is_answering() => return Some(Action::Stop),
                KeyCode::Char('c') => self.input.clear(),
                KeyCode::Char('d') => return Some(Action::Leave),
                KeyCode::Char('r') if !self.is_answering() => return self.again(),
                KeyCode::Char('u') => self.input.clear(),
                KeyCode::Char('a') => self.input.start(),
                KeyCode::Char('e') => self.input.end(),
                _ => {}
            }
            return None;
        }
        match key.code {
            KeyCode::Enter if !self.is_answering() => return self.send(),
            KeyCode::Char(c) => self.input.insert(c.encode_utf8(&mut [0; 4])),
            KeyCode::Backspace => self.input.remove_before(),
            KeyCode::Delete => self.input.remove_after(),
            KeyCode::Left => self.input.left(),
            KeyCode::Right => self.input.right(),
            KeyCode::Home => self.input.start(),
            KeyCode::End => self.input.end(),
            KeyCode::Up => self.input.up(),
            KeyCode::Down => self.input.down(),
            // What was read last stays in sight. The drawing knows how far it goes.
            KeyCode::PageUp => self.scrolled += self.page.saturating_sub(1).max(1),
            KeyCode::PageDown => self.scrolled = self.scrolled.saturating_sub(self.page.saturating_sub(1).max(1)),
            _ => {}
        }
        None
    }

    pub(super) fn paste(&mut self, text: &str) -> Option<Action> {
        self.input.insert(text);
        None
    }

    fn send(&mut self) -> Option<Action> {
        let text = self.input.take()?;
        self.scrolled = 0;
        match text.as_str() {
            "/exit" | "/quit" | "/bye" => return Some(Action::Leave),
            "/clear" => {
                self.entries.clear();
                self.used_tokens = 0;
                return Some(Action::Ask(Asked::Clear));
            }
            command if command.starts_with('/') => self.entries.push((Who::Note, HELP.to_owned())),
            _ => {
                self.entries.push((Who::User, text.clone()));
                self.is_answered = false;
                self.phase = Phase::Reading(0.0);
                return Some(Action::Ask(Asked::Say { text, is_again: false }));
            }
        }
        None
    }

    /// Takes the last answer off the screen and asks for another; or what got none, once more.
    fn again(&mut self) -> Option<Action> {
        let asked = self.entries.iter().rposition(|(who, _)| *who == Who::User)?;
        self.entries.truncate(asked + 1);
        let text = self.entries[asked].1.clone();
        let is_again = std::mem::take(&mut self.is_answered);
        self.scrolled = 0;
        self.phase = Phase::Reading(0.0);
        Some(Action::Ask(Asked::Say { text, is_again }))
    }

    pub(super) fn draw(&mut self, frame: &mut Frame) {
        let [main, input, keys] =
            Layout::vertical([Constraint::Min(1), Constraint::Length(3), Constraint::Length(1)]).areas(frame.area());
        if main.width >= WIDE_COLUMNS {
            let [transcript, panel] =
                Layout::horizontal([Constraint::Min(1), Constraint::Length(PANEL_COLUMNS)]).areas(main);
            self.draw_transcript(frame, transcript);
            let figures = figures(&self.status, self.used_tokens, usize::from(PANEL_COLUMNS) - 2);
            let lines = [self.doing(), String::new()].into_iter().chain(figures);
            let lines: Vec<Line> = lines.map(|line| Line::from(format!(" {line}"))).collect();
            frame.render_widget(Paragraph::new(lines).block(Block::new().borders(Borders::LEFT)), panel);
            frame.render_widget(Paragraph::new(HELP).style(dim()), keys);
        } else {
            self.draw_transcript(frame, main);
            frame.render_widget(Paragraph::new(self.doing()).style(dim()), keys);
        }
        let block = Block::bordered().title(self.model.as_str());
        let inner = block.inner(input);
        let (text, column) = self.input.visible(usize::from(inner.width));
        frame.render_widget(Paragraph::new(text).block(block), input);
        frame.set_cursor_position(Position::new(inner.x + column as u16, inner.y));
    }

    fn draw_transcript(&mut self, frame: &mut Frame, area: Rect) {
        let width = usize::from(area.width.saturating_sub(1));
        let mut lines: Vec<Line> = Vec::new();
        for (who, text) in &self.entries {
            let parts = match who {
                Who::User => {
                    vec![(format!("> {text}"), Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD))]
                }
                Who::Model => {
                    let (thought, said) = thought_of(text);
                    vec![(thought.trim().to_owned(), dim()), (said.trim_start().to_owned(), Style::new())]
                }
                Who::Note => vec![(text.clone(), dim())],
            };
            for (text, style) in parts.iter().filter(|(text, _)| !text.is_empty()) {
                lines.extend(wrap(text, width).into_iter().map(|line| Line::styled(line, *style)));
            }
            if *who == Who::Note {
                lines.push(Line::default());
            }
        }
        self.page = usize::from(area.height).max(1);
        self.scrolled = self.scrolled.min(lines.len().saturating_sub(self.page));
        let end = lines.len() - self.scrolled;
        let shown = lines[end.saturating_sub(self.page)..end].to_vec();
        frame.render_widget(Paragraph::new(shown), area);
    }

    /// What is being done, in a line.
    fn doing(&self) -> String {
        match self.phase {
            Phase::Idle => "ready".to_owned(),
            Phase::Reading(done) => format!("reading {:.0} %", 100.0 * done),
            Phase::Writing if self.status.decode_tok_s > 0.0 => {
                format!("writing, {:.1} tok/s", self.status.decode_tok_s)
            }
            Phase::Writing => "writing".to_owned(),
        }
    }
}

/// What a model says to itself, with its marks, and what it says to the user.
fn thought_of(answer: &str) -> (&str, &str) {
    const END: &str = "</think>";
    match answer.find(END) {
        Some(at) => answer.split_at(at + END.len()),
        None if answer.trim_start().starts_with("<think>") => (answer, ""),
        None => ("", answer),
    }
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use strata_engine::host::{RequestStatus, SequencePhase};
    use strata_engine::{Drafts, Finish, Generated};

    use super::super::panel::tests::at_work;
    use super::*;

    fn view() -> View {
        View::new("mini on cpu".to_owned())
    }

    fn press(view: &mut View, code: KeyCode) -> Option<Action> {
        view.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn control(view: &mut View, c: char) -> Option<Action> {
        view.press(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL))
    }

    fn type_line(view: &mut View, text: &str) -> Option<Action> {
        text.chars().for_each(|c| assert_eq!(press(view, KeyCode::Char(c)), None));
        press(view, KeyCode::Enter)
    }

    fn say(text: &str, is_again: bool) -> Option<Action> {
        Some(Action::Ask(Asked::Say { text: text.to_owned(), is_again }))
    }

    fn text(text: &str) -> Heard {
        Heard::Text(text.to_owned())
    }

    fn answered() -> Heard {
        let (prompt_time, decode_time) = (Duration::from_millis(400), Duration::from_secs(2));
        let generated = Generated {
            tokens: vec![1; 20],
            finish: Finish::EndOfTurn,
            prompt_tokens: 100,
            reused_tokens: 0,
            prompt_time,
            decode_time,
            drafts: Drafts::default(),
            routes: None,
        };
        Heard::Answered(String::new(), generated)
    }

    fn failed(problem: &str) -> Heard {
        Heard::Failed(problem.to_owned())
    }

    /// The rows of a screen, without what is blank at their ends.
    fn screen(view: &mut View, columns: u16, rows: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..rows).map(row).collect()
    }

    #[test]
    fn a_conversation_is_shown_with_what_the_host_does() {
        let mut view = view();
        assert_eq!(type_line(&mut view, "Hello there"), say("Hello there", false));
        view.hear(Heard::Reading(0.42));
        assert!(screen(&mut view, 90, 20)[0].ends_with("│ reading 42 %"));
        view.hear(Heard::Reading(1.0));
        assert!(screen(&mut view, 90, 20)[0].ends_with("│ writing"));
        view.hear(text(" Good "));
        view.hear(text("day."));
        press(&mut view, KeyCode::Char('x'));
        let request = RequestStatus {
            id: 1,
            phase: SequencePhase::Writing,
            prompt_tokens: 100,
            reused_tokens: 0,
            progress: 1.0,
            written_tokens: 3,
            age_s: 0.5,
        };
        view.see(Status { active: vec![request], ..at_work() });
        let rows = screen(&mut view, 90, 20);
        let expected = [
            ("> Hello there", "│ writing, 7.2 tok/s"),
            ("Good day.", "│"),
            ("", "│ written  7.2 tok/s"),
            ("", "│ read     250.0 tok/s"),
            ("", "│ drive    1.23 GB/s"),
            ("", "│ busy     █████░░░ 63 %"),
            ("", "│ resident 70.0 %"),
            ("", "│ ahead    20.0 %"),
            ("", "│ missed   10.0 %"),
            ("", "│ context  103 of 4096"),
            ("", "│ plan     3.00 GiB"),
            ("", "│ memory   ████░░░░ 1.50 GiB"),
            ("", "│ arena    23 slots, 2.88 GiB"),
            ("", "│ █ ▄"),
            ("", "│"),
        ];
        let expected: Vec<_> = expected.iter().map(|(left, right)| format!("{left:<60}{right}")).collect();
        assert_eq!(rows[..15], expected);
        assert!(rows[16].starts_with("┌mini on cpu─") && rows[17].starts_with("│x "), "{rows:?}");
        assert!(rows[19].starts_with("Enter send | ^C stop"));
        view.hear(answered());
        view.see(at_work());
        let rows = screen(&mut view, 90, 20);
        assert_eq!(rows[0], format!("{:<60}│ ready", "> Hello there"));
        assert!(rows[2].starts_with("[prompt: 100 tokens, 250.0 tok/s | written: 20 tokens, 9.5"), "{rows:?}");
        assert!(rows[9].ends_with("│ context  120 of 4096"), "{rows:?}");
        // A narrow one has no panel.
        let rows = screen(&mut view, 40, 10);
        assert_eq!((rows[0].as_str(), rows[1].as_str(), rows[9].as_str()), ("> Hello there", "Good day.", "ready"));
    }

    #[test]
    fn what_a_model_says_to_itself_is_dim() {
        assert_eq!(thought_of("Yes."), ("", "Yes."));
        assert_eq!(thought_of("<think>Hm"), ("<think>Hm", ""));
        // The mark it begins with may be the prompt's.
        assert_eq!(thought_of("Hm</think>\nYes."), ("Hm</think>", "\nYes."));
        let mut view = view();
        type_line(&mut view, "go");
        view.hear(text("<think>\nHm\n</think>\n\nYes."));
        let mut terminal = Terminal::new(TestBackend::new(40, 10)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let is_dim = |y| buffer[(0, y)].modifier.contains(Modifier::DIM);
        assert_eq!(
            [1, 2, 3, 4].map(|y| (buffer[(0, y)].symbol(), is_dim(y))),
            [("<", true), ("H", true), ("<", true), ("Y", false)]
        );
    }

    #[test]
    fn keys_stop_an_answer_ask_for_another_and_leave() {
        let mut view = view();
        assert_eq!((control(&mut view, 'r'), press(&mut view, KeyCode::Enter)), (None, None));
        type_line(&mut view, "One");
        // While an answer comes, the next line can be typed, but not sent.
        assert_eq!((type_line(&mut view, "Two"), control(&mut view, 'r')), (None, None));
        view.hear(text("Uno"));
        assert_eq!(control(&mut view, 'c'), Some(Action::Stop));
        view.hear(answered());
        assert_eq!(control(&mut view, 'r'), say("One", true));
        assert!(!screen(&mut view, 40, 10).iter().any(|row| row.contains("Uno") || row.contains("done")));
        view.hear(text("Un"));
        view.hear(answered());
        assert_eq!(press(&mut view, KeyCode::Enter), say("Two", false));
        view.hear(failed("the drive failed"));
        assert!(screen(&mut view, 40, 10).contains(&"the drive failed".to_owned()));
        // What got no answer replaces none.
        assert_eq!(control(&mut view, 'r'), say("Two", false));
        view.hear(failed("again"));
        // Nothing to stop: what was typed goes.
        press(&mut view, KeyCode::Char('x'));
        assert_eq!((control(&mut view, 'c'), press(&mut view, KeyCode::Enter)), (None, None));
        assert_eq!(type_line(&mut view, "/help"), None);
        assert_eq!(type_line(&mut view, "/clear"), Some(Action::Ask(Asked::Clear)));
        assert_eq!(screen(&mut view, 40, 10)[0], "");
        assert_eq!(type_line(&mut view, "/exit"), Some(Action::Leave));
        assert_eq!(control(&mut view, 'd'), Some(Action::Leave));
    }

    #[test]
    fn the_transcript_scrolls_as_far_as_it_goes() {
        let mut view = view();
        type_line(&mut view, "go");
        let lines: Vec<String> = (1..=50).map(|n| format!("line {n}")).collect();
        view.hear(text(&lines.join("\n")));
        // Six rows of transcript.
        let first = |view: &mut View| screen(view, 40, 10)[0].clone();
        assert_eq!(first(&mut view), "line 45");
        press(&mut view, KeyCode::PageUp);
        assert_eq!(first(&mut view), "line 40");
        (0..20).for_each(|_| drop(press(&mut view, KeyCode::PageUp)));
        assert_eq!(first(&mut view), "> go");
        press(&mut view, KeyCode::PageDown);
        assert_eq!(first(&mut view), "line 5");
        (0..20).for_each(|_| drop(press(&mut view, KeyCode::PageDown)));
        assert_eq!(first(&mut view), "line 45");
        // Any size of a terminal will do.
        for (columns, rows) in [(1, 1), (2, 3), (3, 5), (200, 2), (80, 4)] {
            screen(&mut view, columns, rows);
        }
    }

    #[test]
    fn a_pasted_text_is_one_message_and_no_code_of_a_terminal() {
        let mut view = view();
        view.paste("fn a() {\n\x1b[2Jb }");
        assert!(screen(&mut view, 40, 10)[7].starts_with("│fn a() {⏎[2Jb }"));
        let said = press(&mut view, KeyCode::Enter);
        assert_eq!(said, say("fn a() {\n[2Jb }", false));
        view.hear(text("x\x1b[31m\u{9b}y"));
        assert!(screen(&mut view, 40, 10).contains(&"x[31my".to_owned()));
    }
}
