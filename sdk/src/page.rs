//! Pages: where they are, what becomes of them, and the batches they travel in.

use crate::abi::ByteSlice;
pub use crate::abi::{
    Block, Erase, Extent, ExtentKind, Packed, PackedBatch, PackedPage, PageBatch, PageState, RangeVerdict, Run, StoredPage, Verdict,
};
use crate::error::{Error, Result};
use crate::linux::StructPages;
pub use crate::zero::is_zero;

impl Verdict {
    /// No opinion; the page is kept unless another filter excludes it.
    pub const UNDECIDED: Self = Self(0);
    /// Keep, whatever other filters say.
    pub const KEEP: Self = Self(1);
    /// The page holds only zero bytes.
    pub const ZERO: Self = Self(2);
    /// Page cache without private data.
    pub const CACHE: Self = Self(3);
    /// Page cache with private data (buffer heads).
    pub const PRIVATE_CACHE: Self = Self(4);
    /// Memory of user processes.
    pub const USER: Self = Self(5);
    /// Free in the buddy allocator.
    pub const FREE: Self = Self(6);
    /// Broken hardware; must not be read.
    pub const HWPOISON: Self = Self(7);
    /// Taken away by a balloon or hot-unplug; must not be read.
    pub const OFFLINE: Self = Self(8);
    /// Not yet accepted from the hypervisor (TDX, SEV-SNP); must not be read.
    pub const UNACCEPTED: Self = Self(9);
    /// Pages of the mem_map that describe only excluded pages.
    pub const MEMMAP: Self = Self(10);
    /// First of the classes that a filter defines itself; class `i` of [`crate::Manifest::classes`] is `PLUGIN + i`.
    pub const PLUGIN: Self = Self(128);

    /// The verdict for class number `index` of the plugin's own [`crate::Manifest::classes`].
    pub const fn plugin_class(index: u8) -> Self {
        Self(Self::PLUGIN.0.saturating_add(index))
    }

    /// Name of a standard class as profiles and reports spell it; `None` for a plugin's class or an unknown number.
    pub const fn class_name(self) -> Option<&'static str> {
        Some(match self {
            Self::ZERO => "zero",
            Self::CACHE => "cache",
            Self::PRIVATE_CACHE => "private-cache",
            Self::USER => "user",
            Self::FREE => "free",
            Self::HWPOISON => "hwpoison",
            Self::OFFLINE => "offline",
            Self::UNACCEPTED => "unaccepted",
            Self::MEMMAP => "memmap",
            _ => return None,
        })
    }

    /// True if the verdict takes the page out of the dump.
    pub const fn excludes(self) -> bool {
        self.0 > Self::KEEP.0
    }

    /// True for classes whose pages must not be touched: reading one can stop the machine, or make a host allocate it.
    pub const fn forbids_reading(self) -> bool {
        matches!(self, Self::HWPOISON | Self::OFFLINE | Self::UNACCEPTED)
    }

    /// Joins two filters' verdicts: what must not be read stays out, then keep beats exclude, exclude beats undecided; of
    /// two classes the first stays, which only names the reason.
    #[must_use]
    pub const fn merge(self, other: Self) -> Self {
        if self.forbids_reading() {
            self
        } else if other.forbids_reading() || other.0 == Self::KEEP.0 || self.0 == Self::UNDECIDED.0 {
            other
        } else {
            self
        }
    }
}

/// A set of standard page classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassSet(pub u64);

/// Bits of makedumpfile's dump level (`DL_EXCLUDE_*`, makedumpfile.h) and the classes they exclude.
const DUMP_LEVEL: [(u32, Verdict); 5] =
    [(1, Verdict::ZERO), (2, Verdict::CACHE), (4, Verdict::PRIVATE_CACHE), (8, Verdict::USER), (16, Verdict::FREE)];

impl ClassSet {
    /// This set and one class more; a plugin's own classes are not standard and change nothing.
    #[must_use]
    pub const fn with(self, class: Verdict) -> Self {
        if class.0 < 64 { Self(self.0 | 1 << class.0) } else { self }
    }

    /// The classes of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if the class is in the set.
    pub const fn contains(self, class: Verdict) -> bool {
        class.0 < 64 && self.0 >> class.0 & 1 == 1
    }

    /// The set as makedumpfile's dump level.
    pub fn dump_level(self) -> u32 {
        DUMP_LEVEL.iter().filter(|(_, class)| self.contains(*class)).map(|(bit, _)| bit).sum()
    }

    /// The set that a dump level of makedumpfile stands for.
    pub fn from_dump_level(level: u32) -> Self {
        DUMP_LEVEL.iter().filter(|(bit, _)| level & bit != 0).fold(Self::default(), |set, (_, class)| set.with(*class))
    }
}

impl PageState {
    /// The page cannot be read.
    pub const MISSING: Self = Self(0);
    /// The page's bytes are there.
    pub const PRESENT: Self = Self(1);
}

impl ExtentKind {
    /// The bytes stand in a source as they are; the host maps or reads them without the reader.
    pub const MAPPED: Self = Self(0);
    /// The reader makes the bytes: [`crate::Reader::read_pages`] (decompression, pages put together from pieces).
    pub const ENCODED: Self = Self(1);
    /// RAM that the input left out (already filtered): counted, never in the output.
    pub const ABSENT: Self = Self(2);
    /// The reader gives the bytes as they are stored, compressed or not: [`crate::Reader::read_stored`]. The host
    /// decompresses them with the compressor plugin of their codec, or copies them as they are.
    pub const STORED: Self = Self(3);
}

impl StoredPage {
    /// [`Self::state`]: the page cannot be read.
    pub const MISSING: u32 = 0;
    /// [`Self::state`]: its bytes are in the buffer.
    pub const STORED: u32 = 1;
    /// [`Self::state`]: it holds only zeros, and nothing was read.
    pub const ZERO: u32 = 2;

    /// A page whose stored bytes are `len` bytes of the buffer from `at` on.
    pub const fn stored(at: u32, len: u32, codec: u32) -> Self {
        Self { at, len, codec, state: Self::STORED }
    }

    /// A page of zeros.
    pub const fn zero() -> Self {
        Self { at: 0, len: 0, codec: 0, state: Self::ZERO }
    }

    /// Its bytes in the buffer; `None` if it has none.
    pub fn bytes<'a>(&self, buf: &'a [u8]) -> Option<&'a [u8]> {
        let bytes = buf.get(self.at as usize..)?.get(..self.len as usize);
        bytes.filter(|_| self.state == Self::STORED)
    }
}

impl Extent {
    /// Pages whose bytes stand in source number `source` from `offset` on.
    pub const fn mapped(first_pfn: u64, pages: u64, source: u32, offset: u64) -> Self {
        Self { first_pfn, pages, kind: ExtentKind::MAPPED, source, offset }
    }

    /// Pages that the reader makes.
    pub const fn encoded(first_pfn: u64, pages: u64) -> Self {
        Self { first_pfn, pages, kind: ExtentKind::ENCODED, source: 0, offset: 0 }
    }

    /// Pages whose stored bytes the reader gives.
    pub const fn stored(first_pfn: u64, pages: u64) -> Self {
        Self { first_pfn, pages, kind: ExtentKind::STORED, source: 0, offset: 0 }
    }

    /// RAM that the input left out.
    pub const fn absent(first_pfn: u64, pages: u64) -> Self {
        Self { first_pfn, pages, kind: ExtentKind::ABSENT, source: 0, offset: 0 }
    }

    /// One behind the last PFN (saturating).
    pub const fn end_pfn(&self) -> u64 {
        self.first_pfn.saturating_add(self.pages)
    }
}

impl Run {
    /// One behind the last PFN (saturating).
    pub const fn end_pfn(&self) -> u64 {
        self.first_pfn.saturating_add(self.pages)
    }
}

impl<'a> Block<'a> {
    /// A block without `struct page`s.
    pub fn new(first_pfn: u64, pages: u32, page_shift: u32) -> Self {
        Self { first_pfn, pages, page_shift, struct_pages: [].as_slice().into(), struct_page_size: 0, flags: 0, struct_page_address: 0 }
    }

    /// Adds the block's slice of the mem_map: entries of `struct_page_size` bytes, entry 0 for the first PFN, which stands
    /// at kernel address `address`.
    #[must_use]
    pub fn with_struct_pages(mut self, struct_pages: &'a [u8], struct_page_size: u32, address: u64) -> Self {
        self.struct_pages = struct_pages.into();
        self.struct_page_size = struct_page_size;
        self.struct_page_address = address;
        self
    }

    /// First page frame number.
    pub fn first_pfn(&self) -> u64 {
        self.first_pfn
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.pages as usize
    }

    /// log2 of the page size in bytes.
    pub fn page_shift(&self) -> u32 {
        self.page_shift
    }

    /// The slice of the mem_map for [`crate::linux::PageRules`]; `None` if the kernel model could not find it.
    pub fn mem_map(&self) -> Option<StructPages<'a>> {
        let bytes = self.struct_pages.as_slice();
        let address = Some(self.struct_page_address).filter(|a| *a != 0);
        (!bytes.is_empty()).then_some(StructPages { bytes, first_pfn: self.first_pfn, address })
    }

    /// The `struct page` of each PFN in order; none if the kernel model could not find them.
    pub fn struct_pages(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let size = if self.struct_page_size == 0 { usize::MAX } else { self.struct_page_size as usize };
        self.struct_pages.as_slice().chunks_exact(size)
    }
}

impl<'a> PageBatch<'a> {
    /// Number of pages.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// True for a batch without pages.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Page size in bytes.
    pub fn page_size(&self) -> usize {
        1 << self.page_shift
    }

    /// The page frame numbers, ascending.
    pub fn pfns(&self) -> &'a [u64] {
        self.pfns.as_slice()
    }

    /// The bytes of each page, in the order of [`Self::pfns`].
    pub fn pages(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        self.pages.as_slice().iter().map(|p| p.as_slice())
    }
}

impl Packed<'_> {
    /// Adds the next page's compressed bytes; an empty slice stores the page raw. For encoders that take a batch at once.
    ///
    /// # Errors
    /// All pages of the batch are there already, or the bytes do not fit.
    pub fn push(&mut self, compressed: &[u8]) -> Result<()> {
        let full = || Error::new(crate::ErrorKind::Other, "more compressed bytes than there is room for");
        let (pages, bytes) = (self.pushed as usize, self.used);
        let room = self.bytes.as_mut_slice().get_mut(bytes..bytes.saturating_add(compressed.len())).ok_or_else(full)?;
        let len = self.lens.as_mut_slice().get_mut(pages).ok_or_else(full)?;
        room.copy_from_slice(compressed);
        *len = compressed.len() as u32;
        (self.pushed, self.used) = (self.pushed + 1, bytes + compressed.len());
        Ok(())
    }

    /// Compresses a batch page by page: `encode(page, room)` writes into `room` and returns the length, or `None` if it
    /// does not fit. `room` is one byte shorter than the page, so what does not shrink is stored raw, as every reader of
    /// kdump files demands.
    pub fn each(&mut self, batch: &PageBatch<'_>, mut encode: impl FnMut(&[u8], &mut [u8]) -> Option<usize>) {
        let room_each = batch.page_size() - 1;
        let mut room = self.bytes.as_mut_slice();
        for (page, len) in batch.pages().zip(self.lens.as_mut_slice()) {
            let limit = room_each.min(room.len());
            let Some(out) = room.get_mut(..limit) else { break };
            let n = encode(page, out).filter(|&n| n <= limit).unwrap_or(0);
            *len = n as u32;
            room = std::mem::take(&mut room).get_mut(n..).unwrap_or_default();
        }
    }
}

impl<'a> PackedPage<'a> {
    const STORED: u32 = 0;
    const ZERO: u32 = 1;
    const MISSING: u32 = 2;

    /// A page with bytes: compressed with this codec bit, or raw with codec 0.
    pub fn stored(data: &'a [u8], codec: u32) -> Self {
        Self { data: data.into(), codec, state: Self::STORED }
    }

    /// A page of zero bytes; the writer has one copy for all.
    pub fn zero() -> Self {
        Self { data: [].as_slice().into(), codec: 0, state: Self::ZERO }
    }

    /// A page that is not in the dump after all: it could not be read, or a filter excluded it by its bytes.
    pub fn missing() -> Self {
        Self { data: [].as_slice().into(), codec: 0, state: Self::MISSING }
    }

    /// What to write.
    pub fn content(&self) -> PageContent<'a> {
        match self.state {
            Self::STORED => PageContent::Stored { data: self.data.as_slice(), codec: self.codec },
            Self::ZERO => PageContent::Zero,
            _ => PageContent::Missing,
        }
    }
}

/// What a [`PackedPage`] holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageContent<'a> {
    /// Bytes to store, with the codec bit they are compressed with (0 = raw, a whole page).
    Stored {
        /// the bytes
        data: &'a [u8],
        /// the codec bit
        codec: u32,
    },
    /// Only zero bytes.
    Zero,
    /// Could not be read or was excluded by its bytes; the dump must not claim to have it.
    Missing,
}

impl<'a> PackedBatch<'a> {
    /// A batch; `pfns` and `pages` have the same length.
    pub fn new(pfns: &'a [u64], pages: &'a [PackedPage<'a>]) -> Self {
        Self { pfns: pfns.into(), pages: pages.into(), flags: 0 }
    }

    /// Page frame number and content of each page, ascending.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u64, PageContent<'a>)> + use<'a> {
        self.pfns.as_slice().iter().copied().zip(self.pages.as_slice().iter().map(PackedPage::content))
    }
}

/// Owns what a [`PageBatch`] borrows: made once, filled for each batch, so that no allocation happens per page.
#[derive(Debug, Default)]
pub struct PageList<'a> {
    pfns: Vec<u64>,
    pages: Vec<ByteSlice<'a>>,
}

impl<'a> PageList<'a> {
    /// An empty list with room for `pages` pages.
    pub fn with_capacity(pages: usize) -> Self {
        Self { pfns: Vec::with_capacity(pages), pages: Vec::with_capacity(pages) }
    }

    /// Adds a page.
    pub fn push(&mut self, pfn: u64, page: &'a [u8]) {
        self.pfns.push(pfn);
        self.pages.push(page.into());
    }

    /// The batch of what was pushed. All pages must be `1 << page_shift` bytes long.
    ///
    /// # Errors
    /// A page has another length.
    pub fn batch(&self, page_shift: u32) -> Result<PageBatch<'_>> {
        match self.pages.iter().position(|p| p.len() != 1usize << page_shift) {
            None => Ok(PageBatch { pfns: self.pfns.as_slice().into(), pages: self.pages.as_slice().into(), page_shift, flags: 0 }),
            Some(i) => Err(Error::format("a page of the wrong length in a batch").at_pfn(self.pfns.get(i).copied().unwrap_or(0))),
        }
    }
}

/// What a compressor's output is made of: owned by the host's worker, lent for each batch.
#[derive(Debug, Default)]
pub struct PackBuffer {
    bytes: Vec<u8>,
    lens: Vec<u32>,
}

impl PackBuffer {
    /// Makes room for `pages` pages of `page_size` bytes and lends it.
    pub fn lend(&mut self, pages: usize, page_size: usize) -> Packed<'_> {
        let need = pages.saturating_mul(page_size);
        if self.bytes.len() < need {
            self.bytes.resize(need, 0);
        }
        self.lens.clear();
        self.lens.resize(pages, 0);
        Packed { bytes: self.bytes.as_mut_slice().into(), lens: self.lens.as_mut_slice().into(), used: 0, pushed: 0, flags: 0 }
    }

    /// The compressed bytes of each page of the last batch, `None` where the page is to be stored raw.
    ///
    /// A compressor that claims more bytes than it had gets `None` too: its lengths are not trusted.
    pub fn pages(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let mut at = 0usize;
        self.lens.iter().map(move |&len| {
            let start = at;
            at = at.saturating_add(len as usize);
            if len == 0 { None } else { self.bytes.get(start..at) }
        })
    }
}
