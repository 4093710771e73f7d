//! Memory: how much a run may take, and how many threads fit.

use crate::batch::BATCH_BYTES;
use crate::profile::Threads;

/// What the program, the plugins and the tables take before the first batch, roughly.
const BASE: u64 = 12 << 20;

/// Largest window: more gains nothing, and address space may be limited.
const MAP_SIZE_MAX: usize = 1 << 30;

/// How a run is to be laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// worker threads, at least 1; with 1 everything runs inline
    pub threads: usize,
    /// batches in flight
    pub batches: usize,
    /// largest window in bytes, 0 = read
    pub map_size: usize,
}

/// Lays a run out: as many threads as there are CPUs, are asked for, and fit into memory.
///
/// `memory` is the budget in bytes, `None` = half of what is free.
pub fn plan(threads: Threads, map_size: usize, memory: Option<u64>, page_size: usize) -> Budget {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = match threads {
        Threads::Auto => cpus,
        // More threads than CPUs only take turns.
        Threads::AtMost(n) => n.min(cpus),
    };
    let memory = memory.or_else(|| free_memory().map(|free| free / 2)).unwrap_or(u64::MAX);
    // A batch holds pages in windows or in a buffer, and as much again for what the compressor makes of them.
    let batch = 2 * BATCH_BYTES.max(page_size) as u64;
    let fits = |batches: usize| BASE.saturating_add(batch.saturating_mul(batches as u64)) <= memory;
    let threads = (2..=wanted).rev().find(|&t| fits(in_flight(t))).unwrap_or(1);
    // A window wider than a batch costs memory only for the pages touched in it, but those of a damaged one are read.
    Budget { threads, batches: in_flight(threads), map_size: map_size.min(MAP_SIZE_MAX) }
}

/// Batches in flight: one for each worker, one being written, one waiting.
const fn in_flight(threads: usize) -> usize {
    if threads == 1 { 1 } else { threads + 2 }
}

/// Memory that can be had without swapping: MemAvailable, and what a memory cgroup leaves.
fn free_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let available =
        meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())? << 10;
    Some(cgroup_left().map_or(available, |left| left.min(available)))
}

/// What the process's cgroup (version 2) allows beyond what it has in use.
fn cgroup_left() -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = own.lines().find_map(|l| l.strip_prefix("0::/"))?;
    let folder = std::path::Path::new("/sys/fs/cgroup").join(group);
    let number = |file: &str| std::fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
    // Page cache counts as used but is given back: without it, whoever has just read a large file has no memory.
    let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cache = stat.lines().find_map(|l| l.strip_prefix("inactive_file ")?.trim().parse::<u64>().ok()).unwrap_or(0);
    Some(number("memory.max")?.saturating_sub(number("memory.current")?.saturating_sub(cache)))
}

/// Largest resident memory of this process so far, in bytes (`VmHWM` of /proc/self/status; 0 if /proc is not there).
pub fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    peak.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_memory_means_one_thread_and_never_none() {
        let tight = plan(Threads::AtMost(64), 4 << 20, Some(1 << 20), 4096);
        assert_eq!((tight.threads, tight.batches), (1, 1));
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        assert_eq!(plan(Threads::AtMost(64), 4 << 20, Some(1 << 40), 4096).threads, cpus);
    }
}
