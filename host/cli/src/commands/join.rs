//! `coresift join`: the parts of a split dump into one file.

use std::path::PathBuf;
use std::sync::Arc;

use coresift_engine::dump::{self, Job};
use coresift_engine::info;
use coresift_engine::profile::{self, Setting, Value};
use coresift_engine::progress::Progress;
use coresift_engine::report::Outcome;
use coresift_engine::{Error, Result};
use coresift_sdk::Kind;

use crate::options::Common;
use crate::terminal::{Mode, Terminal, print, print_json};

const EXAMPLES: &str = "\
Examples:
  coresift join vmcore.1 vmcore.2 vmcore.3 vmcore      in any order
  coresift info vmcore.1 vmcore.3                      are these all parts?

The output has the format of the parts: kdump, ELF or LiME. Pages are copied as they are stored. If a part of a kdump dump
is missing the rest is joined all the same, as an incomplete dump, and the exit status is 1; ELF and LiME do not tell.";

/// Options of `coresift join`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The parts in any order, then the output
    #[arg(required = true, value_names = ["PART", "OUTPUT"], num_args = 2..)]
    files: Vec<PathBuf>,
    /// Overwrite an existing output
    #[arg(long)]
    force: bool,
    /// How progress is shown
    #[arg(long, value_enum, default_value_t = Mode::Auto, value_name = "MODE")]
    progress: Mode,
}

/// Runs it.
pub fn run(args: &Args, common: &Common) -> Result<u8> {
    let Some((output, parts)) = args.files.split_last().filter(|(_, parts)| !parts.is_empty()) else {
        return Err(Error::usage("no OUTPUT given").hint("coresift join PART... OUTPUT"));
    };
    let terminal: Arc<dyn Progress> = Arc::new(Terminal::new(args.progress));
    let registry = common.registry();
    let set = |key, value: &str| Setting::option("join", key, Value::Text(value.to_owned()));
    let mut settings = vec![set("compress.plugin", profile::KEEP_COMPRESSION)];
    // The parts' own format, if it can be written; the writers have their readers' names.
    let format = info::reader_of(parts, &registry, &terminal)?.filter(|name| registry.get(Kind::Writer, name).is_ok());
    settings.extend(format.map(|name| set("output.writer", &name)));
    let mut profile = profile::open("plain", &settings)?;
    profile.filters.clear();
    let job = Job { inputs: parts.to_vec(), output: Some(output.clone()), more_outputs: Vec::new(), force: args.force, profile };
    let report = dump::run(&job, &registry, &terminal)?;
    drop(terminal);
    let whole = report.outcome == Outcome::Complete;
    if common.json {
        print_json(&report)?;
    } else {
        let head = if whole { "" } else { "INCOMPLETE: " };
        print(&format!("{head}{} parts joined to {}\n{}", parts.len(), output.display(), report.text()))?;
    }
    Ok(if whole { 0 } else { 1 })
}
