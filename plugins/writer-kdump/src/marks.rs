//! Marks pages in the bitmap of dumped pages, as they are written.

use coresift_sdk::{Result, Sink};

/// Empty bytes between two pages that are written rather than skipped: a write costs more than these.
const GAP_MAX: u64 = 4096;

/// What was marked so far. PFNs ascend, so that only the last byte is shared with what comes.
#[derive(Default)]
pub struct Marks {
    /// number of the last byte in the bitmap, and its bits
    last: (u64, u8),
    /// bytes of the bitmap that were ever tried to be written
    tried: u64,
    /// bits of a batch, kept to be used again
    bits: Vec<u8>,
}

impl Marks {
    /// Sets the bits of these pages in the bitmap at `at`.
    ///
    /// # Errors
    /// The sink's; the pages then count as not marked and may come again.
    pub fn write(&mut self, pfns: &[u64], at: u64, sink: &mut dyn Sink) -> Result<()> {
        let (mut first, last) = self.last;
        self.bits.clear();
        self.bits.push(last);
        for pfn in pfns {
            let (byte, bit) = (pfn / 8, 1u8 << (pfn % 8));
            if byte - first > self.bits.len() as u64 + GAP_MAX {
                sink.write_at(at + first, &[&self.bits])?;
                first = byte;
                self.bits.clear();
            }
            let index = (byte - first) as usize;
            self.bits.resize(self.bits.len().max(index + 1), 0);
            if let Some(byte) = self.bits.get_mut(index) {
                *byte |= bit;
            }
        }
        if !pfns.is_empty() {
            let last = (first + self.bits.len() as u64 - 1, self.bits.last().copied().unwrap_or(0));
            // A write that failed may have arrived in part: its bits, of pages that are not there, are taken away again.
            let stale = self.tried.saturating_sub(last.0 + 1).min(GAP_MAX) as usize;
            self.tried = self.tried.max(last.0 + 1);
            self.bits.resize(self.bits.len() + stale, 0);
            sink.write_at(at + first, &[&self.bits])?;
            self.last = last;
        }
        Ok(())
    }
}
