//! Configuration: the keys a plugin declares in its manifest, and the checked values it gets.
//!
//! The host checks a profile's table against the keys (name, type, range, choices) before any input is opened, fills in
//! the defaults, and only then makes the plugin. A plugin never sees an unknown key or a value of another type.

use crate::error::{Error, ErrorKind, Result};

/// Type of a configuration key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyType {
    /// `true` or `false`
    Bool,
    /// a whole number
    Integer,
    /// a text
    Text,
    /// a size in bytes: a number, or a text such as `"4MiB"`
    Size,
    /// a list of texts
    List,
}

impl KeyType {
    pub(crate) const ALL: [KeyType; 5] = [Self::Bool, Self::Integer, Self::Text, Self::Size, Self::List];

    /// The type as error messages and `plugins show` call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "true or false",
            Self::Integer => "a whole number",
            Self::Text => "a text",
            Self::Size => "a size such as \"4MiB\"",
            Self::List => "a list of texts",
        }
    }
}

/// Value of a configuration key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// `true` or `false`
    Bool(bool),
    /// a whole number
    Integer(i64),
    /// a text
    Text(String),
    /// bytes
    Size(u64),
    /// a list of texts
    List(Vec<String>),
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bool(v) => write!(f, "{v}"),
            Self::Integer(v) => write!(f, "{v}"),
            Self::Text(v) => write!(f, "{v:?}"),
            Self::Size(v) => write!(f, "{v}"),
            Self::List(v) => write!(f, "{v:?}"),
        }
    }
}

/// A configuration key that a plugin understands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// name in the profile's table
    pub name: String,
    /// type of its value
    pub kind: KeyType,
    /// one line for `plugins show`
    pub help: String,
    /// value when the profile does not name it; `None` = the key is required
    pub default: Option<Value>,
    /// smallest and largest value of an integer or size
    pub range: (i64, i64),
    /// the texts allowed; empty = any
    pub choices: Vec<String>,
}

impl Key {
    fn new(name: &str, kind: KeyType, default: Option<Value>, help: &str) -> Self {
        Self { name: name.into(), kind, help: help.into(), default, range: (i64::MIN, i64::MAX), choices: Vec::new() }
    }

    /// A key for `true` or `false`.
    pub fn bool(name: &str, default: bool, help: &str) -> Self {
        Self::new(name, KeyType::Bool, Some(Value::Bool(default)), help)
    }

    /// A key for a whole number within `min..=max`.
    pub fn integer(name: &str, default: i64, min: i64, max: i64, help: &str) -> Self {
        Self { range: (min, max), ..Self::new(name, KeyType::Integer, Some(Value::Integer(default)), help) }
    }

    /// A key for a size in bytes within `min..=max`.
    pub fn size(name: &str, default: u64, min: u64, max: u64, help: &str) -> Self {
        let range = (i64::try_from(min).unwrap_or(i64::MAX), i64::try_from(max).unwrap_or(i64::MAX));
        Self { range, ..Self::new(name, KeyType::Size, Some(Value::Size(default)), help) }
    }

    /// A key for a text.
    pub fn text(name: &str, default: &str, help: &str) -> Self {
        Self::new(name, KeyType::Text, Some(Value::Text(default.into())), help)
    }

    /// A key for one of some texts.
    pub fn choice(name: &str, default: &str, choices: &[&str], help: &str) -> Self {
        Self { choices: choices.iter().map(|&c| c.into()).collect(), ..Self::text(name, default, help) }
    }

    /// A key for a list of texts, by default empty.
    pub fn list(name: &str, help: &str) -> Self {
        Self::new(name, KeyType::List, Some(Value::List(Vec::new())), help)
    }

    /// Takes the default away: a profile that uses the plugin must set the key.
    #[must_use]
    pub fn required(mut self) -> Self {
        self.default = None;
        self
    }

    /// Checks a value against type, range and choices.
    ///
    /// # Errors
    /// What is wrong with it, for a message that begins with the key's name.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        let in_range = |v: i64| {
            let (min, max) = self.range;
            if (min..=max).contains(&v) { Ok(()) } else { Err(format!("{v} is not within {min} to {max}")) }
        };
        let known = |v: &String| {
            if self.choices.is_empty() || self.choices.contains(v) {
                Ok(())
            } else {
                Err(format!("{v:?} is none of {}", self.choices.join(", ")))
            }
        };
        match (self.kind, value) {
            (KeyType::Bool, Value::Bool(_)) => Ok(()),
            (KeyType::Integer, Value::Integer(v)) => in_range(*v),
            (KeyType::Size, Value::Size(v)) => in_range(i64::try_from(*v).unwrap_or(i64::MAX)),
            (KeyType::Text, Value::Text(v)) => known(v),
            (KeyType::List, Value::List(v)) => v.iter().try_for_each(known),
            _ => Err(format!("{value} is not {}", self.kind.name())),
        }
    }
}

/// The checked settings of one plugin: every declared key has a value of its type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    settings: Vec<(String, Value)>,
}

impl Config {
    /// Settings as they come; the host has checked them.
    pub fn new(settings: Vec<(String, Value)>) -> Self {
        Self { settings }
    }

    /// All keys and values, sorted as the manifest declares them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.settings.iter().map(|(k, v)| (k.as_str(), v))
    }

    fn get(&self, key: &str) -> Result<&Value> {
        let found = self.settings.iter().find(|(k, _)| k == key);
        found.map(|(_, v)| v).ok_or_else(|| Error::new(ErrorKind::Config, format!("key `{key}` is not in the plugin's manifest")))
    }

    /// Value of a [`KeyType::Bool`] key.
    ///
    /// # Errors
    /// The manifest declares no such key (a bug of the plugin); so for the other getters.
    pub fn bool(&self, key: &str) -> Result<bool> {
        match self.get(key)? {
            Value::Bool(v) => Ok(*v),
            other => Err(wrong(key, other)),
        }
    }

    /// Value of a [`KeyType::Integer`] key.
    ///
    /// # Errors
    /// As [`Self::bool`].
    pub fn integer(&self, key: &str) -> Result<i64> {
        match self.get(key)? {
            Value::Integer(v) => Ok(*v),
            other => Err(wrong(key, other)),
        }
    }

    /// Value of a [`KeyType::Size`] key, in bytes.
    ///
    /// # Errors
    /// As [`Self::bool`].
    pub fn size(&self, key: &str) -> Result<u64> {
        match self.get(key)? {
            Value::Size(v) => Ok(*v),
            other => Err(wrong(key, other)),
        }
    }

    /// Value of a [`KeyType::Text`] key.
    ///
    /// # Errors
    /// As [`Self::bool`].
    pub fn text(&self, key: &str) -> Result<&str> {
        match self.get(key)? {
            Value::Text(v) => Ok(v),
            other => Err(wrong(key, other)),
        }
    }

    /// Value of a [`KeyType::List`] key.
    ///
    /// # Errors
    /// As [`Self::bool`].
    pub fn list(&self, key: &str) -> Result<&[String]> {
        match self.get(key)? {
            Value::List(v) => Ok(v),
            other => Err(wrong(key, other)),
        }
    }
}

fn wrong(key: &str, value: &Value) -> Error {
    Error::new(ErrorKind::Config, format!("key `{key}` is declared with another type than asked for: it is {value}"))
}
