//! What every dump must have: kernel text and log. And witnesses: pages that surely are the kernel's own.

use coresift_sdk::linux::Words;
use coresift_sdk::{Kernel, Machine, Mapping, Run};

/// Longest kernel text: KERNEL_IMAGE_SIZE of x86_64 is 1 GiB at most.
const TEXT_MAX: u64 = 1 << 30;
/// Mappings in a row that are no text before the text is believed to end, and how far a missing one reaches.
const GAPS_MAX: u32 = 3;
const GAP: u64 = 2 << 20;
/// Longest piece of the log: log_buf_len=2G is refused by the kernel, 1 GiB is the largest power of two below.
const LOG_MAX: u64 = 1 << 30;

/// Variables that live as long as the kernel, in memory that is never given back.
const OWN_DATA: [&str; 12] = [
    "init_uts_ns",
    "system_utsname",
    "_stext",
    "swapper_pg_dir",
    "node_online_map",
    "node_data",
    "contig_page_data",
    "mem_section",
    "prb",
    "log_buf",
    "clear_seq",
    "mem_map",
];

/// Pages of the kernel's own variables, with the variable's name.
pub fn witnesses(kernel: &Kernel, page_shift: u32) -> Vec<(&'static str, u64)> {
    let pfn = |name: &str| Some(kernel.translate(kernel.symbol(name)?)?.paddr >> page_shift);
    OWN_DATA.into_iter().filter_map(|name| Some((name, pfn(name)?))).collect()
}

/// Kernel text, log and the variables above: runs of PFNs, ascending, not overlapping.
pub fn runs(kernel: &Kernel, machine: &Machine) -> Vec<Run> {
    let mut found = Collected { kernel, page_shift: machine.page_shift, runs: Vec::new() };
    found.text();
    let words = Words::of(machine);
    if found.ring_buffer(words).is_none() {
        let _ = found.flat_buffer(words);
    }
    let page = |pfn| Run { first_pfn: pfn, pages: 1 };
    found.runs.extend(witnesses(kernel, machine.page_shift).into_iter().map(|(_, pfn)| page(pfn)));
    found.runs.sort_by_key(|r| r.first_pfn);
    found.runs.dedup_by(|next, last| {
        let joins = next.first_pfn <= last.end_pfn();
        if joins {
            last.pages = last.pages.max(next.end_pfn() - last.first_pfn);
        }
        joins
    });
    found.runs
}

struct Collected<'a> {
    kernel: &'a Kernel,
    page_shift: u32,
    runs: Vec<Run>,
}

impl Collected<'_> {
    /// Adds a range of kernel addresses, as far as it is mapped.
    fn add(&mut self, address: u64, len: u64) {
        let mut at = 0;
        while at < len {
            let Some(mapping) = self.kernel.translate(address.wrapping_add(at)).filter(|m| m.len > 0) else { return };
            let len = mapping.len.min(len - at);
            let (first, last) = (mapping.paddr >> self.page_shift, mapping.paddr.saturating_add(len - 1) >> self.page_shift);
            match self.runs.last_mut() {
                Some(run) if run.end_pfn() == first => run.pages += last - first + 1,
                _ => self.runs.push(Run { first_pfn: first, pages: last - first + 1 }),
            }
            at += len;
        }
    }

    /// From `_stext` on as long as memory is executable and read-only. A kernel that does not protect its text has no edge
    /// there that could be found: its text is known by its first page only.
    ///
    /// The image is contiguous in physical memory, so one distance holds for all of it: the one that most of its mappings
    /// have. A page-table entry that is damaged neither moves the text nor ends it.
    fn text(&mut self) {
        let Some(start) = self.kernel.symbol("_stext") else { return };
        // If nothing is executable, an entry high up is damaged: then all that is read-only.
        let asked = [Mapping::EXECUTABLE, 0].into_iter().find_map(|flag| self.text_by(start, flag));
        self.runs.extend(asked);
    }

    /// The text, if what it consists of has this flag and is read-only.
    fn text_by(&self, start: u64, flag: u32) -> Option<Run> {
        let (mut at, mut end, mut bad) = (0u64, 0u64, 0);
        let mut distances: Vec<(u64, u64)> = Vec::new();
        while at < TEXT_MAX && bad < GAPS_MAX {
            let address = start.wrapping_add(at);
            let is_text = |m: &Mapping| m.len > 0 && m.flags & (flag | Mapping::WRITABLE) == flag;
            let mapping = self.kernel.translate(address);
            at += mapping.map_or(GAP - (address & (GAP - 1)), |m| m.len.max(1));
            match mapping.filter(is_text) {
                Some(mapping) => {
                    (end, bad) = (at, 0);
                    let distance = address.wrapping_sub(mapping.paddr);
                    match distances.iter_mut().find(|(d, _)| *d == distance) {
                        Some((_, bytes)) => *bytes += mapping.len,
                        None => distances.push((distance, mapping.len)),
                    }
                }
                None => bad += 1,
            }
        }
        let (distance, _) = distances.into_iter().max_by_key(|(_, bytes)| *bytes)?;
        let (first, last) = (start.wrapping_sub(distance), start.wrapping_sub(distance).saturating_add(end - 1));
        let (first, last) = (first >> self.page_shift, last >> self.page_shift);
        Some(Run { first_pfn: first, pages: last - first + 1 })
    }

    fn long(&self, words: Words, address: u64) -> Option<u64> {
        let mut raw = [0u8; 8];
        let raw = raw.get_mut(..words.long)?;
        self.kernel.read(address, raw).ok()?;
        words.long(raw, 0)
    }

    fn int(&self, words: Words, address: u64) -> Option<u64> {
        let mut raw = [0u8; 4];
        self.kernel.read(address, &mut raw).ok()?;
        words.u32(&raw, 0).map(u64::from)
    }

    /// The lockless ring buffer of Linux 5.10 and later (kernel/printk/printk_ringbuffer.h). Each piece is found by itself:
    /// one whose key is damaged does not cost the others. `None` if the kernel has no such buffer.
    fn ring_buffer(&mut self, words: Words) -> Option<()> {
        let kernel = self.kernel;
        let (offset, size) = (|name: &str| kernel.info().offset(name), |name: &str| kernel.info().size(name));
        let ring = self.long(words, kernel.symbol("prb")?)?;
        self.add(ring, size("printk_ringbuffer").unwrap_or(1).min(LOG_MAX));
        let power = |at: Option<u64>| self.int(words, at?).filter(|bits| *bits < 30).map(|bits| 1u64 << bits);
        let pointer = |at: Option<u64>| self.long(words, at?);
        let within = |base: Option<u64>, name: &str| Some(base?.wrapping_add(offset(name)?));
        let descs = within(Some(ring), "printk_ringbuffer.desc_ring");
        let text = within(Some(ring), "printk_ringbuffer.text_data_ring");
        let count = power(within(descs, "prb_desc_ring.count_bits")).unwrap_or(1);
        let pieces = [
            (pointer(within(descs, "prb_desc_ring.descs")), size("prb_desc").map(|s| count.saturating_mul(s))),
            (pointer(within(descs, "prb_desc_ring.infos")), size("printk_info").map(|s| count.saturating_mul(s))),
            (pointer(within(text, "prb_data_ring.data")), power(within(text, "prb_data_ring.size_bits"))),
        ];
        for (address, len) in pieces {
            if let (Some(address), Some(len)) = (address, len) {
                self.add(address, len.min(LOG_MAX));
            }
        }
        Some(())
    }

    /// `log_buf` of older kernels: characters, since 3.5 records.
    fn flat_buffer(&mut self, words: Words) -> Option<()> {
        let address = self.long(words, self.kernel.symbol("log_buf")?)?;
        let len = self.int(words, self.kernel.symbol("log_buf_len")?)?;
        self.add(address, len.min(LOG_MAX));
        Some(())
    }
}
