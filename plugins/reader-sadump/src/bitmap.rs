//! The two bitmaps, read side by side and handed on as runs of pages.
//!
//! Bits are most significant first: PFN 0 is bit 7 of byte 0. Eight bytes are taken as one big endian number, so that
//! leading ones are PFNs in order.

use coresift_sdk::{Error, ErrorKind, Host, Result, Source};

use crate::container::Container;
use crate::header::BLOCK;

/// Bytes of a bitmap read at once.
const CHUNK: u64 = 1 << 20;

/// Most PFNs that are believed: 256 TiB, more than any machine has. A bitmap of them has 8 GiB.
pub const PFNS_MAX: u64 = 1 << 36;

/// What the bitmaps say of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// its bytes are in the image
    Dumped,
    /// RAM that the firmware left out
    LeftOut,
}

/// Goes through both bitmaps and calls `run(kind, first_pfn, pages)` for each longest run, ascending.
///
/// # Errors
/// A bitmap cannot be read as a whole, or what `run` says.
pub fn runs(
    source: &Source,
    container: &Container,
    host: &Host,
    warnings: &mut Vec<String>,
    mut run: impl FnMut(PageKind, u64, u64) -> Result<()>,
) -> Result<()> {
    let dump = &container.dump;
    let ram_len = u64::from(dump.bitmap_blocks) * BLOCK;
    let dumpable_len = u64::from(dump.dumpable_blocks) * BLOCK;
    let pfns = believed_pfns(dump.max_pfn, ram_len.max(dumpable_len) * 8, warnings);
    let mut merged = Merged { pending: None, run: &mut run };
    let mut not_ram = 0;
    let mut at = 0;
    while at * 8 < pfns {
        if host.cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, "stopped while the bitmaps were read"));
        }
        let ram = chunk(source, container.bitmap_at, at, ram_len)?;
        let dumpable = chunk(source, container.dumpable_at, at, dumpable_len)?;
        for (i, (ram, dumpable)) in (0..).zip(words(&ram).zip(words(&dumpable))) {
            let first = at * 8 + i * 64;
            let inside = match pfns.saturating_sub(first) {
                0 => break,
                left @ 1..=63 => !(u64::MAX >> left),
                _ => u64::MAX,
            };
            let dumped = dumpable & inside;
            not_ram += u64::from((dumped & !ram).count_ones());
            merged.word(first, dumped, ram & !dumpable & inside)?;
        }
        at += CHUNK;
    }
    if not_ram > 0 {
        warnings.push(format!("{not_ram} pages are dumpable, but not in the bitmap of RAM; they are taken as RAM"));
    }
    merged.end()
}

/// The number of PFNs to look at: what the header says, as far as there are bits for them.
fn believed_pfns(max_pfn: u64, bits: u64, warnings: &mut Vec<String>) -> u64 {
    let mut pfns = max_pfn;
    if max_pfn == 0 || max_pfn > bits {
        warnings.push(format!("max_mapnr is {max_pfn:#x}, but the bitmaps have {bits:#x} bits; as many PFNs are looked at"));
        pfns = bits;
    }
    if pfns > PFNS_MAX {
        warnings.push(format!("{pfns:#x} PFNs are more than any machine has: the headers are damaged; {PFNS_MAX:#x} are looked at"));
    }
    pfns.min(PFNS_MAX)
}

/// A part of a bitmap, with zeros behind its end.
fn chunk(source: &Source, start: u64, at: u64, len: u64) -> Result<Vec<u8>> {
    let there = len.saturating_sub(at).min(CHUNK);
    let mut bytes = source.read_vec(start + at, there as usize)?;
    bytes.resize(CHUNK as usize, 0);
    Ok(bytes)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks().0.iter().map(|word| u64::from_be_bytes(*word))
}

/// Joins runs that go on from one word to the next.
struct Merged<'a> {
    pending: Option<(PageKind, u64, u64)>,
    run: &'a mut dyn FnMut(PageKind, u64, u64) -> Result<()>,
}

impl Merged<'_> {
    /// 64 pages from `first` on; no bit is set in both words.
    fn word(&mut self, first: u64, dumped: u64, left_out: u64) -> Result<()> {
        let mut at = 0;
        while at < 64 {
            let (d, l) = (dumped << at, left_out << at);
            let (kind, len) = match (d.leading_ones(), l.leading_ones()) {
                (0, 0) => (None, (d | l).leading_zeros()),
                (0, len) => (Some(PageKind::LeftOut), len),
                (len, _) => (Some(PageKind::Dumped), len),
            };
            let len = len.min(64 - at);
            if let Some(kind) = kind {
                self.add(kind, first + u64::from(at), u64::from(len))?;
            }
            at += len;
        }
        Ok(())
    }

    fn add(&mut self, kind: PageKind, first: u64, pages: u64) -> Result<()> {
        match &mut self.pending {
            Some((k, f, n)) if *k == kind && *f + *n == first => {
                *n += pages;
                Ok(())
            }
            pending => match pending.replace((kind, first, pages)) {
                Some((kind, first, pages)) => (self.run)(kind, first, pages),
                None => Ok(()),
            },
        }
    }

    fn end(mut self) -> Result<()> {
        self.pending.take().map_or(Ok(()), |(kind, first, pages)| (self.run)(kind, first, pages))
    }
}
