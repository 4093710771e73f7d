//! What every dump must have: kernel text and log. And witnesses: pages that surely are the kernel's own.

use coresift_sdk::linux::Words;
use coresift_sdk::{Kernel, Machine, Mapping, Run};

/// Longest kernel text: KERNEL_IMAGE_SIZE of x86_64 is 1 GiB at most.
const TEXT_MAX: u64 = 1 << 30;
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
    /// Adds a range of kernel addresses, as far as `take` accepts its mappings.
    fn add(&mut self, address: u64, len: u64, take: impl Fn(&Mapping) -> bool) {
        let mut at = 0;
        while at < len {
            let Some(mapping) = self.kernel.translate(address.wrapping_add(at)).filter(|m| m.len > 0 && take(m)) else { return };
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
    fn text(&mut self) {
        if let Some(start) = self.kernel.symbol("_stext") {
            self.add(start, TEXT_MAX, |m| m.flags & (Mapping::EXECUTABLE | Mapping::WRITABLE) == Mapping::EXECUTABLE);
        }
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

    /// The lockless ring buffer of Linux 5.10 and later (kernel/printk/printk_ringbuffer.h).
    fn ring_buffer(&mut self, words: Words) -> Option<()> {
        let kernel = self.kernel;
        let (offset, size) = (|name: &str| kernel.info().offset(name), |name: &str| kernel.info().size(name));
        let ring = self.long(words, kernel.symbol("prb")?)?;
        let descs = ring.wrapping_add(offset("printk_ringbuffer.desc_ring")?);
        let text = ring.wrapping_add(offset("printk_ringbuffer.text_data_ring")?);
        let power = |bits: u64| (bits < 30).then(|| 1u64 << bits);
        let count = power(self.int(words, descs.wrapping_add(offset("prb_desc_ring.count_bits")?))?)?;
        let bytes = power(self.int(words, text.wrapping_add(offset("prb_data_ring.size_bits")?))?)?;
        let pieces = [
            (Some(ring), size("printk_ringbuffer")?),
            (self.long(words, descs.wrapping_add(offset("prb_desc_ring.descs")?)), count.saturating_mul(size("prb_desc")?)),
            (self.long(words, descs.wrapping_add(offset("prb_desc_ring.infos")?)), count.saturating_mul(size("printk_info")?)),
            (self.long(words, text.wrapping_add(offset("prb_data_ring.data")?)), bytes),
        ];
        for (address, len) in pieces {
            self.add(address?, len.min(LOG_MAX), |_| true);
        }
        Some(())
    }

    /// `log_buf` of older kernels: characters, since 3.5 records.
    fn flat_buffer(&mut self, words: Words) -> Option<()> {
        let address = self.long(words, self.kernel.symbol("log_buf")?)?;
        let len = self.int(words, self.kernel.symbol("log_buf_len")?)?;
        self.add(address, len.min(LOG_MAX), |_| true);
        Some(())
    }
}
