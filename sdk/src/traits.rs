//! The four traits that plugins implement, and what the host hands to them.

use std::sync::Arc;

use crate::abi::AbiInterface;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::host::{Host, Source};
use crate::machine::Machine;
use crate::manifest::Stages;
use crate::page::{Block, ClassSet, Erase, Extent, Packed, PackedBatch, PageBatch, PageState, RangeVerdict, Run, StoredPage, Verdict};

/// What a plugin is made from.
#[derive(Debug)]
pub struct Setup {
    /// the plugin's checked settings
    pub config: Config,
    /// services of the host
    pub host: Host,
    /// the crashed machine; not yet known to a reader
    pub machine: Option<Arc<Machine>>,
    /// the inputs; for readers only
    pub sources: Vec<Source>,
}

/// How sure a reader is that it can open an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Score {
    /// 0 = no, 100 = certain
    pub percent: u32,
    /// why, for `coresift info` and for the error when no reader fits
    pub reason: String,
}

impl Score {
    /// Not this reader's format, and why.
    pub fn no(reason: impl Into<String>) -> Self {
        Self { percent: 0, reason: reason.into() }
    }

    /// The right container, but nothing that only this reader knows: a more special one goes before it.
    pub fn likely(reason: impl Into<String>) -> Self {
        Self { percent: 60, reason: reason.into() }
    }

    /// A sign that no other format has.
    pub fn certain(reason: impl Into<String>) -> Self {
        Self { percent: 100, reason: reason.into() }
    }
}

/// Opens an input format.
pub trait Reader: Send + Sync {
    /// What the input says about the machine.
    fn machine(&self) -> Machine;

    /// All RAM that the input knows of: ascending, not overlapping. What no extent covers is a hole.
    fn extents(&self) -> Vec<Extent>;

    /// Makes pages of encoded extents: page `i` of `out` (page size each) gets the bytes of `pfns[i]`, and `states[i]`,
    /// missing at first, says if it could. A page that cannot be read is data, not an error.
    ///
    /// # Errors
    /// Nothing at all could be read; the host then tries page by page.
    fn read_pages(&self, pfns: &[u64], out: &mut [u8], states: &mut [PageState]) -> Result<()>;

    /// Gives pages of stored extents as they are stored: page `i` of `pfns` (ascending) is what `pages[i]` (missing at
    /// first) says, its bytes somewhere in `buf`, which holds a page size for each page. Returns how many pages from the
    /// first on were settled: fewer than asked for if the buffer is full, never none.
    ///
    /// # Errors
    /// As [`Self::read_pages`].
    fn read_stored(&self, pfns: &[u64], buf: &mut [u8], pages: &mut [StoredPage]) -> Result<usize> {
        let _ = (pfns, buf, pages);
        Err(Error::new(crate::ErrorKind::Other, "the reader has stored extents, but does not read them"))
    }

    /// See [`Filter::interface`].
    fn interface(&self, name: &str, version: u32) -> Option<AbiInterface> {
        let _ = (name, version);
        None
    }
}

/// Where a filter leaves what it found by walking kernel objects.
pub trait Survey {
    /// Gives runs of pages a verdict.
    fn ranges(&mut self, ranges: &[RangeVerdict]);
    /// Names bytes that must not reach the output.
    fn erase(&mut self, patches: &[Erase]);
}

/// Something a filter noticed that the user should know, counted over the whole run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// one sentence
    pub text: String,
    /// pages it is about, 0 if it is about none
    pub pages: u64,
    /// the dump is larger than the profile asked for because of it: the run counts as degraded
    pub weakens: bool,
}

/// Decides which pages are kept. Implement the stages that the manifest names.
///
/// Merge rule between filters: what must not be read stays out, keep beats exclude, exclude beats undecided. Order breaks
/// no tie.
pub trait Filter: Send + Sync {
    /// The standard classes that it may exclude with its settings; they go into the dump's header.
    fn excludes(&self) -> ClassSet {
        ClassSet::default()
    }

    /// A later host's optional interface of this name and version, if the plugin has it; how plugins grow without a new
    /// ABI. None is defined yet.
    fn interface(&self, name: &str, version: u32) -> Option<AbiInterface> {
        let _ = (name, version);
        None
    }

    /// The stages of its manifest that it takes part in with its settings: one that has nothing to do with pages' bytes
    /// spares the host to read pages for it.
    fn stages(&self) -> Stages {
        Stages(u32::MAX)
    }

    /// What it noticed; asked for once, when all blocks are classified.
    fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }

    /// Called once before pages are classified.
    ///
    /// # Errors
    /// The filter cannot work; the host goes on without it, or stops if it erases secrets.
    fn survey(&self, out: &mut dyn Survey) -> Result<()> {
        let _ = out;
        Ok(())
    }

    /// Gives verdicts to the pages of a block without their bytes. `verdicts` has one entry a page, undecided at first.
    ///
    /// # Errors
    /// The block's pages are kept and the report names filter, block and reason.
    fn classify(&self, block: &Block<'_>, verdicts: &mut [Verdict]) -> Result<()> {
        let _ = (block, verdicts);
        Ok(())
    }

    /// Gives verdicts to a batch of pages by their bytes. Only pages that nothing excluded so far come here.
    ///
    /// # Errors
    /// As for [`Self::classify`], for the batch.
    fn inspect(&self, batch: &PageBatch<'_>, verdicts: &mut [Verdict]) -> Result<()> {
        let _ = (batch, verdicts);
        Ok(())
    }
}

/// Compresses and decompresses pages. The host makes one for each worker: keep contexts in `self` and reuse them.
pub trait Compressor: Send {
    /// Compresses a batch; [`Packed::each`] does the bookkeeping.
    ///
    /// # Errors
    /// The host stores the batch raw.
    fn compress(&mut self, batch: &PageBatch<'_>, out: &mut Packed<'_>) -> Result<()>;

    /// Decompresses pages: `stored[i]` into page `i` of `out` (pages of `page_size` bytes).
    ///
    /// # Errors
    /// One of them does not decompress to exactly a page.
    fn decompress(&mut self, stored: &[&[u8]], page_size: usize, out: &mut [u8]) -> Result<()>;

    /// See [`Filter::interface`].
    fn interface(&self, name: &str, version: u32) -> Option<AbiInterface> {
        let _ = (name, version);
        None
    }
}

/// Decompresses a batch page by page: the loop of most [`Compressor::decompress`]. `decode` returns the length it made.
///
/// # Errors
/// As [`Compressor::decompress`]; `codec` names the codec in the message.
pub fn decompress_each(
    codec: &str,
    stored: &[&[u8]],
    page_size: usize,
    out: &mut [u8],
    mut decode: impl FnMut(&[u8], &mut [u8]) -> std::result::Result<usize, String>,
) -> Result<()> {
    if page_size == 0 || out.len() != stored.len().saturating_mul(page_size) {
        return Err(Error::format("the output has not one page for each stored page"));
    }
    for (i, (bytes, page)) in stored.iter().zip(out.chunks_exact_mut(page_size)).enumerate() {
        match decode(bytes, page) {
            Ok(n) if n == page_size => {}
            Ok(n) => return Err(Error::format(format!("{codec}: page {i} of the batch decompresses to {n} bytes, not {page_size}"))),
            Err(e) => return Err(Error::format(format!("{codec}: page {i} of the batch: {e}"))),
        }
    }
    Ok(())
}

/// Which set of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageSet {
    /// RAM: what the input has or left out.
    Ram = 0,
    /// What goes into the dump, zero pages included.
    Dumped = 1,
}

/// The sets of pages a writer asks for; the host keeps them compressed.
pub trait PageSets {
    /// Fills `out` with bits, least significant first: bit `i` is PFN `first_pfn + i`.
    fn bitmap(&self, which: PageSet, first_pfn: u64, out: &mut [u8]);
    /// The runs from `from_pfn` on, ascending; returns how many of `out` were filled (fewer than asked for: the end). A long
    /// run may come in pieces.
    fn runs(&self, which: PageSet, from_pfn: u64, out: &mut [Run]) -> usize;
    /// Number of pages.
    fn count(&self, which: PageSet) -> u64;
}

/// What is to be written.
pub struct Plan<'a> {
    /// the crashed machine
    pub machine: &'a Machine,
    /// RAM and dumped pages
    pub pages: &'a dyn PageSets,
    /// page classes that are left out, by the input or by filters
    pub excluded: ClassSet,
    /// codec bit of the compressor, 0 = none
    pub codec: u32,
    /// first PFN of this output (0 unless split)
    pub first_pfn: u64,
    /// one behind the last PFN of this output
    pub end_pfn: u64,
    /// number of this part, from 0
    pub part: u32,
    /// number of parts, 1 = not split
    pub parts: u32,
    /// seconds since 1970, now
    pub written_at: u64,
}

/// How a dump ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// pages are missing at the end (out of space, size limit, cancelled)
    pub incomplete: bool,
    /// pages that were to be in the dump but could not be read
    pub lost_pages: u64,
}

/// Where a writer puts bytes.
pub trait Sink {
    /// Writes the pieces one behind the other from `offset` on. Give large writes: each is a system call.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NoSpace`] when the output is full; pass every error on.
    fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> Result<()>;

    /// Makes the output at least `len` bytes long and reserves the space if the file system can; the bytes are zero.
    ///
    /// # Errors
    /// The space is not there.
    fn reserve(&mut self, len: u64) -> Result<()>;

    /// True if going back to lower offsets is cheap (a file), false if it costs a reader (a flattened stream).
    fn positioned(&self) -> bool;
}

/// Writes an output format. Calls come in this order: `begin`, `write` for each batch in PFN order, `finish`.
///
/// After every call what the sink holds must open as an incomplete dump.
pub trait Writer: Send {
    /// Writes what goes before the pages, marked incomplete.
    ///
    /// # Errors
    /// Nothing can be written.
    fn begin(&mut self, plan: &Plan<'_>, sink: &mut dyn Sink) -> Result<()>;

    /// Writes a batch: first the data, then what points to it.
    ///
    /// # Errors
    /// The batch is not in the output.
    fn write(&mut self, batch: &PackedBatch<'_>, sink: &mut dyn Sink) -> Result<()>;

    /// Takes the incomplete mark away, unless `end` says that it stays.
    ///
    /// # Errors
    /// The mark stays.
    fn finish(&mut self, end: &End, sink: &mut dyn Sink) -> Result<()>;

    /// See [`Filter::interface`].
    fn interface(&self, name: &str, version: u32) -> Option<AbiInterface> {
        let _ = (name, version);
        None
    }
}
