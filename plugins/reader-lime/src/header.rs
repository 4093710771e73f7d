//! The header of a range.

use coresift_sdk::{Result, Source};

/// Bytes of a header (`lime_mem_range_header` of LiME's lime.h).
pub const HEADER: usize = 32;

/// `LIME_MAGIC` of lime.h.
const LIME_MAGIC: u32 = 0x4c69_4d45;
/// `AVML_MAGIC` of AVML's image.rs.
const AVML_MAGIC: u32 = 0x4c4d_5641;
/// The only version of LiME's header.
const LIME_VERSION: u32 = 1;
/// The version of AVML's own header; AVML calls LiME's "version 1".
const AVML_VERSION: u32 = 2;

/// A range of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// physical address of the first byte
    pub start: u64,
    /// one behind that of the last byte; always more than `start`
    pub end: u64,
    /// its bytes are in Snappy frames
    pub compressed: bool,
    /// byte order of the header
    pub big_endian: bool,
}

/// What stands where a header should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Head {
    /// a header
    Range(Header),
    /// nothing: the end of the file
    End,
    /// the first bytes of something, then the end of the file
    Cut,
    /// something else, and why
    Other(String),
}

impl Head {
    /// Reads what is at byte `at` of the file.
    ///
    /// # Errors
    /// The read failed.
    pub fn read(source: &Source, at: u64) -> Result<Self> {
        let mut bytes = [0; HEADER];
        Ok(match source.read_at(at, &mut bytes)? {
            0 => Self::End,
            HEADER => Self::parse(&bytes),
            _ => Self::Cut,
        })
    }

    fn parse(bytes: &[u8; HEADER]) -> Self {
        let [m0, m1, m2, m3, v0, v1, v2, v3, rest @ ..] = *bytes;
        let magic = [m0, m1, m2, m3];
        // LiME writes a structure of the machine's own byte order; AVML is always little endian.
        let big_endian = u32::from_be_bytes(magic) == LIME_MAGIC;
        let version = if big_endian { u32::from_be_bytes([v0, v1, v2, v3]) } else { u32::from_le_bytes([v0, v1, v2, v3]) };
        let (name, known) = match u32::from_le_bytes(magic) {
            LIME_MAGIC => ("LiME", LIME_VERSION),
            AVML_MAGIC => ("AVML", AVML_VERSION),
            _ if big_endian => ("LiME", LIME_VERSION),
            _ => return Self::Other("neither a LiME nor an AVML header".into()),
        };
        if version != known {
            return Self::Other(format!("a header of {name} version {version}; only {known} is known"));
        }
        let address = |at: usize| {
            let field = rest.get(at..).and_then(|r| r.first_chunk()).copied().unwrap_or_default();
            if big_endian { u64::from_be_bytes(field) } else { u64::from_le_bytes(field) }
        };
        let (start, last) = (address(0), address(8));
        match last.checked_add(1) {
            Some(end) if end > start => Self::Range(Header { start, end, compressed: name == "AVML", big_endian }),
            _ => Self::Other(format!("a {name} header with a range that makes no sense: {start:#x} to {last:#x}")),
        }
    }
}

impl Header {
    /// One line for people.
    pub fn describe(&self) -> String {
        let name = if self.compressed { "AVML" } else { "LiME" };
        format!("{name} image, first range {:#x} to {:#x}", self.start, self.end - 1)
    }

    /// Bytes of memory.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Never: a range has a byte at least.
    pub fn is_empty(&self) -> bool {
        self.end == self.start
    }
}
