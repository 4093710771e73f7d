//! Errors of plugins.
//!
//! Rules: say what failed in one sentence, where (PFN or byte offset), and in [`Error::hint`] what the user can do.
//! A page that cannot be read is data, not an error: the page is reported absent. Return an error only when the whole
//! call gives nothing. The host adds the plugin's name and the method.

use std::fmt;

/// Result of every plugin method.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What sort of failure an [`Error`] is. The host decides by it: a [`ErrorKind::NoSpace`] ends the dump early but keeps
/// it, a [`ErrorKind::Panic`] weakens a filter, and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Something that has no better kind.
    Other,
    /// A configuration value that passed the type check makes no sense.
    Config,
    /// Reading or writing failed.
    Io,
    /// The output is full (disk, quota or size limit).
    NoSpace,
    /// The input breaks its own format.
    Format,
    /// Sound, but nothing this plugin can do.
    Unsupported,
    /// The host asked to stop.
    Cancelled,
    /// The plugin panicked; made by the SDK's guard.
    Panic,
}

impl ErrorKind {
    pub(crate) const ALL: [(ErrorKind, u32); 8] = [
        (ErrorKind::Other, 0),
        (ErrorKind::Config, 1),
        (ErrorKind::Io, 2),
        (ErrorKind::NoSpace, 3),
        (ErrorKind::Format, 4),
        (ErrorKind::Unsupported, 5),
        (ErrorKind::Cancelled, 6),
        (ErrorKind::Panic, 7),
    ];
}

/// A failure, with all a person needs to act on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// What sort of failure.
    pub kind: ErrorKind,
    /// What failed, one sentence without a full stop.
    pub message: String,
    /// What the user can do about it; may be empty.
    pub hint: String,
    /// The page frame number it is about.
    pub pfn: Option<u64>,
    /// The byte offset in the input or output it is about.
    pub offset: Option<u64>,
    /// The errno of a failed system call, 0 if none.
    pub errno: i32,
}

impl Error {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: String::new(), pfn: None, offset: None, errno: 0 }
    }

    /// The input breaks its own format.
    pub fn format(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Format, message)
    }

    /// Nothing this plugin can do.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// Adds what the user can do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Adds the page it is about.
    #[must_use]
    pub fn at_pfn(mut self, pfn: u64) -> Self {
        self.pfn = Some(pfn);
        self
    }

    /// Adds the byte offset it is about.
    #[must_use]
    pub fn at_offset(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(pfn) = self.pfn {
            write!(f, " (PFN {pfn:#x})")?;
        }
        if let Some(offset) = self.offset {
            write!(f, " (at byte {offset})")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        let kind = match e.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
            _ => ErrorKind::Io,
        };
        Self { errno: e.raw_os_error().unwrap_or(0), ..Self::new(kind, e.to_string()) }
    }
}
