//! `coresift info`: what an input is.

use std::path::PathBuf;
use std::sync::Arc;

use coresift_engine::Result;
use coresift_engine::image::Opening;
use coresift_engine::info::info;
use coresift_engine::profile::{self, Setting};
use coresift_engine::progress::Progress;

use crate::options::Common;
use crate::terminal::{Mode, Terminal, print, print_json};

/// Options of `coresift info`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  coresift info /proc/vmcore")]
pub struct Args {
    /// The input; also flattened or compressed; all parts of a split dump
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// Set a key of the profile's section input, e.g. input.reader=raw or input.arch=aarch64 (may be given more than once)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Runs it.
pub fn run(args: &Args, common: &Common) -> Result<u8> {
    let terminal: Arc<dyn Progress> = Arc::new(Terminal::new(Mode::None));
    let settings = args.set.iter().map(|set| Setting::parse(set)).collect::<Result<Vec<_>>>()?;
    let profile = profile::open("plain", &settings)?;
    let registry = common.registry();
    let reader = profile::resolve_reader(&profile, &registry)?;
    let opening = Opening { reader, settings: Some(profile.reader.clone()), vmcoreinfo: profile.vmcoreinfo.clone() };
    let found = info(&args.inputs, &opening, &registry, &terminal)?;
    if common.json {
        print_json(&found)?;
    } else {
        print(&found.text())?;
    }
    Ok(0)
}
