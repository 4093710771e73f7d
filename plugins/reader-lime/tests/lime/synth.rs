//! Builds LiME and AVML files, sound or broken on purpose.

use std::io::Write;

use coresift_sdk::testkit;
use coresift_sdk::{Extent, ExtentKind, PageState, Reader, Result, Value};

/// A page of the tests, unless a test sets another size.
pub const PAGE: u64 = 4096;

/// A header by lime.h, little endian: magic, version, first and last address, 8 bytes reserved.
pub fn header(magic: &[u8; 4], version: u32, first: u64, last: u64) -> Vec<u8> {
    [&magic[..], &version.to_le_bytes(), &first.to_le_bytes(), &last.to_le_bytes(), &[0; 8]].concat()
}

/// A range of LiME. Its magic number 0x4c694d45 stands in the file as "EMiL".
pub fn lime(start: u64, data: &[u8]) -> Vec<u8> {
    [&header(b"EMiL", 1, start, start + data.len() as u64 - 1), data].concat()
}

/// A stream of the Snappy framing format, as AVML's encoder makes it; `cut` bytes at a time, so that chunks are so long.
pub fn frames(data: &[u8], cut: usize) -> Vec<u8> {
    let mut encoder = snap::write::FrameEncoder::new(Vec::new());
    for part in data.chunks(cut) {
        encoder.write_all(part).unwrap();
        encoder.flush().unwrap();
    }
    encoder.into_inner().unwrap()
}

/// A compressed range of AVML with chunks of `cut` bytes of memory. Its magic number 0x4c4d5641 stands there as "AVML".
pub fn avml_cut(start: u64, data: &[u8], cut: usize) -> Vec<u8> {
    let stream = frames(data, cut);
    let len = stream.len() as u64;
    [&header(b"AVML", 2, start, start + data.len() as u64 - 1)[..], &stream, &len.to_le_bytes()].concat()
}

pub fn avml(start: u64, data: &[u8]) -> Vec<u8> {
    avml_cut(start, data, 1 << 16)
}

/// `len` bytes that differ by position and `seed`, and never are zero; every other 4 KiB of them compresses.
pub fn noise(seed: u64, len: u64) -> Vec<u8> {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..len).map(|at| if at / 4096 % 2 == 0 { (rng.next() >> 33) as u8 | 1 } else { (seed + at / 512) as u8 | 1 }).collect()
}

/// xorshift64: the same numbers in every run.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
}

pub fn open(bytes: Vec<u8>) -> Result<Box<dyn Reader>> {
    open_with(bytes, &[("arch", Value::Text("x86_64".into()))])
}

pub fn open_with(bytes: Vec<u8>, settings: &[(&str, Value)]) -> Result<Box<dyn Reader>> {
    reader_lime::open(testkit::reader_setup(&reader_lime::manifest(), settings, vec![bytes])?)
}

/// Opens and gives the extents; checks that they are ascending, disjoint and not empty.
pub fn extents(bytes: Vec<u8>) -> Vec<Extent> {
    let reader = open(bytes).unwrap();
    let extents = reader.extents();
    assert!(extents.iter().all(|e| e.pages > 0), "an empty extent");
    assert!(extents.windows(2).all(|e| e[0].end_pfn() <= e[1].first_pfn), "extents overlap or go back: {extents:x?}");
    assert_eq!(reader.machine().max_pfn, extents.last().unwrap().end_pfn());
    extents
}

/// The bytes of a page as the host gets them: `None` if it is in no extent, or missing.
pub fn page(bytes: &[u8], reader: &dyn Reader, pfn: u64) -> Option<Vec<u8>> {
    let size = reader.machine().page_size();
    let extents = reader.extents();
    let extent = extents.iter().find(|e| (e.first_pfn..e.end_pfn()).contains(&pfn))?;
    if extent.kind == ExtentKind::MAPPED {
        let at = extent.offset as usize + (pfn - extent.first_pfn) as usize * size;
        return Some(bytes[at..at + size].to_vec());
    }
    assert_eq!(extent.kind, ExtentKind::ENCODED);
    let (mut out, mut states) = (vec![0xaa; size], [PageState::MISSING]);
    let _ = reader.read_pages(&[pfn], &mut out, &mut states);
    (states == [PageState::PRESENT]).then_some(out)
}

/// One of the warnings says this.
pub fn warns(reader: &dyn Reader, what: &str) -> bool {
    reader.machine().warnings.iter().any(|w| w.contains(what))
}
