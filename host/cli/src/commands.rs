//! One file per command: its options and what it does.

use clap::Subcommand;
use coresift_engine::Result;

use crate::options::Common;

mod dump;
mod info;
mod join;
mod plugins;
mod profiles;
mod restore;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a dump
    Dump(Box<dump::Args>),
    /// Say what an input is: machine, kernel, crash time, format, memory, completeness
    Info(info::Args),
    /// Turn a flattened stream back into a file
    Restore(restore::Args),
    /// Put the parts of a split dump together
    Join(join::Args),
    /// List, explain and check plugins
    #[command(subcommand)]
    Plugins(plugins::Command),
    /// List, print and check profiles
    #[command(subcommand)]
    Profiles(profiles::Command),
}

impl Command {
    /// Runs it; returns the exit status.
    pub fn run(&self, common: &Common) -> Result<u8> {
        match self {
            Self::Dump(args) => dump::run(args, common),
            Self::Info(args) => info::run(args, common),
            Self::Restore(args) => restore::run(args, common),
            Self::Join(args) => join::run(args, common),
            Self::Plugins(command) => plugins::run(command, common),
            Self::Profiles(command) => profiles::run(command, common),
        }
    }
}
