//! An image being written.

use coresift_sdk::{End, Error, ErrorKind, Host, Level, PackedBatch, PageContent, Plan, Result, Sink};

/// Zeros that are written at once, bytes.
const ZEROS: usize = 1 << 20;

/// Between `begin` and `finish`.
#[derive(Debug)]
pub struct Image {
    page_shift: u32,
    /// physical address of the file's first byte; a multiple of the page size
    base: u64,
    sparse: bool,
    /// length of the whole file
    len: u64,
    /// offset behind the last page that came: all before it is as it stays
    end: u64,
    /// what is behind was perhaps written up to here, by a batch that failed: no holes before it
    tried: u64,
    /// pages that lie below `base`
    below: u64,
    zeros: Vec<u8>,
}

impl Image {
    /// Checks that the image can be written, and writes nothing: an empty file is an image without a page.
    pub fn begin(plan: &Plan<'_>, base: u64, sparse: bool, sink: &dyn Sink) -> Result<Self> {
        if !sink.positioned() {
            let message = "a raw image cannot be written as a stream: its pages stand at their addresses";
            return Err(Error::unsupported(message).hint("write it to a file"));
        }
        let page_shift = plan.machine.page_shift;
        if base.trailing_zeros() < page_shift {
            let message = format!("key `base`: {base:#x} is no multiple of the page size {:#x}", plan.machine.page_size());
            return Err(Error::new(ErrorKind::Config, message).hint("give the address of the first page"));
        }
        let end_pfn = plan.end_pfn.min(plan.machine.max_pfn);
        let end = end_pfn.checked_mul(plan.machine.page_size() as u64).filter(|end| i64::try_from(*end).is_ok());
        let Some(end) = end else {
            let message = format!("memory reaches up to PFN {end_pfn:#x}, and no file is so long");
            return Err(Error::unsupported(message).hint("write another format, e.g. --set output.writer=lime"));
        };
        if end <= base {
            let message = format!("key `base`: {base:#x} is behind the end of memory, {end:#x}");
            return Err(Error::new(ErrorKind::Config, message).hint("give the address where the memory that you want begins"));
        }
        let zeros = vec![0; ZEROS.max(plan.machine.page_size())];
        Ok(Self { page_shift, base, sparse, len: end - base, end: 0, tried: 0, below: 0, zeros })
    }

    /// Writes a batch. If it fails, it counts as not written and may come again in smaller pieces.
    pub fn write(&mut self, batch: &PackedBatch<'_>, sink: &mut dyn Sink) -> Result<()> {
        let page_size = 1u64 << self.page_shift;
        let (mut end, mut below) = (self.end, 0);
        let tried = self.tried;
        // Pages one behind the other go out together.
        let mut out = Run { start: end, pieces: Vec::with_capacity(batch.iter().len()) };
        for (pfn, content) in batch.iter() {
            let paddr = pfn.checked_mul(page_size).ok_or_else(|| Error::format("beyond 64 bits of address").at_pfn(pfn))?;
            let Some(at) = paddr.checked_sub(self.base) else {
                below += u64::from(content != PageContent::Missing);
                continue;
            };
            if at < end || at >= self.len {
                return Err(Error::format("pages out of order, or behind the end of memory").at_pfn(pfn));
            }
            let data = match content {
                PageContent::Stored { data, codec: 0 } if data.len() as u64 == page_size => data,
                PageContent::Stored { data, codec } => {
                    return Err(Error::format(format!("a page of codec {codec:#x} with {} bytes", data.len())).at_pfn(pfn));
                }
                // Zeros, like all between the pages.
                PageContent::Zero | PageContent::Missing => continue,
            };
            self.tried = self.tried.max(at + page_size);
            if at > end {
                out.flush(sink)?;
                self.fill(end, at, tried, sink)?;
                out.start = at;
            }
            out.pieces.push(data);
            end = at + page_size;
        }
        out.flush(sink)?;
        self.end = end;
        self.below += below;
        Ok(())
    }

    /// Gives the file its length, if all of it is there.
    pub fn finish(&self, end: &End, host: &Host, sink: &mut dyn Sink) -> Result<()> {
        if self.below > 0 {
            let message = format!("{} pages below the base address {:#x} are not in the raw image", self.below, self.base);
            host.log(Level::Warning, &message);
        }
        if end.incomplete {
            // What a batch left that failed is no memory of this machine.
            return self.fill(self.end, self.tried.max(self.end), self.tried, sink);
        }
        self.fill(self.end, self.len, self.tried, sink)?;
        let last = self.len - 1;
        if self.sparse && self.end <= last && self.tried <= last {
            sink.write_at(last, &[&[0]])?;
        }
        Ok(())
    }

    /// Makes zeros of what is between two pages: a hole of the file, where nothing was ever written.
    fn fill(&self, from: u64, to: u64, tried: u64, sink: &mut dyn Sink) -> Result<()> {
        let to = if self.sparse { to.min(tried) } else { to };
        let mut at = from;
        while at < to {
            let n = (to - at).min(self.zeros.len() as u64);
            sink.write_at(at, &[self.zeros.get(..n as usize).unwrap_or_default()])?;
            at += n;
        }
        Ok(())
    }
}

/// Pages one behind the other.
struct Run<'a> {
    start: u64,
    pieces: Vec<&'a [u8]>,
}

impl Run<'_> {
    fn flush(&mut self, sink: &mut dyn Sink) -> Result<()> {
        if !self.pieces.is_empty() {
            sink.write_at(self.start, &self.pieces)?;
            self.pieces.clear();
        }
        Ok(())
    }
}
