//! Checks a profile against the manifests of its plugins and loads them, before any input is opened.

use std::sync::Arc;

use coresift_sdk::{Config, FLAG_ERASES, Kind, Manifest};

use super::read::{FilterUse, OnFailure, Profile, Use};
use super::tree::{Node, Origin, Value};
use super::{KEEP_COMPRESSION, NO_COMPRESSION, nearest, section};
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::registry::{Plugin, Registry};
use crate::size;

/// A loaded plugin and its checked settings.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// the plugin
    pub plugin: Arc<Plugin>,
    /// its settings
    pub config: Config,
}

/// A loaded filter.
#[derive(Debug, Clone)]
pub struct ChosenFilter {
    /// the plugin
    pub chosen: Chosen,
    /// what to do when it fails
    pub on_failure: OnFailure,
}

/// All plugins of a run.
#[derive(Debug)]
pub struct Plugins {
    /// the reader, or `None` for `auto`
    pub reader: Option<Chosen>,
    /// the filters in order
    pub filters: Vec<ChosenFilter>,
    /// the compressor, or `None` to store pages as they are
    pub compressor: Option<Chosen>,
    /// pages stay compressed as the input has them, where the writer can store that
    pub keep_codecs: bool,
    /// the writer
    pub writer: Chosen,
    /// what had to be left out, for the report
    pub weakened: Vec<String>,
}

/// Loads the plugins of a profile and checks their settings.
///
/// # Errors
/// A plugin is missing without a fallback, or a setting is not in its manifest.
pub fn resolve(profile: &Profile, registry: &Registry, progress: &dyn Progress) -> Result<Plugins> {
    let mut weakened = Vec::new();
    let reader = resolve_reader(profile, registry)?;
    let writer = choose(registry, Kind::Writer, &profile.writer)?;
    let mut filters = Vec::new();
    for filter in &profile.filters {
        match choose_filter(registry, filter) {
            Ok(f) => filters.push(f),
            // Only a profile that says so goes on without a filter: it may be the one that takes secrets out.
            Err(e) if e.exit != crate::Exit::Usage && filter.on_failure == Some(OnFailure::Keep) => {
                weakened.push(format!("filter {} is left out: {}", filter.plugin.plugin, e.message));
            }
            Err(e) => return Err(e),
        }
    }
    let compressor = choose_compressor(profile, registry, &writer, &mut weakened)?;
    weakened.iter().for_each(|w| progress.warn(w));
    let asked = &profile.compress.plugin;
    if let Some(option @ Origin::Option(_)) = &asked.origin
        && writer.plugin.manifest.codecs == 0
        && ![NO_COMPRESSION, KEEP_COMPRESSION].contains(&asked.plugin.as_str())
    {
        progress.warn(&format!("{option} has no effect: {} stores pages as they are", writer.plugin.title()));
    }
    let keep_codecs = compressor.is_none() && profile.compress.plugin.plugin == KEEP_COMPRESSION;
    Ok(Plugins { reader, filters, compressor, keep_codecs, writer, weakened })
}

/// Loads the reader that a profile names; `None` for `auto`.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_reader(profile: &Profile, registry: &Registry) -> Result<Option<Chosen>> {
    if profile.reader.plugin == "auto" {
        known_to_a_reader(&profile.reader, registry)?;
        return Ok(None);
    }
    choose(registry, Kind::Reader, &profile.reader).map(Some)
}

fn choose(registry: &Registry, kind: Kind, named: &Use) -> Result<Chosen> {
    super::check_name("plugin", &named.plugin)?;
    let plugin = registry.get(kind, &named.plugin).map_err(|e| match &named.origin {
        Some(at) => Error { message: format!("{at}: {}", e.message), ..e },
        None => e,
    })?;
    let config = configure(&plugin.manifest, named)?;
    Ok(Chosen { plugin, config })
}

fn choose_filter(registry: &Registry, filter: &FilterUse) -> Result<ChosenFilter> {
    let chosen = choose(registry, Kind::Filter, &filter.plugin)?;
    let erases = chosen.plugin.manifest.flags & FLAG_ERASES != 0;
    if erases && filter.on_failure == Some(OnFailure::Keep) {
        let message = format!("filter {} erases secrets and cannot have on_failure = \"keep\"", filter.plugin.plugin);
        return Err(Error::usage(message).hint("take the line out: if erasing fails, nothing may be written"));
    }
    let default = if erases { OnFailure::Stop } else { OnFailure::Keep };
    Ok(ChosenFilter { chosen, on_failure: filter.on_failure.unwrap_or(default) })
}

/// The first compressor of the profile's list that loads and that the writer can store.
fn choose_compressor(profile: &Profile, registry: &Registry, writer: &Chosen, weakened: &mut Vec<String>) -> Result<Option<Chosen>> {
    if writer.plugin.manifest.codecs == 0 {
        // The format has no compressed pages: the profile's compressor is for others.
        return Ok(None);
    }
    let first = &profile.compress.plugin;
    let fallback = profile.compress.fallback.iter().map(|name| Use { plugin: name.clone(), origin: None, settings: Default::default() });
    let mut failed: Option<Error> = None;
    for (i, candidate) in std::iter::once(first.clone()).chain(fallback).enumerate() {
        if candidate.plugin == NO_COMPRESSION || candidate.plugin == KEEP_COMPRESSION {
            nobody_reads(&candidate, &format!("plugin = \"{}\"", candidate.plugin))?;
            weakened.extend(failed.map(|e| format!("pages are stored uncompressed: {}", e.message)));
            return Ok(None);
        }
        match choose(registry, Kind::Compressor, &candidate).and_then(|c| storable(c, writer)) {
            Ok(chosen) => {
                weakened.extend(failed.map(|e| format!("{} is used instead: {}", chosen.plugin.title(), e.message)));
                return Ok(Some(chosen));
            }
            Err(e) if i == 0 && e.exit == crate::Exit::Usage => return Err(e),
            Err(e) => failed = failed.or(Some(e)),
        }
    }
    Err(failed.unwrap_or_else(|| Error::failed("no compressor")))
}

fn storable(chosen: Chosen, writer: &Chosen) -> Result<Chosen> {
    let codec = chosen.plugin.manifest.codec;
    if codec != 0 && writer.plugin.manifest.codecs & codec == codec {
        return Ok(chosen);
    }
    let message = format!("{} cannot store pages of {}", writer.plugin.title(), chosen.plugin.title());
    Err(Error::failed(message).hint("choose another compressor, or \"none\""))
}

/// Settings beside `reader = "auto"` go to the reader that is picked: one that no reader has is a typo.
fn known_to_a_reader(named: &Use, registry: &Registry) -> Result<()> {
    if named.settings.0.is_empty() {
        return Ok(());
    }
    let readers = registry.all(Kind::Reader).0;
    let keys: Vec<&str> = readers.iter().flat_map(|r| r.manifest.keys.iter().map(|key| key.name.as_str())).collect();
    if let Some((name, node)) = named.settings.0.iter().find(|(name, _)| !keys.contains(&name.as_str())) {
        let hint = match nearest(name, keys.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "`coresift plugins show NAME` lists the settings of a reader".to_owned(),
        };
        return Err(Error::usage(format!("{}: unknown key `{name}` in [input]: no reader has it", node.origin)).hint(hint));
    }
    Ok(())
}

fn nobody_reads(named: &Use, who: &str) -> Result<()> {
    let Some((key, node)) = named.settings.0.first_key_value() else { return Ok(()) };
    Err(Error::usage(format!("{}: unknown key `{key}`: {who} has no settings", node.origin)).hint("name a plugin, or take the key out"))
}

/// Turns the profile's values into the plugin's, by the types of its manifest.
///
/// # Errors
/// A setting that the plugin does not have, or of another type.
pub fn configure(manifest: &Manifest, named: &Use) -> Result<Config> {
    let mut given = Vec::new();
    for (name, node) in &named.settings.0 {
        let Some(key) = manifest.keys.iter().find(|k| k.name == *name) else {
            let known: Vec<_> = manifest.keys.iter().map(|k| k.name.as_str()).collect();
            let hint = match nearest(name, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None if known.is_empty() => format!("{} {} has no settings", manifest.kind.name(), manifest.name),
                None => format!("{} {} knows: {}", manifest.kind.name(), manifest.name, known.join(", ")),
            };
            let message = format!("{}: unknown key `{name}` in {} for {}", node.origin, section(manifest.kind), manifest.name);
            return Err(Error::usage(message).hint(hint));
        };
        let value = value_of(node, key.kind).ok_or_else(|| format!("it is {}, not {}", node.value.kind(), key.kind.name()));
        let value = value.and_then(|v| key.check(&v).map(|()| v));
        let value = value.map_err(|why| Error::usage(format!("{}: `{name}`: {why}", node.origin)).hint(key.help.clone()))?;
        given.push((name.as_str(), value));
    }
    manifest.configure(&given).map_err(|e| {
        let who = format!("{} {}", manifest.kind.name(), manifest.name);
        match &named.origin {
            Some(at) => Error::plugin(&format!("{at}: {who}"), &e),
            None => Error::plugin(&who, &e),
        }
    })
}

fn value_of(node: &Node, kind: coresift_sdk::KeyType) -> Option<coresift_sdk::Value> {
    use coresift_sdk::{KeyType, Value as Plain};
    Some(match (kind, &node.value) {
        (KeyType::Bool, Value::Bool(v)) => Plain::Bool(*v),
        (KeyType::Integer, Value::Integer(v)) => Plain::Integer(*v),
        (KeyType::Size, Value::Integer(v)) => Plain::Size(u64::try_from(*v).ok()?),
        (KeyType::Size, Value::Text(t)) => Plain::Size(size::parse(t).ok()?),
        (KeyType::Text, Value::Text(t)) => Plain::Text(t.clone()),
        (KeyType::List, Value::List(list)) => {
            let text = |n: &Node| if let Value::Text(t) = &n.value { Some(t.clone()) } else { None };
            Plain::List(list.iter().map(text).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}
