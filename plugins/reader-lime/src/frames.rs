//! A compressed range: a stream of the Snappy framing format (Snappy's framing_format.txt).
//!
//! ```text
//! chunk   type u8   0xff stream identifier, 0 compressed, 1 uncompressed, 2 to 0x7f unknown, from 0x80 on to be skipped
//!         length    24 bits, little endian: bytes that follow
//!         data      of types 0 and 1: masked CRC-32C of the bytes of memory, u32; then at most 64 KiB of these
//! ```
//!
//! Chunks stand for themselves, so any can be decoded alone. [`Block::index`] goes through the stream from chunk to chunk
//! without decoding and remembers where each MiB begins; [`Cursor`] goes to the chunks that are asked for.

use std::io::Read;

use coresift_sdk::{Error, Result, Source};
use snap::read::FrameDecoder;

/// Most bytes of memory in a chunk (framing_format.txt, section 4.2).
const CHUNK_MAX: u64 = 1 << 16;
/// Most bytes of a chunk's data: the CRC, and what Snappy can make of 64 KiB (`snap::raw::max_compress_len`).
const BODY_MAX: u64 = 4 + 32 + CHUNK_MAX + CHUNK_MAX / 6;
/// Type and length of a chunk.
const CHUNK_HEAD: usize = 4;
/// The chunk that begins a stream.
pub const STREAM_IDENTIFIER: &[u8; 10] = b"\xff\x06\0\0sNaPpY";
/// Bytes of memory between two entries of the index: it has 16 bytes for each MiB.
const GROUP_BYTES: u64 = 1 << 20;
/// Chunks between two entries of the index; a stream of tiny chunks must not make each page a long walk.
const GROUP_CHUNKS: u32 = 64;
/// Chunks without a byte of memory that may follow each other; no encoder makes any but the first.
const IDLE_MAX: u32 = 64;

/// A chunk as its first bytes tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chunk {
    /// file offset of the next one
    next: u64,
    /// bytes of memory in it
    bytes: u64,
}

/// Reads the first bytes of the chunk at byte `at`; `None` if the file ends in it.
fn chunk(source: &Source, at: u64, file_end: u64) -> Result<Option<Chunk>> {
    // The length of compressed data takes five bytes at most, behind the CRC.
    let mut head = [0; CHUNK_HEAD + 4 + 5];
    let n = source.read_at(at, &mut head)?;
    let [kind, l0, l1, l2, _, _, _, _, data @ ..] = head;
    let len = u64::from(u32::from_le_bytes([l0, l1, l2, 0]));
    let next = at.checked_add(CHUNK_HEAD as u64 + len).filter(|next| n >= CHUNK_HEAD && *next <= file_end);
    let Some(next) = next else { return Ok(None) };
    let bad = |what: String| Error::format(what).at_offset(at);
    let bytes = match kind {
        0xff if head.starts_with(STREAM_IDENTIFIER) => 0,
        0xff => return Err(bad("a Snappy stream identifier that is none".into())),
        0x80.. => 0,
        0 if (5..=BODY_MAX).contains(&len) => {
            let sent = data.get(..usize::try_from(len - 4).map_or(5, |sent| sent.min(5))).unwrap_or_default();
            varint(sent).ok_or_else(|| bad("a Snappy chunk without a length".into()))?
        }
        1 if (4..=4 + CHUNK_MAX).contains(&len) => len - 4,
        0 | 1 => return Err(bad(format!("a Snappy chunk of {len} bytes"))),
        _ => return Err(bad(format!("an unknown kind of Snappy chunk, {kind:#x}"))),
    };
    if bytes > CHUNK_MAX {
        return Err(bad(format!("a Snappy chunk that holds {bytes} bytes of memory")));
    }
    Ok(Some(Chunk { next, bytes }))
}

/// The number in front of Snappy data: seven bits a byte, low ones first (Snappy's format_description.txt).
fn varint(bytes: &[u8]) -> Option<u64> {
    let end = bytes.iter().position(|b| b & 0x80 == 0)?;
    let bits = bytes.iter().take(end + 1).rev().fold(0u64, |bits, b| bits << 7 | u64::from(b & 0x7f));
    Some(bits)
}

/// Where a chunk begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    /// bytes of memory before it
    pos: u64,
    /// file offset
    at: u64,
}

/// A compressed range and where its chunks are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// places of chunks, ascending; the first is the first chunk
    groups: Vec<Place>,
    /// bytes of memory that are there
    pub bytes: u64,
    /// file offset of what follows the chunks
    pub next: u64,
}

/// How far an index came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reached {
    /// all that was to be there is
    Whole,
    /// the file ends before
    Cut,
    /// it makes no sense from a place on; why
    Damaged(String),
}

impl Block {
    /// Goes through the stream at byte `at`, up to `want` bytes of memory.
    ///
    /// # Errors
    /// A read failed at the first chunk.
    pub fn index(source: &Source, at: u64, want: u64, file_end: u64) -> Result<(Self, Reached)> {
        let mut block = Self { groups: vec![Place { pos: 0, at }], bytes: 0, next: at };
        let (mut chunks, mut idle) = (0, 0);
        while block.bytes < want {
            let chunk = match chunk(source, block.next, file_end) {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return Ok((block, Reached::Cut)),
                Err(e) => return Ok((block, Reached::Damaged(e.to_string()))),
            };
            idle = if chunk.bytes == 0 { idle + 1 } else { 0 };
            if idle > IDLE_MAX {
                let why = format!("chunks without memory (at byte {})", block.next);
                return Ok((block, Reached::Damaged(why)));
            }
            let last = block.groups.last().map_or(0, |g| g.pos);
            if chunk.bytes > 0 && (block.bytes - last >= GROUP_BYTES || chunks >= GROUP_CHUNKS) {
                block.groups.push(Place { pos: block.bytes, at: block.next });
                chunks = 0;
            }
            chunks += 1;
            block.bytes += chunk.bytes;
            block.next = chunk.next;
        }
        block.bytes = want;
        block.groups.shrink_to_fit();
        Ok((block, Reached::Whole))
    }
}

/// Feeds the decoder one chunk at a time.
#[derive(Debug, Default)]
struct Feed {
    bytes: Vec<u8>,
    at: usize,
}

impl Read for Feed {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = self.bytes.get(self.at..).unwrap_or_default().read(out)?;
        self.at += n;
        Ok(n)
    }
}

/// Decodes chunks, and keeps the last: pages come in order, and several are in one chunk.
pub struct Cursor {
    decoder: FrameDecoder<Feed>,
    /// number of the block that `bytes` are of; `None` if nothing was decoded yet
    block: Option<usize>,
    /// bytes of the block's memory before `bytes`
    pos: u64,
    bytes: Vec<u8>,
    /// file offset of the chunk behind
    next: u64,
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cursor({:?} at {:#x})", self.block, self.pos)
    }
}

impl Default for Cursor {
    fn default() -> Self {
        Self { decoder: decoder(), block: None, pos: 0, bytes: Vec::new(), next: 0 }
    }
}

/// A decoder that has seen the beginning of a stream.
fn decoder() -> FrameDecoder<Feed> {
    FrameDecoder::new(Feed { bytes: STREAM_IDENTIFIER.to_vec(), at: 0 })
}

impl Cursor {
    /// True if byte `pos` of block `number` is in the chunk decoded last.
    pub fn holds(&self, number: usize, pos: u64) -> bool {
        self.block == Some(number) && (self.pos..self.pos.saturating_add(self.bytes.len() as u64)).contains(&pos)
    }

    /// Reads memory from byte `pos` of block `number` on.
    ///
    /// # Errors
    /// A chunk cannot be read, or is damaged.
    pub fn read(&mut self, source: &Source, number: usize, block: &Block, pos: u64, out: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while let Some(room) = out.get_mut(done..).filter(|room| !room.is_empty()) {
            let from = pos.saturating_add(done as u64);
            if !self.holds(number, from) {
                self.go_to(source, number, block, from)?;
            }
            let bytes = usize::try_from(from - self.pos).ok().and_then(|at| self.bytes.get(at..)).unwrap_or_default();
            let n = bytes.len().min(room.len());
            if let (Some(to), Some(from)) = (room.get_mut(..n), bytes.get(..n)) {
                to.copy_from_slice(from);
            }
            done += n;
        }
        Ok(())
    }

    /// Decodes the chunk with byte `pos`: walks on from the last one if that is nearer than the place in the index.
    fn go_to(&mut self, source: &Source, number: usize, block: &Block, pos: u64) -> Result<()> {
        let group = block.groups.get(block.groups.partition_point(|g| g.pos <= pos).saturating_sub(1)).copied();
        let Some(group) = group else { return Err(Error::format("a compressed range without chunks")) };
        let behind = Place { pos: self.pos.saturating_add(self.bytes.len() as u64), at: self.next };
        let nearer = self.block == Some(number) && (group.pos..=pos).contains(&behind.pos);
        let mut place = if nearer { behind } else { group };
        while place.at < block.next {
            let cut = || Error::format("the file ends within a Snappy chunk").at_offset(place.at);
            let chunk = chunk(source, place.at, block.next)?.ok_or_else(cut)?;
            let end = place.pos.saturating_add(chunk.bytes);
            if pos < end {
                self.block = None;
                self.decode(source, place.at, chunk)?;
                (self.block, self.pos, self.next) = (Some(number), place.pos, chunk.next);
                return Ok(());
            }
            place = Place { pos: end, at: chunk.next };
        }
        Err(Error::format(format!("{}: a compressed range ends too early", source.name())).at_offset(place.at))
    }

    fn decode(&mut self, source: &Source, at: u64, chunk: Chunk) -> Result<()> {
        let bad = |what: String| Error::format(format!("{}: {what}", source.name())).at_offset(at);
        let stored = source.read_vec(at, usize::try_from(chunk.next - at).map_or(0, |len| len.min(CHUNK_HEAD + BODY_MAX as usize)))?;
        let feed = self.decoder.get_mut();
        // At first the stream identifier is still to be read.
        feed.bytes.drain(..feed.at);
        feed.at = 0;
        feed.bytes.extend_from_slice(&stored);
        self.bytes.resize(chunk.bytes as usize, 0);
        if let Err(e) = self.decoder.read_exact(&mut self.bytes) {
            // What is left in it is of no use to the next chunk.
            self.decoder = decoder();
            return Err(bad(format!("a damaged Snappy chunk: {e}")));
        }
        Ok(())
    }
}
