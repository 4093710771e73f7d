//! `coresift restore`: a flattened stream back into a file.

use std::io::Read;
use std::path::PathBuf;

use coresift_engine::restore::restore;
use coresift_engine::{Error, Result};

use crate::options::Common;
use crate::terminal::{Mode, Terminal, print, print_json};

const EXAMPLES: &str = "\
Examples:
  ssh host 'coresift dump /proc/vmcore - --flattened' | coresift restore vmcore
  coresift restore vmcore stream.flat

A stream that ends too early leaves all that it had, and exit status 1. Every command reads a flattened stream as it is,
too: restoring makes it a file for other tools, and faster.";

/// Options of `coresift restore`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The file to write
    output: PathBuf,
    /// The flattened stream; standard input if it is left out
    input: Option<PathBuf>,
    /// Overwrite an existing output
    #[arg(long)]
    force: bool,
    /// How progress is shown
    #[arg(long, value_enum, default_value_t = Mode::Auto, value_name = "MODE")]
    progress: Mode,
}

/// Runs it.
pub fn run(args: &Args, common: &Common) -> Result<u8> {
    let (mut from, name): (Box<dyn Read>, String) = match &args.input {
        Some(path) => {
            let file = std::fs::File::open(path).map_err(|e| {
                Error::failed(format!("cannot open the stream {}: {}", path.display(), coresift_engine::plain(&e))).hint("check the path")
            })?;
            (Box::new(file), path.display().to_string())
        }
        None => (Box::new(std::io::stdin().lock()), "standard input".to_owned()),
    };
    let terminal = Terminal::new(args.progress);
    let done = restore(from.as_mut(), &name, &args.output, args.force, &terminal)?;
    drop(terminal);
    let whole = done.incomplete_because.is_none();
    if common.json {
        print_json(&done)?;
    } else {
        let output = args.output.display();
        let head = match &done.incomplete_because {
            None => format!("{output} restored"),
            Some(why) => format!("INCOMPLETE: {output} restored as far as the stream goes: {why}"),
        };
        print(&format!("{head}\n  {} records, {} bytes\n", done.records, done.bytes))?;
    }
    Ok(if whole { 0 } else { 1 })
}
