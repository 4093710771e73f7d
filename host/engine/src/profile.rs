//! Profiles: which plugins run, in which order, with what settings.
//!
//! A profile is found (`find.rs`), read into a tree that remembers where each value stands (`tree.rs`), joined with the
//! profiles it extends and with the command line's settings, checked key by key (`read.rs`), and checked against the
//! manifests of its plugins ([`resolve`]). All of it before any input is opened, so that a typo costs a second and not
//! a dump.

use std::path::Path;

use coresift_sdk::Kind;

use crate::error::{Error, Result};

mod find;
mod read;
mod resolve;
mod tree;

pub use find::{Found, PATH_VARIABLE, list, load};
pub use read::{Compress, FilterUse, OnFailure, Profile, Threads, Use};
pub use resolve::{Chosen, ChosenFilter, Plugins, configure, resolve, resolve_reader};
pub use tree::{Node, Origin, Tree, Value};

/// Profile that is taken when none is named.
pub const DEFAULT: &str = "kdump";

/// Codec name that means: store pages as they are.
pub const NO_COMPRESSION: &str = "none";
/// Name of the compressor that leaves pages as the input has them: compressed with whatever they are, or not.
pub const KEEP_COMPRESSION: &str = "keep";

/// Loads a profile with its ancestors, and lays the command line's `KEY=VALUE` settings over it.
///
/// # Errors
/// It is not found, is no TOML, or has a key or value that is not allowed; the message has file, line and column.
pub fn open(name: &str, settings: &[Setting]) -> Result<Profile> {
    let mut tree = load(name)?;
    for setting in settings {
        tree.set(&setting.key, setting.value.clone(), &setting.origin)?;
    }
    read::profile(name, tree)
}

/// A setting of the command line.
#[derive(Debug, Clone)]
pub struct Setting {
    /// dotted key, e.g. `compress.level`
    pub key: String,
    /// its value
    pub value: Value,
    /// the option as typed, for messages
    pub origin: String,
}

impl Setting {
    /// Reads the argument of `--set`.
    ///
    /// # Errors
    /// It is not `KEY=VALUE`.
    pub fn parse(text: &str) -> Result<Self> {
        let Some((key, value)) = text.split_once('=').filter(|(k, _)| !k.trim().is_empty()) else {
            return Err(Error::usage(format!("--set {text}: not KEY=VALUE")).hint("for example --set compress.level=3"));
        };
        Ok(Self { key: key.trim().to_owned(), value: tree::value_of_text(value.trim()), origin: format!("--set {text}") })
    }

    /// A setting that another option stands for.
    pub fn option(option: &str, key: &str, value: Value) -> Self {
        Self { key: key.to_owned(), value, origin: option.to_owned() }
    }
}

/// The name most like `name`, if one is near enough to be a slip of the fingers.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.into_iter().map(|k| (strsim::damerau_levenshtein(name, k), k));
    let (distance, best) = scored.min_by_key(|(d, _)| *d)?;
    (distance <= 1 + name.len() / 4).then_some(best)
}

/// A name of a plugin or profile, safe to become a part of a file name.
pub fn check_name(what: &str, name: &str) -> Result<()> {
    let good = !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if good {
        return Ok(());
    }
    Err(Error::usage(format!("`{name}` is no name of a {what}")).hint("names have lower-case letters, digits and `-`"))
}

/// What kind of thing a profile section configures, for messages.
fn section(kind: Kind) -> &'static str {
    match kind {
        Kind::Reader => "[input]",
        Kind::Filter => "[[filter]]",
        Kind::Compressor => "[compress]",
        Kind::Writer => "[output]",
    }
}

/// True if `name` is meant as a file and not as the name of a profile.
fn is_path(name: &str) -> bool {
    name.contains('/') || Path::new(name).extension().is_some_and(|e| e == "toml")
}
