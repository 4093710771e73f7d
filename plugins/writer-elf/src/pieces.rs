//! Puts pages that stand one behind the other into one write.

use coresift_sdk::{Result, Sink};

/// Pages to be written, not copied.
pub struct Pieces<'a, 'd> {
    sink: &'a mut dyn Sink,
    /// end of all bytes that any write so far tried to write
    tried: &'a mut u64,
    /// offset of the first piece, and behind the last
    at: u64,
    end: u64,
    pieces: Vec<&'d [u8]>,
}

impl<'a, 'd> Pieces<'a, 'd> {
    /// None yet; `capacity` pages are to come, from `at` on.
    pub fn new(sink: &'a mut dyn Sink, tried: &'a mut u64, at: u64, capacity: usize) -> Self {
        Self { sink, tried, at, end: at, pieces: Vec::with_capacity(capacity) }
    }

    /// True if a page at `at` reads as zeros without being written: the output can have holes, and nobody ever wrote there
    /// or behind. A write that failed may have arrived in part, and its pages come again.
    pub fn may_skip(&self, at: u64) -> bool {
        self.sink.positioned() && at >= *self.tried
    }

    /// Adds a page at `at`. In a stream `zeros`, a page, fill up to there.
    ///
    /// # Errors
    /// The sink's: pages before could not be written.
    pub fn push(&mut self, at: u64, page: &'d [u8], zeros: &'d [u8]) -> Result<()> {
        if at != self.end && self.sink.positioned() {
            self.flush()?;
            (self.at, self.end) = (at, at);
        }
        while self.end < at && !zeros.is_empty() {
            self.pieces.push(zeros);
            self.end += zeros.len() as u64;
        }
        self.pieces.push(page);
        self.end += page.len() as u64;
        Ok(())
    }

    /// Writes what was added.
    ///
    /// # Errors
    /// The sink's.
    pub fn flush(&mut self) -> Result<()> {
        if self.pieces.is_empty() {
            return Ok(());
        }
        *self.tried = self.end.max(*self.tried);
        self.sink.write_at(self.at, &self.pieces)?;
        self.pieces.clear();
        self.at = self.end;
        Ok(())
    }

    /// Offset behind the last page.
    pub fn end(&self) -> u64 {
        self.end
    }
}
