//! Progress and messages. The engine never prints: the command implements [`Progress`].

/// What the engine is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// a compressed input becomes a file; counted in bytes, total unknown
    Unpack,
    /// VMCOREINFO is looked for in memory; counted in pages
    Search,
    /// verdicts per block; counted in pages
    Classify,
    /// pages are read, filtered, compressed and written; counted in pages
    Copy,
    /// the output is made durable
    Sync,
}

impl Phase {
    /// The phase as people read it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unpack => "unpacking the input",
            Self::Search => "searching for VMCOREINFO",
            Self::Classify => "classifying pages",
            Self::Copy => "copying pages",
            Self::Sync => "writing to disk",
        }
    }
}

/// Where progress goes. Called from several threads, at most once a batch.
pub trait Progress: Send + Sync {
    /// A phase begins; `total` is 0 if unknown.
    fn phase(&self, phase: Phase, total: u64);
    /// So much more of the phase is done.
    fn advance(&self, amount: u64);
    /// Something a person should know now.
    fn warn(&self, message: &str);
    /// Something a person may want to know.
    fn note(&self, message: &str);
}

/// Shows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hidden;

impl Progress for Hidden {
    fn phase(&self, _: Phase, _: u64) {}
    fn advance(&self, _: u64) {}
    fn warn(&self, _: &str) {}
    fn note(&self, _: &str) {}
}
