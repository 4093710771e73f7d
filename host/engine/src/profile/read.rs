//! Reads the joined tree into a [`Profile`]: every key has one meaning and one type, and unknown keys are errors.
//!
//! The sections `[input]`, `[[filter]]`, `[compress]` and `[output]` also hold the settings of their plugin; what the
//! engine does not know there is left for the plugin's manifest ([`super::resolve`]).

use super::tree::{Node, Origin, Tree, Value};
use super::{NO_COMPRESSION, nearest};
use crate::error::{Error, Result};
use crate::size;

/// What to do when a plugin fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// Keep the pages it would have judged.
    Keep,
    /// End the run.
    Stop,
}

/// How many threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// One for each CPU, as far as memory goes.
    Auto,
    /// At most so many. A hint: never more than there are CPUs.
    AtMost(usize),
}

/// A plugin and its settings, not yet checked against its manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// name of the plugin
    pub plugin: String,
    /// where it is named, for messages
    pub origin: Option<Origin>,
    /// the settings left for it
    pub settings: Tree,
}

/// A filter of the profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterUse {
    /// plugin and settings
    pub plugin: Use,
    /// `None` = not said: a missing filter is an error, a failing one weakens the dump
    pub on_failure: Option<OnFailure>,
}

/// The compressor of the profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compress {
    /// plugin and settings; the plugin `none` stores pages as they are
    pub plugin: Use,
    /// plugins to take when the first cannot be had
    pub fallback: Vec<String>,
}

/// A checked profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// name or path
    pub name: String,
    /// one line for people
    pub description: String,
    /// reader, or `auto`
    pub reader: Use,
    /// file with VMCOREINFO lines, for what the input does not say
    pub vmcoreinfo: Option<std::path::PathBuf>,
    /// worker threads
    pub threads: Threads,
    /// largest piece of the input that is mapped at once, in bytes; 0 = read(2)
    pub map_size: usize,
    /// memory budget in bytes; `None` = from free memory
    pub memory: Option<u64>,
    /// filters in order
    pub filters: Vec<FilterUse>,
    /// compressor
    pub compress: Compress,
    /// writer
    pub writer: Use,
    /// largest output in bytes
    pub limit: Option<u64>,
    /// write a flattened stream
    pub flattened: bool,
    /// number of files that the dump is split into
    pub split: u32,
    /// report as JSON
    pub json: bool,
}

/// Most parts of a split dump; makedumpfile has no limit, and crash opens 100 (`MAX_FILE_NUM` of its diskdump.c is larger).
const SPLIT_MAX: u32 = 100;

/// Takes known keys out of a table; what is left at the end is unknown or the plugin's.
struct Section {
    name: &'static str,
    table: Tree,
    known: Vec<&'static str>,
}

fn wrong(node: &Node, key: &str, want: &str) -> Error {
    Error::usage(format!("{}: `{key}` is {}, not {want}", node.origin, node.value.kind()))
}

impl Section {
    fn new(name: &'static str, table: Tree) -> Self {
        Self { name, table, known: Vec::new() }
    }

    fn take(&mut self, key: &'static str) -> Option<Node> {
        self.known.push(key);
        self.table.0.remove(key)
    }

    fn table(&mut self, key: &'static str) -> Result<Section> {
        match self.take(key) {
            None => Ok(Self::new(key, Tree::default())),
            Some(Node { value: Value::Table(t), .. }) => Ok(Self::new(key, t)),
            Some(node) => Err(wrong(&node, key, "a table").hint(format!("write [{key}] and its keys below"))),
        }
    }

    fn text(&mut self, key: &'static str) -> Result<Option<(String, Origin)>> {
        match self.take(key) {
            None => Ok(None),
            Some(Node { value: Value::Text(t), origin }) => Ok(Some((t, origin))),
            Some(node) => Err(wrong(&node, key, "a text").hint(format!("for example {key} = \"…\""))),
        }
    }

    fn texts(&mut self, key: &'static str) -> Result<Vec<String>> {
        let Some(node) = self.take(key) else { return Ok(Vec::new()) };
        let Value::List(list) = &node.value else { return Err(wrong(&node, key, "a list of texts")) };
        let text = |n: &Node| if let Value::Text(t) = &n.value { Ok(t.clone()) } else { Err(wrong(n, key, "a text")) };
        list.iter().map(text).collect()
    }

    fn flag(&mut self, key: &'static str) -> Result<Option<bool>> {
        match self.take(key) {
            None => Ok(None),
            Some(Node { value: Value::Bool(flag), .. }) => Ok(Some(flag)),
            Some(node) => Err(wrong(&node, key, "true or false")),
        }
    }

    fn count(&mut self, key: &'static str, range: std::ops::RangeInclusive<u32>) -> Result<Option<u32>> {
        let Some(node) = self.take(key) else { return Ok(None) };
        let want = format!("a number from {} to {}", range.start(), range.end());
        let Value::Integer(number) = &node.value else { return Err(wrong(&node, key, &want)) };
        let good = u32::try_from(*number).ok().filter(|n| range.contains(n));
        good.map(Some).ok_or_else(|| Error::usage(format!("{}: `{key}` is {number}, not {want}", node.origin)))
    }

    /// A size, or `auto`.
    fn size(&mut self, key: &'static str) -> Result<Option<u64>> {
        let Some(node) = self.take(key) else { return Ok(None) };
        let bad = |why: String| Error::usage(format!("{}: `{key}`: {why}", node.origin)).hint("write a size such as \"4MiB\", or \"auto\"");
        match &node.value {
            Value::Integer(n) => u64::try_from(*n).map(Some).map_err(|_| bad(format!("{n} is negative"))),
            Value::Text(t) if t == "auto" => Ok(None),
            Value::Text(t) => size::parse(t).map(Some).map_err(bad),
            _ => Err(wrong(&node, key, "a size")),
        }
    }

    /// Everything must have been taken.
    fn end(self) -> Result<()> {
        let Some((key, node)) = self.table.0.first_key_value() else { return Ok(()) };
        let place = if self.name.is_empty() { "a profile".to_owned() } else { format!("[{}]", self.name) };
        let hint = match nearest(key, self.known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("{place} knows: {}", self.known.join(", ")),
        };
        Err(Error::usage(format!("{}: unknown key `{key}` in {place}", node.origin)).hint(hint))
    }

    /// What is left are the settings of the plugin that `key` names.
    fn plugin(mut self, key: &'static str, default: &str) -> Result<Use> {
        let named = self.text(key)?;
        let (plugin, origin) = named.map_or_else(|| (default.to_owned(), None), |(p, o)| (p, Some(o)));
        if plugin.is_empty() {
            let section = if self.name == "filter" { "[[filter]]".to_owned() } else { format!("[{}]", self.name) };
            return Err(Error::usage(format!("{section} without `{key}`")).hint(format!("add {key} = \"NAME\"")));
        }
        super::check_name("plugin", &plugin).map_err(|e| match &origin {
            Some(at) => Error { message: format!("{at}: {}", e.message), ..e },
            None => e,
        })?;
        Ok(Use { plugin, origin, settings: self.table })
    }
}

pub(super) fn profile(name: &str, tree: Tree) -> Result<Profile> {
    let mut top = Section::new("", tree);
    let description = top.text("description")?.map(|d| d.0).unwrap_or_default();
    let mut input = top.table("input")?;
    let mut engine = top.table("engine")?;
    let filters = top.take("filter");
    let mut compress = top.table("compress")?;
    let mut output = top.table("output")?;
    let mut report = top.table("report")?;
    top.end()?;

    let vmcoreinfo = input.text("vmcoreinfo")?.map(|(path, _)| path.into());
    let threads = threads(&mut engine)?;
    let map_size = usize::try_from(engine.size("map_size")?.unwrap_or(crate::dump::MAP_SIZE)).unwrap_or(usize::MAX);
    let memory = engine.size("memory")?;
    engine.end()?;
    let fallback = compress.texts("fallback")?;
    let limit = output.size("limit")?;
    let flattened = output.flag("flattened")?.unwrap_or(false);
    let split = output.count("split", 1..=SPLIT_MAX)?.unwrap_or(1);
    let json = match report.text("format")? {
        None => false,
        Some((f, _)) if f == "text" => false,
        Some((f, _)) if f == "json" => true,
        Some((f, at)) => return Err(Error::usage(format!("{at}: report format `{f}`")).hint("it is \"text\" or \"json\"")),
    };
    report.end()?;
    Ok(Profile {
        name: name.to_owned(),
        description,
        reader: input.plugin("reader", "auto")?,
        vmcoreinfo,
        threads,
        map_size,
        memory,
        filters: filters.map_or(Ok(Vec::new()), |node| filter_list(&node))?,
        compress: Compress { plugin: compress.plugin("plugin", NO_COMPRESSION)?, fallback },
        writer: output.plugin("writer", "kdump")?,
        limit,
        flattened,
        split,
        json,
    })
}

fn threads(engine: &mut Section) -> Result<Threads> {
    let Some(node) = engine.take("threads") else { return Ok(Threads::Auto) };
    match &node.value {
        Value::Text(t) if t == "auto" => Ok(Threads::Auto),
        // 0 is what makedumpfile's callers write for "none beside the main one".
        Value::Integer(n) if *n >= 0 => Ok(Threads::AtMost(usize::try_from(*n).unwrap_or(usize::MAX).max(1))),
        _ => Err(wrong(&node, "threads", "a number of threads or \"auto\"").hint("for example threads = 2")),
    }
}

fn filter_list(node: &Node) -> Result<Vec<FilterUse>> {
    let Value::List(list) = &node.value else {
        return Err(wrong(node, "filter", "a list of tables").hint("write [[filter]] for each filter"));
    };
    let filter = |n: &Node| {
        let Value::Table(table) = &n.value else { return Err(wrong(n, "filter", "a table").hint("write [[filter]] for each filter")) };
        let mut section = Section::new("filter", table.clone());
        let on_failure = match section.text("on_failure")? {
            None => None,
            Some((f, _)) if f == "keep" => Some(OnFailure::Keep),
            Some((f, _)) if f == "stop" => Some(OnFailure::Stop),
            Some((f, at)) => return Err(Error::usage(format!("{at}: on_failure `{f}`")).hint("it is \"keep\" or \"stop\"")),
        };
        Ok(FilterUse { plugin: section.plugin("plugin", "")?, on_failure })
    };
    list.iter().map(filter).collect()
}
