//! Errors of the engine.
//!
//! Rules: a message names the thing (file, profile key, option, plugin) and what is wrong with it in one line; the hint
//! says what to do, in one line. Errors that concern part of the input do not end the run: they become an [`Issue`]
//! of the report. What ends a run before anything was written is an `Error`.
//!
//! [`Issue`]: crate::report::Issue

use std::fmt;

/// Result of the engine's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Which exit status an error leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 1: the run failed.
    Failed,
    /// 2: wrong usage: options, profile, file names.
    Usage,
}

/// What ended the run.
#[derive(Debug, Clone, thiserror::Error)]
pub struct Error {
    /// exit status it leads to
    pub exit: Exit,
    /// what is wrong, one line
    pub message: String,
    /// what to do, one line; may be empty
    pub hint: String,
    /// the output is full
    pub no_space: bool,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.hint.is_empty() { Ok(()) } else { write!(f, "\n  hint: {}", self.hint) }
    }
}

impl Error {
    /// The run failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, message: message.into(), hint: String::new(), no_space: false }
    }

    /// Wrong usage.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, ..Self::failed(message) }
    }

    /// Adds what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// A plugin's error, with the plugin's kind and name before it.
    pub fn plugin(who: &str, e: &coresift_sdk::Error) -> Self {
        let exit = if e.kind == coresift_sdk::ErrorKind::Config { Exit::Usage } else { Exit::Failed };
        Self { exit, no_space: e.kind == coresift_sdk::ErrorKind::NoSpace, ..Self::failed(format!("{who}: {e}")) }.hint(e.hint.clone())
    }

    /// A failed system call on a file.
    pub fn io(what: &str, path: &std::path::Path, e: &std::io::Error) -> Self {
        let hint = match e.kind() {
            std::io::ErrorKind::NotFound => "check the path",
            std::io::ErrorKind::PermissionDenied => "run as a user who may, e.g. root",
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => "free some space or choose another place",
            _ => "",
        };
        Self::failed(format!("{what} {}: {}", path.display(), plain(e))).hint(hint)
    }
}

/// An I/O error without Rust's "(os error N)".
pub fn plain(e: &std::io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
