//! `coresift profiles`: ways of working.

use std::sync::Arc;

use clap::Subcommand;
use coresift_engine::profile;
use coresift_engine::progress::Progress;
use coresift_engine::{Error, Result};
use coresift_sdk::Kind;
use serde_json::json;

use crate::options::Common;
use crate::terminal::{Mode, Terminal, print, print_json};

/// Commands of `coresift profiles`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List all profiles: for whom, what they cost, what they leave out
    List,
    /// Print a profile's text
    Show {
        /// Name or file
        name: String,
    },
    /// Check a profile: every key, every plugin
    Check {
        /// Name or file
        file: String,
    },
}

/// Runs it.
pub fn run(command: &Command, common: &Common) -> Result<u8> {
    match command {
        Command::List => {
            let found = profile::list();
            if common.json {
                let all: Vec<_> = found.iter().map(|f| json!({ "name": f.name, "path": f.path, "comment": f.comment() })).collect();
                print_json(&json!({ "schema": 1, "profiles": all }))?;
            } else {
                let place = |f: &profile::Found| f.path.as_ref().map_or("built in".to_owned(), |p| p.display().to_string());
                let entry = |f: &profile::Found| format!("{} ({})\n  {}\n", f.name, place(f), f.comment().join("\n  "));
                print(&found.iter().map(entry).collect::<String>())?;
            }
        }
        Command::Show { name } => {
            let found = profile::Found::by_name(name)?;
            if common.json {
                print_json(
                    &json!({ "schema": 1, "name": found.name, "path": found.path, "comment": found.comment(), "text": found.text }),
                )?;
            } else {
                print(&found.text)?;
            }
        }
        Command::Check { file } => {
            let profile = profile::open(file, &[])?;
            let terminal: Arc<dyn Progress> = Arc::new(Terminal::new(Mode::None));
            let registry = common.registry();
            let plugins = profile::resolve(&profile, &registry, terminal.as_ref())?;
            // A run looks at a fallback only when it needs it; a check looks at all.
            for name in
                profile.compress.fallback.iter().filter(|n| ![profile::NO_COMPRESSION, profile::KEEP_COMPRESSION].contains(&n.as_str()))
            {
                registry.get(Kind::Compressor, name).map_err(|e| Error { message: format!("fallback: {}", e.message), ..e })?;
            }
            let mut names = vec![plugins.reader.as_ref().map_or("reader auto".to_owned(), |r| r.plugin.title())];
            names.extend(plugins.filters.iter().map(|f| f.chosen.plugin.title()));
            names.push(plugins.compressor.as_ref().map_or("no compression".to_owned(), |c| c.plugin.title()));
            names.push(plugins.writer.plugin.title());
            if common.json {
                print_json(
                    &json!({ "schema": 1, "name": profile.name, "description": profile.description, "plugins": names, "weakened": plugins.weakened }),
                )?;
            } else {
                print(&format!("ok: {}: {}\n", profile.name, names.join(", ")))?;
            }
        }
    }
    Ok(0)
}
