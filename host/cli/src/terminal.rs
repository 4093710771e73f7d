//! The only module that prints: results, messages and progress.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use coresift_engine::progress::{Phase, Progress};
use coresift_engine::size::grouped;
use coresift_engine::{Error, Result, plain};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// a bar on a terminal, lines otherwise
    Auto,
    /// a bar with rate and time left
    Bar,
    /// a line at the start of a phase and every few seconds
    Lines,
    /// one JSON object a line, on standard error
    Json,
    /// nothing
    None,
}

/// Between two lines of [`Mode::Lines`]: often enough for a console log, rare enough for a journal.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Between two events of [`Mode::Json`].
const EVENT_EVERY: Duration = Duration::from_millis(200);

/// Prints a result. A closed pipe is the reader's choice and no error.
///
/// # Errors
/// Standard output takes no more.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::failed(format!("cannot print the result: {}", plain(&e)))
                .hint("what was to be done is done; only this text is lost"))
        }
        _ => Ok(()),
    }
}

/// Prints a document.
///
/// # Errors
/// Standard output takes no more.
pub fn print_json(document: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(document).map_err(|e| Error::failed(format!("no JSON: {e}")))?;
    print(&format!("{text}\n"))
}

/// Says something on standard error. That nobody can hear it must not cost the dump.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Shows progress and messages on standard error.
pub struct Terminal {
    mode: Mode,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    total: u64,
    done: u64,
    begun: Instant,
    shown: Instant,
    bar: ProgressBar,
}

impl Terminal {
    /// Shows progress in this mode.
    pub fn new(mode: Mode) -> Self {
        let mode = match mode {
            Mode::Auto if std::io::stderr().is_terminal() => Mode::Bar,
            Mode::Auto => Mode::Lines,
            other => other,
        };
        let now = Instant::now();
        let state = State { phase: Phase::Copy, total: 0, done: 0, begun: now, shown: now, bar: ProgressBar::hidden() };
        Self { mode, state: Mutex::new(state) }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The phase so far is over.
    fn end(&self, state: &State) {
        state.bar.finish_and_clear();
        if self.mode == Mode::Json && state.done > 0 {
            state.event();
        }
    }

    fn say(&self, kind: &str, message: &str) {
        let state = self.state();
        match self.mode {
            Mode::Json => event(&serde_json::json!({ "event": kind, "message": message })),
            _ => state.bar.suspend(|| say(&format!("coresift: {kind}: {message}"))),
        }
    }
}

fn event(value: &serde_json::Value) {
    say(&value.to_string());
}

impl State {
    fn unit(&self) -> &'static str {
        if self.phase == Phase::Unpack { "bytes" } else { "pages" }
    }

    fn event(&self) {
        let (phase, done, total, seconds) = (self.phase, self.done, self.total, self.begun.elapsed().as_secs_f64());
        event(
            &serde_json::json!({ "event": "progress", "phase": phase, "done": done, "total": total, "unit": self.unit(), "seconds": seconds }),
        );
    }

    fn line(&self) {
        let seconds = self.begun.elapsed().as_secs_f64();
        if self.total == 0 {
            return say(&format!("coresift: {}: {} {} in {seconds:.0} s", self.phase.name(), self.done, self.unit()));
        }
        let share = self.done as f64 / self.total as f64;
        let left = seconds / share.max(1e-9) - seconds;
        say(&format!("coresift: {}: {:.0} % in {seconds:.0} s, about {left:.0} s left", self.phase.name(), share * 100.0));
    }

    fn new_bar(&self) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(Some(self.total), ProgressDrawTarget::stderr_with_hz(10));
        let template = match (self.phase, self.total) {
            (Phase::Unpack, _) => "{msg} {binary_bytes} {binary_bytes_per_sec}",
            (_, 0) => "{msg}",
            _ => "{msg:18} {wide_bar} {percent:>3} %  {rate}  {eta} left",
        };
        let rate = |s: &ProgressState, w: &mut dyn std::fmt::Write| {
            let _ = write!(w, "{:.0} pages/s", s.per_sec());
        };
        // A template that does not parse would be a bug here; the default style still shows the bar.
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.with_key("rate", rate).progress_chars("=> "));
        bar.set_message(self.phase.name());
        bar
    }
}

impl Progress for Terminal {
    fn phase(&self, phase: Phase, total: u64) {
        let mut state = self.state();
        self.end(&state);
        let now = Instant::now();
        (state.phase, state.total, state.done, state.begun, state.shown) = (phase, total, 0, now, now);
        match self.mode {
            Mode::Bar => state.bar = state.new_bar(),
            Mode::Json => state.event(),
            // In a console log the line before a crash of the machine says how far it came.
            Mode::Lines if total > 0 && phase == Phase::Copy => say(&format!("coresift: {}: {} in all", phase.name(), grouped(total))),
            _ => {}
        }
    }

    fn advance(&self, amount: u64) {
        if self.mode == Mode::None {
            return;
        }
        let mut state = self.state();
        state.done += amount;
        let every = if self.mode == Mode::Json { EVENT_EVERY } else { LINE_EVERY };
        match self.mode {
            Mode::Bar => state.bar.inc(amount),
            Mode::Lines | Mode::Json if state.shown.elapsed() < every => {}
            Mode::Lines => {
                state.line();
                state.shown = Instant::now();
            }
            Mode::Json => {
                state.event();
                state.shown = Instant::now();
            }
            _ => {}
        }
    }

    fn warn(&self, message: &str) {
        self.say("warning", message);
    }

    fn note(&self, message: &str) {
        if self.mode == Mode::Json {
            self.say("note", message);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.end(&self.state());
    }
}
