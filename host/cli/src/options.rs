//! Options that every command has.

use std::path::PathBuf;

use clap::Args;
use coresift_engine::registry::Registry;

/// Options that every command has.
#[derive(Debug, Args)]
pub struct Common {
    /// Look for plugins in this folder first (may be given more than once)
    #[arg(long, global = true, value_name = "DIR")]
    pub plugin_dir: Vec<PathBuf>,
    /// Print one JSON document on standard output instead of text
    #[arg(long, global = true)]
    pub json: bool,
}

impl Common {
    /// The plugins that can be found.
    pub fn registry(&self) -> Registry {
        Registry::new(&self.plugin_dir)
    }
}
