//! A small reader of kdump-compressed headers, written from the format, for tests that look at a file's structures.
//!
//! Source of the offsets: struct disk_dump_header and struct kdump_sub_header in crash's diskdump.h; both byte orders, and
//! the header of 64-bit and of 32-bit machines, which differ by the size of struct timeval.

use std::path::Path;

/// The parts of a file.
#[derive(Debug)]
pub struct Kdump {
    /// the whole file
    pub bytes: Vec<u8>,
    /// page size
    pub block: usize,
    /// codec and state bits
    pub status: u32,
    /// offset of the second bitmap
    pub dumped_at: usize,
    /// length of one bitmap in bytes
    pub bitmap_len: usize,
    /// offset of the page descriptors
    pub descriptors_at: usize,
}

/// Status bit of a dump that is not whole.
pub const INCOMPLETE: u32 = 8;

fn number(bytes: &[u8], at: usize, big_endian: bool) -> usize {
    let raw = bytes[at..at + 4].try_into().expect("4 bytes");
    (if big_endian { u32::from_be_bytes(raw) } else { u32::from_le_bytes(raw) }) as usize
}

impl Kdump {
    /// Reads a file; `None` if it has no kdump signature.
    pub fn open(path: &Path) -> Option<Self> {
        let bytes = std::fs::read(path).expect("a dump");
        if bytes.get(..8) != Some(b"KDUMP   ") {
            return None;
        }
        let big_endian = bytes[8] == 0;
        let number = |at| number(&bytes, at, big_endian);
        // The block size is a power of two of at least a page; in the other layout another field stands there.
        let at = if number(428).is_power_of_two() && number(428) >= 4096 { 424 } else { 412 };
        let (block, sub, bitmaps) = (number(at + 4), number(at + 8), number(at + 12));
        let status = number(at) as u32;
        let first = (1 + sub) * block;
        let bitmap_len = bitmaps * block / 2;
        Some(Self { block, status, dumped_at: first + bitmap_len, bitmap_len, descriptors_at: first + 2 * bitmap_len, bytes })
    }

    /// Reads a file that may not be there yet, or be too short.
    pub fn open_if_there(path: &Path) -> Option<Self> {
        let len = path.metadata().ok()?.len();
        if len < 4096 { None } else { Self::open(path) }
    }

    /// PFNs of the second bitmap, ascending.
    pub fn dumped(&self) -> Vec<u64> {
        let bits = &self.bytes[self.dumped_at..self.dumped_at + self.bitmap_len];
        let pfns = |(i, byte): (usize, &u8)| {
            (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| (i * 8 + bit) as u64).collect::<Vec<_>>()
        };
        bits.iter().enumerate().flat_map(pfns).collect()
    }

    /// Offset, size and flags of page descriptor number `rank` of a little-endian file.
    pub fn descriptor(&self, rank: usize) -> (usize, usize, u32) {
        let at = self.descriptors_at + rank * 24;
        let offset = u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("8 bytes")) as usize;
        (offset, number(&self.bytes, at + 8, false), number(&self.bytes, at + 12, false) as u32)
    }
}
