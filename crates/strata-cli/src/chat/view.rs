//! What a conversation looks like in a terminal, and what its keys mean. Knows neither a terminal nor an engine.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Position, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph};

use super::input::{Input, wrap};
use crate::plan::gib;

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

/// What happens in the conversation.
pub(super) enum Told {
    /// How much of the prompt is read, 0 to 1.
    Reading(f64),
    /// A piece of the answer, and how fast it comes.
    Text {
        text: String,
        tokens_s: Option<f64>,
    },
    Answered(Answered),
    /// No answer, and why.
    Unanswered(String),
    /// The conversation is over.
    End,
}

/// An answer in figures.
pub(super) struct Answered {
    pub(super) summary: String,
    /// Whether it is a part of the conversation now.
    pub(super) has_answer: bool,
    /// Tokens of the conversation.
    pub(super) used_tokens: usize,
    pub(super) prompt_tokens_s: Option<f64>,
    pub(super) tokens_s: Option<f64>,
    pub(super) drive_bytes_s: f64,
    /// Experts that were in memory, on their way, and neither.
    pub(super) lookups: [u64; 3],
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
    context_tokens: usize,
    plan_bytes: u64,
    rss_bytes: Option<u64>,
    tokens_s: Option<f64>,
    last: Option<Answered>,
}

impl View {
    pub(super) fn new(model: String, context_tokens: usize, plan_bytes: u64) -> Self {
        Self {
            model,
            entries: Vec::new(),
            input: Input::default(),
            phase: Phase::Idle,
            is_answered: false,
            scrolled: 0,
            page: 1,
            context_tokens,
            plan_bytes,
            rss_bytes: None,
            tokens_s: None,
            last: None,
        }
    }

    pub(super) fn set_rss(&mut self, rss_bytes: Option<u64>) {
        self.rss_bytes = rss_bytes;
    }

    pub(super) fn hear(&mut self, told: Told) {
        match told {
            Told::Reading(done) if done < 1.0 => self.phase = Phase::Reading(done),
            Told::Reading(_) => self.phase = Phase::Writing,
            Told::Text { text, tokens_s } => {
                self.phase = Phase::Writing;
                self.tokens_s = tokens_s;
                match self.entries.last_mut() {
                    Some((Who::Model, answer)) => answer.push_str(&text),
                    _ => self.entries.push((Who::Model, text)),
                }
            }
            Told::Answered(answered) => {
                self.phase = Phase::Idle;
                self.is_answered = answered.has_answer;
                self.tokens_s = answered.tokens_s;
                self.entries.push((Who::Note, answered.summary.clone()));
                self.last = Some(answered);
            }
            Told::Unanswered(problem) => {
                self.phase = Phase::Idle;
                self.entries.push((Who::Note, problem));
            }
            Told::End => self.phase = Phase::Idle,
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
                self.last = None;
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
            let lines: Vec<Line> = self.figures().into_iter().map(Line::from).collect();
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
            let (text, style) = match who {
                Who::User => (format!("> {text}"), Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD)),
                Who::Model => (text.trim_start().to_owned(), Style::new()),
                Who::Note => (text.clone(), dim()),
            };
            lines.extend(wrap(&text, width).into_iter().map(|line| Line::styled(line, style)));
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
        let speed = self.tokens_s.map_or_else(String::new, |rate| format!(", {rate:.1} tok/s"));
        match self.phase {
            Phase::Idle => format!("ready{speed}"),
            Phase::Reading(done) => format!("reading {:.0} %", 100.0 * done),
            Phase::Writing => format!("writing{speed}"),
        }
    }

    /// The lines of the panel.
    fn figures(&self) -> Vec<String> {
        let mut lines = vec![self.doing(), String::new()];
        let last = self.last.as_ref();
        let mut line = |name: &str, value: String| lines.push(format!(" {name:<9}{value}"));
        let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.1} tok/s"));
        line("prompt", rate(last.and_then(|last| last.prompt_tokens_s)));
        line("answer", rate(self.tokens_s));
        line("drive", last.map_or("-".to_owned(), |last| format!("{:.2} GB/s", last.drive_bytes_s / 1e9)));
        let all = last.map_or(0, |last| last.lookups.iter().sum::<u64>());
        for (index, name) in ["resident", "ahead", "missed"].into_iter().enumerate() {
            let share = |last: &Answered| format!("{:.1} %", 100.0 * last.lookups[index] as f64 / all as f64);
            line(name, last.filter(|_| all > 0).map_or("-".to_owned(), share));
        }
        let used = last.map_or(0, |last| last.used_tokens);
        line("context", format!("{used} of {}", self.context_tokens));
        line("plan", format!("{:.2} GiB", gib(self.plan_bytes)));
        line("memory", self.rss_bytes.map_or("-".to_owned(), |bytes| format!("{:.2} GiB", gib(bytes))));
        lines.iter_mut().take(1).for_each(|line| line.insert(0, ' '));
        lines
    }
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn view() -> View {
        View::new("mini on cpu".to_owned(), 4096, 3 << 29)
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

    fn text(text: &str) -> Told {
        Told::Text { text: text.to_owned(), tokens_s: Some(7.25) }
    }

    fn answered() -> Told {
        Told::Answered(Answered {
            summary: "[done]".to_owned(),
            has_answer: true,
            used_tokens: 120,
            prompt_tokens_s: Some(250.04),
            tokens_s: Some(8.5),
            drive_bytes_s: 1.234e9,
            lookups: [70, 20, 10],
        })
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
    fn a_conversation_is_shown_with_its_figures() {
        let mut view = view();
        view.set_rss(Some(1 << 30));
        assert_eq!(type_line(&mut view, "Hello there"), say("Hello there", false));
        view.hear(Told::Reading(0.42));
        assert!(screen(&mut view, 90, 16)[0].ends_with("│ reading 42 %"));
        view.hear(Told::Reading(1.0));
        view.hear(text(" Good "));
        view.hear(text("day."));
        press(&mut view, KeyCode::Char('x'));
        let rows = screen(&mut view, 90, 16);
        assert_eq!(rows[0], format!("{:<60}│ writing, 7.2 tok/s", "> Hello there"));
        view.hear(answered());
        let rows = screen(&mut view, 90, 16);
        let expected = [
            ("> Hello there", "│ ready, 8.5 tok/s"),
            ("Good day.", "│"),
            ("[done]", "│ prompt   250.0 tok/s"),
            ("", "│ answer   8.5 tok/s"),
            ("", "│ drive    1.23 GB/s"),
            ("", "│ resident 70.0 %"),
            ("", "│ ahead    20.0 %"),
            ("", "│ missed   10.0 %"),
            ("", "│ context  120 of 4096"),
            ("", "│ plan     1.50 GiB"),
            ("", "│ memory   1.00 GiB"),
            ("", "│"),
        ];
        let expected: Vec<_> = expected.iter().map(|(left, right)| format!("{left:<60}{right}")).collect();
        assert_eq!(rows[..12], expected);
        assert!(rows[12].starts_with("┌mini on cpu─") && rows[13].starts_with("│x "), "{rows:?}");
        assert!(rows[15].starts_with("Enter send | ^C stop"));
        // A narrow one has no panel.
        let rows = screen(&mut view, 40, 10);
        assert_eq!(
            (rows[0].as_str(), rows[1].as_str(), rows[9].as_str()),
            ("> Hello there", "Good day.", "ready, 8.5 tok/s")
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
        view.hear(Told::Unanswered("the drive failed".to_owned()));
        assert!(screen(&mut view, 40, 10).contains(&"the drive failed".to_owned()));
        // What got no answer replaces none.
        assert_eq!(control(&mut view, 'r'), say("Two", false));
        view.hear(Told::Unanswered("again".to_owned()));
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
