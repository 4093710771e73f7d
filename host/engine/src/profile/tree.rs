//! A profile's values with the place each stands at, so that every later message can point there.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{Error, Result};

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// line and column, from 1
    File {
        /// the profile
        path: Arc<PathBuf>,
        /// line
        line: usize,
        /// column, in characters
        column: usize,
    },
    /// an option of the command line
    Option(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Option(option) => f.write_str(option),
        }
    }
}

/// Keys of plugin sections that are the engine's and not the plugin's.
const ENGINE_KEYS: [&str; 5] = ["fallback", "flattened", "limit", "on_failure", "split"];

/// A value and where it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// the value
    pub value: Value,
    /// where
    pub origin: Origin,
}

/// A value of a profile. TOML's floats and dates have no use here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `true` or `false`
    Bool(bool),
    /// a whole number
    Integer(i64),
    /// a text
    Text(String),
    /// `[…]` or `[[…]]`
    List(Vec<Node>),
    /// `[…]` with keys
    Table(Tree),
}

impl Value {
    /// The type, for messages.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Bool(_) => "true or false",
            Self::Integer(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }
}

/// Keys and values of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree(pub BTreeMap<String, Node>);

impl Tree {
    /// Reads TOML text.
    ///
    /// # Errors
    /// Not TOML, or a value of a type that profiles do not have.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let file = File { path: Arc::new(path.to_owned()), text };
        let table = DeTable::parse(text).map_err(|e| {
            let at = file.origin(e.span().map_or(0, |s| s.start));
            Error::usage(format!("{at}: {}", e.message().replace('\n', ", "))).hint("profiles are TOML: see `coresift profiles show kdump`")
        })?;
        file.table(table.into_inner())
    }

    /// Lays `over` over this tree: tables are joined key by key, everything else is replaced.
    pub fn overlay(&mut self, over: Tree) {
        self.leave_other_plugin(&over);
        for (key, node) in over.0 {
            match (self.0.get_mut(&key), node) {
                (Some(Node { value: Value::Table(below), .. }), Node { value: Value::Table(above), .. }) => below.overlay(above),
                (_, node) => drop(self.0.insert(key, node)),
            }
        }
    }

    /// If `over` names another plugin than this table has, the settings here are those of a plugin that is no longer
    /// used: only the engine's own keys stay.
    fn leave_other_plugin(&mut self, over: &Tree) {
        let other = |key: &&str| match (self.0.get(*key), over.0.get(*key)) {
            (Some(below), Some(above)) => below.value != above.value,
            _ => false,
        };
        if ["plugin", "reader", "writer"].iter().any(other) {
            self.0.retain(|key, _| ENGINE_KEYS.contains(&key.as_str()));
        }
    }

    /// Sets a dotted key.
    ///
    /// # Errors
    /// A part of the key is not a table.
    pub fn set(&mut self, key: &str, value: Value, origin: &str) -> Result<()> {
        let origin = Origin::Option(origin.to_owned());
        let (path, last) = key.rsplit_once('.').map_or((None, key), |(p, l)| (Some(p), l));
        let mut table = self;
        for part in path.into_iter().flat_map(|p| p.split('.')) {
            let empty = || Node { value: Value::Table(Tree::default()), origin: origin.clone() };
            let node = table.0.entry(part.to_owned()).or_insert_with(empty);
            table = match &mut node.value {
                Value::Table(t) => t,
                other => {
                    let message = format!("{origin}: `{part}` is {} and has no keys", other.kind());
                    return Err(Error::usage(message).hint("lists of tables such as [[filter]] are set in a profile"));
                }
            };
        }
        table.overlay(Tree([(last.to_owned(), Node { value, origin })].into()));
        Ok(())
    }
}

/// The value of a setting: as TOML if it is a number, a truth value, a quoted text or a list of texts, else a text.
pub(super) fn value_of_text(text: &str) -> Value {
    let path = Path::new("--set");
    let parsed = Tree::parse(path, &format!("v = {text}")).ok().and_then(|mut t| t.0.remove("v"));
    parsed.map_or_else(|| Value::Text(text.to_owned()), |node| node.value)
}

struct File<'a> {
    path: Arc<PathBuf>,
    text: &'a str,
}

impl File<'_> {
    fn origin(&self, byte: usize) -> Origin {
        let before = self.text.get(..byte).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        Origin::File { path: self.path.clone(), line, column }
    }

    fn table(&self, table: DeTable<'_>) -> Result<Tree> {
        let mut tree = BTreeMap::new();
        for (key, value) in table {
            let origin = self.origin(key.span().start);
            let mut node = self.node(value)?;
            // A table's own span is its header's; the key is where a person looks.
            node.origin = if matches!(node.value, Value::Table(_)) { origin } else { node.origin };
            tree.insert(key.into_inner().into_owned(), node);
        }
        Ok(Tree(tree))
    }

    fn node(&self, value: Spanned<DeValue<'_>>) -> Result<Node> {
        let origin = self.origin(value.span().start);
        let value = match value.into_inner() {
            DeValue::Boolean(v) => Value::Bool(v),
            DeValue::String(v) => Value::Text(v.into_owned()),
            DeValue::Integer(v) => match i64::from_str_radix(v.as_str(), v.radix()) {
                Ok(v) => Value::Integer(v),
                Err(_) => return Err(Error::usage(format!("{origin}: {} is too large a number", v.as_str()))),
            },
            DeValue::Array(list) => Value::List(list.into_iter().map(|v| self.node(v)).collect::<Result<_>>()?),
            DeValue::Table(table) => Value::Table(self.table(table)?),
            DeValue::Float(_) | DeValue::Datetime(_) => {
                return Err(
                    Error::usage(format!("{origin}: profiles have no fractions and no dates")).hint("write a whole number or a text")
                );
            }
        };
        Ok(Node { value, origin })
    }
}
