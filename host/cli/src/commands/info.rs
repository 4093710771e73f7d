//! `coresift info`: what an input is.

use std::path::PathBuf;
use std::sync::Arc;

use coresift_engine::Result;
use coresift_engine::info::info;
use coresift_engine::progress::Progress;

use crate::options::Common;
use crate::terminal::{Mode, Terminal, print, print_json};

/// Options of `coresift info`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  coresift info /proc/vmcore")]
pub struct Args {
    /// The input; also compressed with zstd or gzip
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
}

/// Runs it.
pub fn run(args: &Args, common: &Common) -> Result<u8> {
    let terminal: Arc<dyn Progress> = Arc::new(Terminal::new(Mode::None));
    let found = info(&args.inputs, &common.registry(), &terminal)?;
    if common.json {
        print_json(&found)?;
    } else {
        print(&found.text())?;
    }
    Ok(0)
}
