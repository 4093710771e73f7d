//! `coresift plugins`: what can be read, dropped, compressed and written here.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Subcommand;
use coresift_engine::registry::{Plugin, Refused, Registry, load_file};
use coresift_engine::{Error, Result};
use coresift_sdk::{Kind, Manifest, hello};
use serde_json::{Value, json};

use crate::options::Common;
use crate::terminal::{print, print_json};

/// Commands of `coresift plugins`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List all plugins, and the libraries that are refused
    List,
    /// Say what a plugin does and which settings it has
    Show {
        /// Name, or kind and name: zstd, compressor/zstd
        name: String,
    },
    /// Load a library and say whether coresift accepts it
    Check {
        /// The library's file
        file: PathBuf,
    },
}

/// Runs it.
pub fn run(command: &Command, common: &Common) -> Result<u8> {
    match command {
        Command::List => list(common),
        Command::Show { name } => {
            let plugin = find(&common.registry(), name)?;
            if common.json {
                print_json(&describe(&plugin))?;
            } else {
                print(&text(&plugin))?;
            }
            Ok(0)
        }
        Command::Check { file } => {
            let path = std::fs::canonicalize(file).map_err(|e| Error::io("cannot find", file, &e))?;
            let plugin = load_file(&path)?;
            if common.json {
                print_json(&describe(&plugin))?;
            } else {
                print(&format!("ok: {} {} (ABI {}.{})\n", plugin.title(), plugin.manifest.version, hello::ABI_MAJOR, hello::ABI_MINOR))?;
            }
            Ok(0)
        }
    }
}

fn list(common: &Common) -> Result<u8> {
    let registry = common.registry();
    let (mut plugins, mut refused): (Vec<Arc<Plugin>>, Vec<Refused>) = (Vec::new(), Vec::new());
    for kind in Kind::ALL {
        let (good, bad) = registry.all(kind);
        plugins.extend(good);
        refused.extend(bad);
    }
    let none = || {
        let folders: Vec<_> = registry.folders().iter().map(|f| f.display().to_string()).collect();
        Error::failed("no plugins found").hint(format!("give their folder with --plugin-dir; searched: {}", folders.join(", ")))
    };
    if common.json {
        let bad: Vec<_> = refused.iter().map(|r| json!({ "path": r.path, "why": r.error.message, "hint": r.error.hint })).collect();
        let good: Vec<_> = plugins.iter().map(|p| describe(p)).collect();
        print_json(&json!({ "schema": 1, "folders": registry.folders(), "plugins": good, "refused": bad }))?;
        return Ok(u8::from(plugins.is_empty()));
    }
    let mut out = String::new();
    for p in &plugins {
        let m = &p.manifest;
        out.push_str(&format!("{:<11}{:<12}{:<8}{}\n           {}\n", m.kind.name(), m.name, m.version, m.description, p.path.display()));
    }
    for r in &refused {
        out.push_str(&format!("{}\n           hint: {}\n", r.error.message, r.error.hint));
    }
    print(&out)?;
    if plugins.is_empty() { Err(none()) } else { Ok(0) }
}

/// A plugin by name, or by kind and name.
fn find(registry: &Registry, name: &str) -> Result<Arc<Plugin>> {
    if let Some((kind, name)) = name.split_once('/') {
        let kinds = Kind::ALL.map(Kind::name).join(", ");
        let kind = Kind::ALL.into_iter().find(|k| k.name() == kind);
        let kind = kind.ok_or_else(|| Error::usage(format!("`{name}` is not of a kind of plugin")).hint(format!("kinds: {kinds}")))?;
        return registry.get(kind, name);
    }
    let mut found: Vec<_> = Kind::ALL.into_iter().flat_map(|k| registry.all(k).0).filter(|p| p.manifest.name == name).collect();
    match (found.pop(), found.first()) {
        (Some(plugin), None) => Ok(plugin),
        (Some(plugin), Some(other)) => {
            let hint = format!("write {}/{name} or {}/{name}", other.manifest.kind.name(), plugin.manifest.kind.name());
            Err(Error::usage(format!("`{name}` is more than one plugin")).hint(hint))
        }
        // The registry's own message knows the near names and why a library was refused.
        (None, _) => Kind::ALL
            .into_iter()
            .find_map(|k| registry.get(k, name).err().filter(|e| !e.message.contains("not found")))
            .map_or_else(|| Err(Error::failed(format!("no plugin is called `{name}`")).hint(unknown_name(name))), Err),
    }
}

/// What to try instead: crates are called `reader-elf`, their plugins `reader/elf`.
fn unknown_name(name: &str) -> String {
    let crate_name = Kind::ALL.into_iter().find_map(|kind| Some((kind, name.strip_prefix(kind.name())?.strip_prefix('-')?)));
    match crate_name {
        Some((kind, short)) => format!("write {}/{short}", kind.name()),
        None => "`coresift plugins list` shows all".to_owned(),
    }
}

fn describe(plugin: &Plugin) -> Value {
    let m = &plugin.manifest;
    let keys: Vec<_> = m
        .keys
        .iter()
        .map(|k| {
            let default = k.default.as_ref().map(ToString::to_string);
            json!({ "name": k.name, "type": k.kind.name(), "default": default, "min": k.range.0, "max": k.range.1, "choices": k.choices, "help": k.help })
        })
        .collect();
    json!({
        "schema": 1,
        "name": m.name, "kind": m.kind.name(), "version": m.version, "description": m.description, "path": plugin.path,
        "formats": m.formats, "codec": m.codec, "codecs": m.codecs, "architectures": m.architectures, "kernels": m.kernels,
        "classes": m.classes, "stages": stages(m), "keys": keys,
    })
}

fn stages(m: &Manifest) -> Vec<&'static str> {
    use coresift_sdk::Stages;
    let all = [(Stages::SURVEY, "survey"), (Stages::CLASSIFY, "classify"), (Stages::INSPECT, "inspect")];
    all.into_iter().filter(|(s, _)| m.stages.contains(*s)).map(|(_, n)| n).collect()
}

fn text(plugin: &Plugin) -> String {
    let m = &plugin.manifest;
    let mut out = format!("{} {} {}\n{}\n{}\n", m.kind.name(), m.name, m.version, m.description, plugin.path.display());
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            out.push_str(&format!("{name:<15}{value}\n"));
        }
    };
    line("formats", m.formats.join(", "));
    line("codec bit", if m.codec == 0 { String::new() } else { format!("{:#x}", m.codec) });
    line("stores codecs", if m.codecs == 0 { String::new() } else { format!("{:#x}", m.codecs) });
    line("called at", stages(m).join(", "));
    line("page classes", m.classes.join(", "));
    line("architectures", m.architectures.join(", "));
    line("kernels", m.kernels.clone());
    for key in &m.keys {
        let default = key.default.as_ref().map_or("required".to_owned(), |d| format!("default {d}"));
        let range = match key.range {
            (i64::MIN, i64::MAX) => String::new(),
            (min, max) => format!(", {min} to {max}"),
        };
        let choices = if key.choices.is_empty() { String::new() } else { format!(", one of {}", key.choices.join(", ")) };
        line("key", format!("{}: {} ({default}{range}{choices})\n{:15}{}", key.name, key.kind.name(), "", key.help));
    }
    out
}
