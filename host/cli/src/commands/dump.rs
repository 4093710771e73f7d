//! `coresift dump`: the main job.

use std::path::PathBuf;
use std::sync::Arc;

use coresift_engine::dump::{self, Job};
use coresift_engine::profile::{self, FilterUse, Node, OnFailure, Origin, Profile, Setting, Tree, Use, Value};
use coresift_engine::progress::Progress;
use coresift_engine::report::{Outcome, PartWritten, Report};
use coresift_engine::size::human;
use coresift_engine::{Error, Result};

use crate::options::Common;
use crate::terminal::{Mode, Terminal, print, print_json, say};

const USAGE: &str = "\
coresift dump [OPTIONS] INPUT... OUTPUT
       coresift dump [OPTIONS] --dry-run INPUT...";

const EXAMPLES: &str = "\
Examples:
  coresift dump /proc/vmcore /var/crash/vmcore          profile kdump: LZO, only what the kernel itself needs
  coresift dump vmcore out --profile small              the smallest dump
  coresift dump vmcore out --compress zstd:3            another codec and level for this once
  coresift dump vmcore out -d 17                        without zero and free pages, with caches and user memory
  coresift dump vmcore.zst out -d 0 --threads 1         every page, one thread, from a compressed file
  coresift dump vmcore --dry-run --json                 how large would it be?
  coresift dump vmcore out --split 4                    out.1 to out.4, of about equal size, written at the same time
  coresift dump vmcore /disk1/a --also /disk2/b         two parts on two disks
  coresift dump vmcore - --flattened | ssh host 'coresift restore vmcore'
  coresift dump out small -d 31 --compress keep         leave more out of a dump, pages stay as they are compressed

The dump is written as OUTPUT.incomplete and renamed at the end. If the run is killed or the disk is full,
OUTPUT.incomplete holds the pages written so far and opens as an incomplete dump: with drgn and libkdumpfile,
and with crash as far as the pages it starts from are there (--minimal and --zero_excluded need fewer).";

/// Options of `coresift dump`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
pub struct Args {
    /// The input (a vmcore or dump, also flattened, or compressed with zstd or gzip; all parts of a split dump), then the
    /// output; with --dry-run no output
    #[arg(required = true, value_names = ["INPUT", "OUTPUT"], num_args = 1..)]
    files: Vec<PathBuf>,
    /// Profile by name or file
    #[arg(long, value_name = "PROFILE", default_value = profile::DEFAULT)]
    profile: String,
    /// Dump level as makedumpfile's, the sum of what to leave out: 1 zero pages, 2 page cache, 4 all page cache,
    /// 8 user memory, 16 free memory
    #[arg(short = 'd', long = "dump-level", value_name = "LEVEL")]
    level: Option<u32>,
    /// Compressor and level, e.g. lzo, zlib:6, zstd:3, none; keep = as the input has them
    #[arg(long, value_name = "NAME[:LEVEL]")]
    compress: Option<String>,
    /// Output format
    #[arg(long, value_name = "NAME")]
    writer: Option<String>,
    /// File with VMCOREINFO lines (makedumpfile -g), for an input that has none
    #[arg(long, value_name = "FILE")]
    vmcoreinfo: Option<String>,
    /// Worker threads: a number or auto; never more than CPUs
    #[arg(long, value_name = "N")]
    threads: Option<String>,
    /// Largest window into the input, e.g. 4MiB; 0 = read(2)
    #[arg(long, value_name = "SIZE")]
    map_size: Option<String>,
    /// Write a flattened stream, which needs no random access; OUTPUT may be - for standard output
    #[arg(long)]
    flattened: bool,
    /// Write N files OUTPUT.1 ... OUTPUT.N at the same time, of about equal size; crash opens them together
    #[arg(long, value_name = "N")]
    split: Option<String>,
    /// Split the dump: write another part into this file at the same time, e.g. on another disk (may be given more than once)
    #[arg(long, value_name = "FILE", conflicts_with = "split")]
    also: Vec<PathBuf>,
    /// Stop when the output reaches this size; it opens as an incomplete dump
    #[arg(long, value_name = "SIZE")]
    limit: Option<String>,
    /// Do everything but write
    #[arg(long)]
    dry_run: bool,
    /// Overwrite an existing output
    #[arg(long)]
    force: bool,
    /// Override any key of the profile, e.g. compress.level=3 (may be given more than once)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// How progress is shown
    #[arg(long, value_enum, default_value_t = Mode::Auto, value_name = "MODE")]
    progress: Mode,
    /// Exit with 3 if the dump is incomplete, 4 if it is degraded
    #[arg(long)]
    strict_exit: bool,
}

/// Runs it.
pub fn run(args: &Args, common: &Common) -> Result<u8> {
    let (inputs, output) = files(args)?;
    let mut profile = profile::open(&args.profile, &settings(args)?)?;
    if let Some(level) = args.level {
        set_level(&mut profile, level)?;
    }
    let json = common.json || profile.json;
    let terminal: Arc<dyn Progress> = Arc::new(Terminal::new(args.progress));
    let job = Job { inputs, output, more_outputs: args.also.clone(), force: args.force, profile };
    let to_stdout = job.to_stdout();
    let report = dump::run(&job, &common.registry(), &terminal)?;
    drop(terminal);
    match (json, to_stdout) {
        // The stream has standard output for itself.
        (true, true) => say(&serde_json::to_string(&report).unwrap_or_default()),
        (true, false) => print_json(&report)?,
        (false, true) => say(&text(&report)),
        (false, false) => print(&text(&report))?,
    }
    Ok(match report.outcome {
        _ if !args.strict_exit => 0,
        Outcome::Complete => 0,
        Outcome::Incomplete => 3,
        Outcome::Degraded => 4,
    })
}

/// Splits the positional arguments into inputs and output.
fn files(args: &Args) -> Result<(Vec<PathBuf>, Option<PathBuf>)> {
    let inputs = args.files.split_last().map_or(&[][..], |(_, inputs)| inputs);
    if inputs.iter().any(|f| f.as_os_str() == "-") {
        return Err(Error::usage("`-` is no input: a dump needs random access to it").hint("give a file name"));
    }
    match args.files.split_last() {
        _ if args.dry_run => Ok((args.files.clone(), None)),
        Some((output, inputs @ [_, ..])) => Ok((inputs.to_vec(), Some(output.clone()))),
        _ => Err(Error::usage("no OUTPUT given").hint("coresift dump INPUT OUTPUT, or --dry-run to write nothing")),
    }
}

/// The options that stand for profile keys; `--set` comes last and wins.
fn settings(args: &Args) -> Result<Vec<Setting>> {
    let mut settings = Vec::new();
    let text = |t: &String| t.parse().map_or_else(|_| Value::Text(t.clone()), Value::Integer);
    if let Some(compress) = &args.compress {
        settings.push(compressor(compress)?);
    }
    let options = [
        ("--writer", "output.writer", args.writer.as_ref()),
        ("--vmcoreinfo", "input.vmcoreinfo", args.vmcoreinfo.as_ref()),
        ("--threads", "engine.threads", args.threads.as_ref()),
        ("--map-size", "engine.map_size", args.map_size.as_ref()),
        ("--limit", "output.limit", args.limit.as_ref()),
        ("--split", "output.split", args.split.as_ref()),
    ];
    for (option, key, value) in options {
        settings.extend(value.map(|v| Setting::option(&format!("{option} {v}"), key, text(v))));
    }
    if !args.also.is_empty() {
        let parts = i64::try_from(args.also.len() + 1).unwrap_or(i64::MAX);
        settings.push(Setting::option("--also", "output.split", Value::Integer(parts)));
    }
    if args.flattened {
        settings.push(Setting::option("--flattened", "output.flattened", Value::Bool(true)));
    }
    for set in &args.set {
        settings.push(Setting::parse(set)?);
    }
    Ok(settings)
}

/// `--compress NAME[:LEVEL]` replaces the whole section: levels and fallbacks of the profile belong to its own codec.
fn compressor(argument: &str) -> Result<Setting> {
    let option = format!("--compress {argument}");
    let origin = Origin::Option(option.clone());
    let (name, level) = argument.split_once(':').map_or((argument, None), |(n, l)| (n, Some(l)));
    let node = |value| Node { value, origin: origin.clone() };
    let mut table = Tree::default();
    table.0.insert("plugin".into(), node(Value::Text(name.to_owned())));
    if let Some(level) = level {
        let number = level.parse().map_err(|_| {
            Error::usage(format!("{option}: `{level}` is no level"))
                .hint("for example --compress zstd:3; `coresift plugins show zstd` has the range")
        })?;
        table.0.insert("level".into(), node(Value::Integer(number)));
    }
    Ok(Setting::option(&option, "compress", Value::Table(table)))
}

/// Largest dump level: all five bits.
const LEVEL_MAX: u32 = 31;

/// Classes of the filter `linux` that the level's bits stand for.
const LEVEL_CLASSES: [&str; 5] = ["zero", "cache", "private-cache", "user", "free"];

/// Gives the filter `linux` this level, and takes out what the profile excludes by itself of the same classes: the filter
/// `zero`. Other filters of the profile stay.
fn set_level(profile: &mut Profile, level: u32) -> Result<()> {
    if level > LEVEL_MAX {
        let hint = "add up what to leave out: 1 zero pages, 2 cache, 4 all cache, 8 user, 16 free; -d 31 is all";
        return Err(Error::usage(format!("-d {level}: dump levels go from 0 to {LEVEL_MAX}")).hint(hint));
    }
    let origin = Origin::Option(format!("-d {level}"));
    profile.filters.retain(|f| f.plugin.plugin != "zero");
    let number = Node { value: Value::Integer(level.into()), origin: origin.clone() };
    if let Some(linux) = profile.filters.iter_mut().find(|f| f.plugin.plugin == "linux") {
        let settings = &mut linux.plugin.settings.0;
        settings.insert("level".into(), number);
        // Of what the profile excludes by name the level says it anew; other classes stay.
        if let Some(Node { value: Value::List(names), .. }) = settings.get_mut("exclude") {
            names.retain(|name| !matches!(&name.value, Value::Text(t) if LEVEL_CLASSES.contains(&t.as_str())));
        }
        return Ok(());
    }
    let mut settings = Tree::default();
    settings.0.insert("level".into(), number);
    let plugin = Use { plugin: "linux".into(), origin: Some(origin), settings };
    profile.filters.insert(0, FilterUse { plugin, on_failure: Some(OnFailure::Keep) });
    Ok(())
}

fn text(report: &Report) -> String {
    let head = match (&report.output, report.outcome, &report.incomplete_because) {
        (None, ..) => "dry run: nothing was written".to_owned(),
        (Some(_), Outcome::Complete, _) if report.output.as_deref() == Some("-") => "dump written to standard output".to_owned(),
        (Some(name), Outcome::Complete, _) => format!("dump saved to {name}"),
        (Some(name), Outcome::Degraded, _) => format!("dump saved to {name}, DEGRADED: see below"),
        (Some(name), Outcome::Incomplete, why) => {
            format!("INCOMPLETE dump saved to {name}: {}", why.as_deref().unwrap_or("unknown reason"))
        }
    };
    let parts: String = report.parts.iter().map(part_line).collect();
    format!("{head}\n{parts}{}", report.text())
}

fn part_line(part: &PartWritten) -> String {
    let (name, pages, bytes) = (&part.output, part.pages, human(part.bytes));
    format!("  {name}: PFN {:#x} to {:#x}, {pages} pages, {bytes}\n", part.first_pfn, part.end_pfn)
}
