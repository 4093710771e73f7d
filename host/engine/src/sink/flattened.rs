//! A sink that turns positioned writes into a flattened stream, which goes through a pipe.
//!
//! Format: see [`crate::source::flattened`]. crash sorts all records of such a file before it reads, and cannot tell which
//! of two records for one offset is the later one: so records are long, and a writer that knows that it writes a stream
//! ([`Sink::positioned`] is false) writes no byte twice.

use std::path::Path;

use coresift_sdk::{Error as PluginError, Result as PluginResult, Sink};

use super::{Output, total};
use crate::error::{Error, Result};
use crate::source::flattened::{END, HEADER, SIGNATURE};

/// Bytes at which a record is written; what comes in larger pieces is written at once.
const RECORD_MIN: usize = 1 << 20;
/// Stretches that grow at the same time: a writer adds to the pages' data and to the table that points to them by turns.
const OPEN_MAX: usize = 2;

/// Bytes of the stream after which what still grows is written, too: a stream that is cut has lost no more than the pages of
/// so many.
const AGE_MAX: u64 = 16 << 20;

/// A stretch of the file that still grows.
#[derive(Debug, Default)]
struct Stretch {
    offset: u64,
    bytes: Vec<u8>,
    /// where the stream was when the first of the bytes came
    since: u64,
}

/// The stream.
pub struct Flattened {
    inner: Box<dyn Output>,
    /// bytes written to the stream
    at: u64,
    /// the one grown last comes last
    open: Vec<Stretch>,
    /// a write failed: the stream has a record that is not whole, and nothing may follow it
    broken: bool,
}

impl Flattened {
    /// A stream into another output.
    pub fn new(inner: Box<dyn Output>) -> Self {
        Self { inner, at: 0, open: Vec::new(), broken: false }
    }

    fn record(&mut self, offset: u64, len: u64, pieces: &[&[u8]]) -> PluginResult<()> {
        if self.broken {
            return Err(PluginError::new(coresift_sdk::ErrorKind::Io, "the stream is broken"));
        }
        if self.at == 0 {
            let mut header = vec![0u8; HEADER as usize];
            // Type and version are 1 (`TYPE_FLAT_HEADER`, `VERSION_FLAT_HEADER`).
            let fields = SIGNATURE.iter().copied().chain(1u64.to_be_bytes()).chain(1u64.to_be_bytes());
            header.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
            self.put(&[&header])?;
        }
        let (offset, len) = (offset.to_be_bytes(), len.to_be_bytes());
        let mut all: Vec<&[u8]> = vec![&offset, &len];
        all.extend(pieces);
        self.put(&all)
    }

    fn put(&mut self, pieces: &[&[u8]]) -> PluginResult<()> {
        let written = self.inner.write_at(self.at, pieces);
        self.broken |= written.is_err();
        self.at += total(pieces);
        written
    }

    fn flush(&mut self, stretch: &Stretch) -> PluginResult<()> {
        if stretch.bytes.is_empty() { Ok(()) } else { self.record(stretch.offset, stretch.bytes.len() as u64, &[&stretch.bytes]) }
    }

    fn flush_all(&mut self) -> PluginResult<()> {
        let mut open = std::mem::take(&mut self.open);
        open.sort_by_key(|s| s.offset);
        open.iter().try_for_each(|stretch| self.flush(stretch))
    }
}

impl Sink for Flattened {
    fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> PluginResult<()> {
        let len = total(pieces);
        if len == 0 {
            return Ok(());
        }
        let grows = |s: &Stretch| s.offset + s.bytes.len() as u64 == offset;
        let mut stretch = match self.open.iter().position(grows) {
            Some(i) => self.open.remove(i),
            None => Stretch { offset, ..Stretch::default() },
        };
        if stretch.bytes.is_empty() && len >= RECORD_MIN as u64 {
            self.record(offset, len, pieces)?;
            // The next write goes on behind it: the stretch stays open, empty.
            stretch.offset = offset + len;
        } else {
            if stretch.bytes.is_empty() {
                stretch.since = self.at;
            }
            pieces.iter().for_each(|piece| stretch.bytes.extend_from_slice(piece));
            if stretch.bytes.len() >= RECORD_MIN {
                self.flush(&stretch)?;
                stretch.offset += stretch.bytes.len() as u64;
                stretch.bytes.clear();
            }
        }
        self.open.push(stretch);
        let old = |s: &Stretch, at: u64| !s.bytes.is_empty() && at - s.since > AGE_MAX;
        while self.open.len() > OPEN_MAX || self.open.first().is_some_and(|s| old(s, self.at)) {
            let oldest = self.open.remove(0);
            self.flush(&oldest)?;
        }
        Ok(())
    }

    fn reserve(&mut self, _: u64) -> PluginResult<()> {
        // Gaps of a stream are zeros, and what lies behind its last record does not exist: nothing can be reserved.
        Ok(())
    }

    fn positioned(&self) -> bool {
        false
    }
}

impl Output for Flattened {
    fn written(&self) -> u64 {
        self.at
    }

    fn limit_reached(&self) -> bool {
        self.inner.limit_reached()
    }

    fn finish(&mut self) -> Result<()> {
        let ended = self.flush_all().and_then(|()| self.record(END, END, &[]));
        ended.map_err(|e| Error::failed(e.message))?;
        self.inner.finish()
    }

    fn place(&self) -> Option<&Path> {
        self.inner.place()
    }

    fn abandon(&mut self) {
        // Without an end mark, since it has not ended; but with all that came so far.
        let _ = self.flush_all();
        self.inner.abandon();
    }

    fn discard(&self) {
        self.inner.discard();
    }
}
