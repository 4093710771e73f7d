//! Turns a flattened stream back into the file that it describes.

use std::io::Read;
use std::path::Path;

use coresift_sdk::Sink;
use serde::Serialize;

use crate::error::{Error, Result, plain};
use crate::progress::{Phase, Progress};
use crate::sink::{FileSink, Output};
use crate::source::flattened::{END, HEADER, RECORD, is_flattened};

/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;
/// Offsets beyond this are damage: the largest file of Linux has 2^63 - 1 bytes.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// What was done.
#[derive(Debug, Clone, Serialize)]
pub struct Restored {
    /// version of this document's schema
    pub schema: u32,
    /// records of the stream
    pub records: u64,
    /// bytes of data in them
    pub bytes: u64,
    /// why the stream is not whole; `None` if it is
    pub incomplete_because: Option<String>,
}

/// Copies the records of a stream to where they belong. What comes is written as it comes, so a stream that ends early
/// leaves all that it had.
///
/// # Errors
/// It is no flattened stream, or the output cannot be written.
pub fn restore(from: &mut dyn Read, name: &str, output: &Path, force: bool, progress: &dyn Progress) -> Result<Restored> {
    let mut header = vec![0u8; HEADER as usize];
    let failed = |e: &std::io::Error| Error::failed(format!("{name}: cannot read: {}", plain(e)));
    let got = fill(from, &mut header).map_err(|e| failed(&e))?;
    if !is_flattened(header.get(..got).unwrap_or_default()) {
        return Err(Error::failed(format!("{name}: not a flattened stream: its first bytes are not `makedumpfile`"))
            .hint("a dump that is no stream needs no restoring: `coresift info` says what it is"));
    }
    let mut file = FileSink::create(output, force)?;
    progress.phase(Phase::Copy, 0);
    let mut done = Restored { schema: 1, records: 0, bytes: 0, incomplete_because: None };
    let copied = records(from, &mut file, &mut done);
    done.incomplete_because = match copied {
        Ok(()) => None,
        Err(Stop::Input(why)) => Some(why),
        Err(Stop::Output(e)) => {
            let hint = format!("what was written: {}", file.place().unwrap_or(output).display());
            return Err(Error::failed(e.message).hint(hint));
        }
    };
    progress.phase(Phase::Sync, 0);
    file.finish()?;
    Ok(done)
}

enum Stop {
    Input(String),
    Output(coresift_sdk::Error),
}

fn records(from: &mut dyn Read, file: &mut FileSink, done: &mut Restored) -> Result<(), Stop> {
    let mut piece = vec![0u8; PIECE];
    let mut at = HEADER;
    let broken = |e: std::io::Error| Stop::Input(format!("it cannot be read on: {}", plain(&e)));
    loop {
        let mut head = [0u8; RECORD as usize];
        let got = fill(from, &mut head).map_err(broken)?;
        if got < head.len() {
            return Err(Stop::Input(format!("the stream ends at offset {at:#x} without an end mark")));
        }
        let word = |half: &[u8]| half.first_chunk().map_or(0, |b| u64::from_be_bytes(*b));
        let (mut offset, mut len) = (word(&head), word(head.get(8..).unwrap_or_default()));
        if offset == END && len == END {
            return Ok(());
        }
        if len > OFFSET_MAX || offset.checked_add(len).is_none_or(|end| end > OFFSET_MAX) {
            return Err(Stop::Input(format!("the record at offset {at:#x} of the stream makes no sense")));
        }
        at += RECORD + len;
        done.records += 1;
        while len > 0 {
            let want = usize::try_from(len).unwrap_or(PIECE).min(PIECE);
            let room = piece.get_mut(..want).unwrap_or_default();
            let got = fill(from, room).map_err(broken)?;
            file.write_at(offset, &[room.get(..got).unwrap_or_default()]).map_err(Stop::Output)?;
            done.bytes += got as u64;
            if got < want {
                return Err(Stop::Input(format!("the stream ends {} bytes before its last record does", len - got as u64)));
            }
            (offset, len) = (offset + got as u64, len - got as u64);
        }
    }
}

/// Reads until the buffer is full or the input ends.
fn fill(from: &mut dyn Read, buf: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|r| !r.is_empty()) {
        match from.read(rest) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}
