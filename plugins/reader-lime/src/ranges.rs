//! All ranges of a file, header by header.
//!
//! Only the headers say where the next one is, so a damaged one ends the way, except before a compressed range: its
//! header and the stream identifier behind it are 26 bytes that nothing else has, and can be searched for.

use coresift_sdk::{Error, Result, Source};

use crate::frames::{Block, Reached, STREAM_IDENTIFIER};
use crate::header::{HEADER, Head, Header};

/// Most ranges that are believed: a machine of 4 TiB in AVML's blocks of 16 MiB has 262,144. Bounds memory: each takes
/// some 100 bytes here.
const RANGES_MAX: usize = 1 << 23;

/// Bytes behind a compressed range: the length of its stream, u64.
const TRAILER: u64 = 8;

/// Bytes read at once when searching a header.
const SEARCH_STEP: usize = 1 << 20;

/// Damaged places after which the rest of the file is searched; each search may read all of it.
const SEARCHES_MAX: u32 = 16;

/// Where the bytes of a range are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// at this file offset, as they are
    Raw(u64),
    /// in the block of this number, from this byte of its memory on
    Block(usize, u64),
}

/// Memory that the file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// physical address of the first byte
    pub start: u64,
    /// one behind that of the last
    pub end: u64,
    /// where the bytes are
    pub data: Data,
}

/// What a file holds.
#[derive(Debug, Default)]
pub struct Ranges {
    /// in file order
    pub list: Vec<Range>,
    /// compressed ranges
    pub blocks: Vec<Block>,
    /// something is missing at the end, or was damaged
    pub incomplete: bool,
}

impl Ranges {
    /// Reads all headers. `page_shift`: a page that the end of the file cuts is left out whole.
    ///
    /// # Errors
    /// There is no header at the beginning, or the file cannot be read.
    pub fn read(source: &Source, page_shift: u32, warnings: &mut Vec<String>) -> Result<Self> {
        let file_end = source.size().map_or_else(|| end_by_reading(source), Ok)?;
        let mut walk = Walk { source, page_shift, file_end, ranges: Self::default(), searches: 0, missing: 0, warnings };
        walk.run()?;
        let (missing, mut ranges) = (walk.missing, walk.ranges);
        if missing > 0 {
            warnings.push(format!("the file is cut: {missing} bytes of its last range are missing"));
        }
        ranges.incomplete |= missing > 0;
        Ok(ranges)
    }
}

/// The length of an input that does not tell it: where a byte can be read, all before it can.
fn end_by_reading(source: &Source) -> Result<u64> {
    let (mut there, mut gone) = (0, i64::MAX.cast_unsigned());
    while there < gone {
        let middle = there + (gone - there) / 2;
        match source.read_at(middle, &mut [0]) {
            Ok(1..) => there = middle + 1,
            Ok(0) => gone = middle,
            Err(e) if middle == 0 => return Err(e),
            Err(_) => gone = middle,
        }
    }
    Ok(there)
}

struct Walk<'a> {
    source: &'a Source,
    page_shift: u32,
    file_end: u64,
    ranges: Ranges,
    searches: u32,
    /// bytes that the last range claims to have behind the end of the file
    missing: u64,
    warnings: &'a mut Vec<String>,
}

impl Walk<'_> {
    fn run(&mut self) -> Result<()> {
        let mut at = 0;
        loop {
            let header = match Head::read(self.source, at) {
                Ok(Head::Range(header)) => header,
                Ok(Head::End) if at > 0 => return Ok(()),
                Ok(Head::Cut) if at > 0 => {
                    self.damaged("the file is cut in the header of a range", at);
                    return Ok(());
                }
                Ok(Head::Other(why)) if at > 0 => match self.lost(&why, at) {
                    Some(next) => {
                        at = next;
                        continue;
                    }
                    None => return Ok(()),
                },
                Ok(Head::End) => return Err(self.refused("it is empty")),
                Ok(Head::Cut) => return Err(self.refused("it is too short for a header")),
                Ok(Head::Other(why)) => return Err(self.refused(&why)),
                Err(e) if at > 0 => {
                    self.damaged(&format!("the header of a range cannot be read ({})", e.message), at);
                    return Ok(());
                }
                Err(e) => return Err(e),
            };
            if self.ranges.list.len() >= RANGES_MAX {
                self.damaged(&format!("more than {RANGES_MAX} ranges: the rest is left out"), at);
                return Ok(());
            }
            let data_at = at.saturating_add(HEADER as u64);
            let next = if header.compressed { self.compressed(&header, data_at)? } else { self.raw(&header, data_at) };
            match next {
                Some(next) => at = next,
                None => return Ok(()),
            }
        }
    }

    /// Takes a range that is stored as it is; returns where the next header is.
    fn raw(&mut self, header: &Header, data_at: u64) -> Option<u64> {
        let there = self.file_end.saturating_sub(data_at).min(header.len());
        self.take(header, there, Data::Raw(data_at));
        (there == header.len()).then(|| data_at.saturating_add(there))
    }

    /// Takes a compressed range; returns where the next header is.
    fn compressed(&mut self, header: &Header, data_at: u64) -> Result<Option<u64>> {
        let (block, reached) = Block::index(self.source, data_at, header.len(), self.file_end)?;
        let (there, end) = (block.bytes, block.next);
        self.take(header, there, Data::Block(self.ranges.blocks.len(), 0));
        self.ranges.blocks.push(block);
        Ok(match reached {
            Reached::Whole => {
                let mut trailer = [0; TRAILER as usize];
                let n = self.source.read_at(end, &mut trailer).unwrap_or(0);
                if n == trailer.len() && u64::from_le_bytes(trailer) != end - data_at {
                    self.damaged("the length behind a compressed range is not that of the range", end);
                }
                if n < trailer.len() {
                    self.damaged("the file is cut behind the last range", end);
                }
                (n == trailer.len()).then(|| end.saturating_add(TRAILER))
            }
            Reached::Cut => None,
            Reached::Damaged(why) => {
                // The rest is not missing at the end of the file: `take` took it for that.
                self.missing = 0;
                self.lost(&format!("a damaged range, {} of its {} bytes are there: {why}", there, header.len()), end)
            }
        })
    }

    /// Notes the first `there` bytes of a range. All pages but a last one that is cut are whole, or have edges that the
    /// header wants.
    fn take(&mut self, header: &Header, there: u64, data: Data) {
        let mut end = header.start + there;
        if there < header.len() {
            self.missing = header.len() - there;
            end = (end >> self.page_shift << self.page_shift).max(header.start);
        }
        if header.start < end {
            self.ranges.list.push(Range { start: header.start, end, data });
        }
    }

    fn damaged(&mut self, what: &str, at: u64) {
        self.ranges.incomplete = true;
        self.warnings.push(format!("{what} (at byte {at})"));
    }

    /// Deals with what is no header, where one should be: returns where the next one is after all.
    fn lost(&mut self, why: &str, at: u64) -> Option<u64> {
        self.searches += 1;
        let next = if self.searches <= SEARCHES_MAX { self.search(at.saturating_add(1)) } else { None };
        let skipped = next.unwrap_or(self.file_end).saturating_sub(at);
        let rest = if next.is_some() { "up to the next range" } else { "to the end of the file" };
        self.damaged(&format!("{why}; {skipped} bytes are left out, {rest}"), at);
        next
    }

    /// The next header of a compressed range.
    fn search(&self, from: u64) -> Option<u64> {
        // Only a file that has compressed ranges is searched: memory has headers in it where it has such files.
        if self.ranges.blocks.is_empty() {
            return None;
        }
        let mut buf = vec![0; SEARCH_STEP];
        let mut at = from;
        while at < self.file_end {
            let n = self.source.read_at(at, &mut buf).ok()?;
            let bytes = buf.get(..n)?;
            let signs = bytes.windows(STREAM_IDENTIFIER.len()).enumerate().filter(|(_, w)| w == STREAM_IDENTIFIER);
            for (i, _) in signs {
                let header = (at + i as u64).checked_sub(HEADER as u64).filter(|header| *header >= from);
                let found = header.filter(|h| matches!(Head::read(self.source, *h), Ok(Head::Range(r)) if r.compressed));
                if found.is_some() {
                    return found;
                }
            }
            // A sign may lie across two pieces.
            let step = n.saturating_sub(STREAM_IDENTIFIER.len() - 1);
            if step == 0 || n < buf.len() {
                return None;
            }
            at += step as u64;
        }
        None
    }

    fn refused(&self, why: &str) -> Error {
        Error::format(format!("{}: no LiME or AVML image: {why}", self.source.name()))
            .at_offset(0)
            .hint("LiME's formats `raw` and `padded` have no headers: read them with --set input.reader=raw")
    }
}
