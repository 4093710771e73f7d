//! `coresift`: the command.

use std::process::ExitCode;

use clap::Parser;

mod commands;
mod options;
mod terminal;

use commands::Command;
use coresift_engine::{Error, Exit};

/// Turns the memory image of a crashed Linux machine into a dump that is small and always opens.
#[derive(Debug, Parser)]
#[command(name = "coresift", version, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    common: options::Common,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  coresift dump /proc/vmcore /var/crash/vmcore        in the kdump kernel, profile kdump
  coresift dump vmcore small.kdump --profile small    shrink a dump to send it
  coresift info vmcore                                what is this file?
  coresift plugins list                               what can be read, dropped, compressed, written

Exit status: 0 done, 1 failed, 2 wrong usage; with dump --strict-exit also 3 incomplete, 4 degraded.";

fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = cli.common.json;
    match cli.command.run(&cli.common) {
        Ok(code) => ExitCode::from(code),
        Err(e) => fail(&e, json),
    }
}

/// Says what went wrong: to people on standard error, to programs as the command's one document.
fn fail(e: &Error, json: bool) -> ExitCode {
    terminal::say(&format!("coresift: {e}"));
    let status = match e.exit {
        Exit::Failed => 1,
        Exit::Usage => 2,
    };
    if json {
        let document = serde_json::json!({ "schema": 1, "error": { "message": e.message, "hint": e.hint, "status": status } });
        let _ = terminal::print(&format!("{document:#}\n"));
    }
    ExitCode::from(status)
}
