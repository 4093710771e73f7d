//! The manifest: what a plugin says about itself, so that `plugins show` and the check of profiles need nothing else.

use crate::config::{Config, Key, Value};
use crate::error::{Error, ErrorKind, Result};

/// The four kinds of plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Opens an input format.
    Reader = 1,
    /// Decides which pages are kept.
    Filter = 2,
    /// Compresses and decompresses pages.
    Compressor = 3,
    /// Writes an output format.
    Writer = 4,
}

impl Kind {
    /// All kinds, in the order of the data flow.
    pub const ALL: [Kind; 4] = [Kind::Reader, Kind::Filter, Kind::Compressor, Kind::Writer];

    /// The kind as file names and messages spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Filter => "filter",
            Self::Compressor => "compressor",
            Self::Writer => "writer",
        }
    }

    /// The kind with this number in the ABI.
    pub fn from_number(n: u32) -> Option<Kind> {
        Self::ALL.into_iter().find(|&k| k as u32 == n)
    }
}

/// Points of the run at which a filter is called; a filter names those it takes part in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stages(pub u32);

impl Stages {
    /// [`crate::Filter::survey`], once.
    pub const SURVEY: Self = Self(1);
    /// [`crate::Filter::classify`], per block, before any page is read.
    pub const CLASSIFY: Self = Self(2);
    /// [`crate::Filter::inspect`], per batch, with the pages' bytes.
    pub const INSPECT: Self = Self(4);

    /// Both sets of stages.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if all of `other` are in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Flag bit of [`Manifest::flags`]: the filter erases secrets. If it fails, nothing is written (fail closed).
pub const FLAG_ERASES: u32 = 1;

/// Codec bits of kdump-compressed files (`DUMP_DH_COMPRESSED_*`, makedumpfile's diskdump_mod.h; crash's diskdump.h).
pub mod codec {
    /// Raw.
    pub const NONE: u32 = 0;
    /// zlib (RFC 1950).
    pub const ZLIB: u32 = 0x1;
    /// LZO1X.
    pub const LZO: u32 = 0x2;
    /// Snappy, raw format.
    pub const SNAPPY: u32 = 0x4;
    /// Zstandard (RFC 8878), one frame a page.
    pub const ZSTD: u32 = 0x20;
}

/// What a plugin says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// name in profiles, e.g. `zstd`; the library's file is `lib<kind>_<name>.so`
    pub name: String,
    /// kind of plugin
    pub kind: Kind,
    /// the plugin's own version
    pub version: String,
    /// one line for people
    pub description: String,
    /// formats that a reader opens or a writer makes
    pub formats: Vec<String>,
    /// codec bit of a compressor, see [`codec`]
    pub codec: u32,
    /// codec bits that a writer can store
    pub codecs: u32,
    /// architectures it works for (`uname -m`); empty = all
    pub architectures: Vec<String>,
    /// kernel versions it works for, for people; empty = all
    pub kernels: String,
    /// when a filter is called
    pub stages: Stages,
    /// [`FLAG_ERASES`] and later ones
    pub flags: u32,
    /// names of a filter's own page classes, see [`crate::Verdict::plugin_class`]
    pub classes: Vec<String>,
    /// configuration keys
    pub keys: Vec<Key>,
}

impl Manifest {
    fn new(kind: Kind, name: &str, version: &str, description: &str) -> Self {
        Self {
            name: name.into(),
            kind,
            version: version.into(),
            description: description.into(),
            formats: Vec::new(),
            codec: 0,
            codecs: 0,
            architectures: Vec::new(),
            kernels: String::new(),
            stages: Stages::default(),
            flags: 0,
            classes: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// Manifest of a reader that opens these formats.
    pub fn reader(name: &str, version: &str, description: &str, formats: &[&str]) -> Self {
        Self { formats: formats.iter().map(|&f| f.into()).collect(), ..Self::new(Kind::Reader, name, version, description) }
    }

    /// Manifest of a filter called at these stages.
    pub fn filter(name: &str, version: &str, description: &str, stages: Stages) -> Self {
        Self { stages, ..Self::new(Kind::Filter, name, version, description) }
    }

    /// Manifest of a compressor with this codec bit.
    pub fn compressor(name: &str, version: &str, description: &str, codec: u32) -> Self {
        Self { codec, ..Self::new(Kind::Compressor, name, version, description) }
    }

    /// Manifest of a writer that makes this format and stores pages of these codec bits.
    pub fn writer(name: &str, version: &str, description: &str, format: &str, codecs: u32) -> Self {
        Self { formats: vec![format.into()], codecs, ..Self::new(Kind::Writer, name, version, description) }
    }

    /// Adds a configuration key.
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.keys.push(key);
        self
    }

    /// Adds a page class of a filter's own.
    #[must_use]
    pub fn class(mut self, name: &str) -> Self {
        self.classes.push(name.into());
        self
    }

    /// Sets flag bits, e.g. [`FLAG_ERASES`].
    #[must_use]
    pub fn flags(mut self, flags: u32) -> Self {
        self.flags |= flags;
        self
    }

    /// The settings for this plugin: what is given, checked, and the defaults for the rest.
    ///
    /// # Errors
    /// An unknown key, a value of the wrong type or outside its range, a required key left out.
    pub fn configure(&self, given: &[(&str, Value)]) -> Result<Config> {
        let bad = |message: String| Error::new(ErrorKind::Config, message);
        if let Some((unknown, _)) = given.iter().find(|(k, _)| self.keys.iter().all(|key| key.name != *k)) {
            let known: Vec<_> = self.keys.iter().map(|k| k.name.as_str()).collect();
            return Err(bad(format!("unknown key `{unknown}`")).hint(format!(
                "{} {} knows: {}",
                self.kind.name(),
                self.name,
                known.join(", ")
            )));
        }
        let mut settings = Vec::with_capacity(self.keys.len());
        for key in &self.keys {
            let value = given.iter().find(|(k, _)| *k == key.name).map(|(_, v)| v.clone()).or_else(|| key.default.clone());
            let value = value.ok_or_else(|| bad(format!("key `{}` is required", key.name)).hint(key.help.clone()))?;
            key.check(&value).map_err(|why| bad(format!("key `{}`: {why}", key.name)))?;
            settings.push((key.name.clone(), value));
        }
        Ok(Config::new(settings))
    }
}
