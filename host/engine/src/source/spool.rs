//! Whole files compressed with zstd, gzip, xz, bzip2 or lz4: unpacked into an unnamed temporary file, since a dump needs random access.

use std::fs::File;
use std::path::Path;

use super::copy_sparse;
use crate::error::{Error, Result, plain};
use crate::progress::{Phase, Progress};

/// Codec of a whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Zstd,
    Gzip,
    Xz,
    Bzip2,
    Lz4,
}

impl Codec {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Bzip2 => "bzip2",
            Self::Lz4 => "lz4",
        }
    }
}

/// Largest window of a zstd frame that is accepted: 2 GiB, what `zstd --long=31` makes. The window is memory that the
/// file asks for.
const ZSTD_WINDOW_LOG_MAX: u32 = 31;

/// The codec that a file's first bytes name: zstd frames (RFC 8878, 3.1.1), gzip members (RFC 1952, 2.3.1), xz streams
/// (The .xz File Format, 2.1.1.1), bzip2 and lz4 frames (LZ4 Frame Format).
pub(super) fn codec_of(head: &[u8; 6]) -> Option<Codec> {
    match head {
        // The second: skippable frames (3.1.2), which parallel compressors put first.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Codec::Zstd),
        [0x1f, 0x8b, 8, ..] => Some(Codec::Gzip),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => Some(Codec::Xz),
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41] | [b'B', b'Z', b'h', b'1'..=b'9', 0x17, 0x72] => Some(Codec::Bzip2),
        [0x04, 0x22, 0x4d, 0x18, ..] => Some(Codec::Lz4),
        _ => None,
    }
}

/// An unpacked file.
pub(super) struct Spooled {
    pub file: File,
    pub len: u64,
    /// why it may be shorter than it should be
    pub warning: Option<String>,
}

/// Unpacks `file`. A stream that breaks gives what stood before the break, and a warning.
pub(super) fn unpack(file: &File, path: &Path, codec: Codec, progress: &dyn Progress) -> Result<Spooled> {
    let folder = std::env::temp_dir();
    let spool = tempfile::tempfile().map_err(|e| {
        let message =
            format!("cannot unpack {} ({}): no temporary file in {}: {}", path.display(), codec.name(), folder.display(), plain(&e));
        Error::failed(message).hint("set TMPDIR to a folder with room for the unpacked file")
    })?;
    progress.phase(Phase::Unpack, 0);
    let broken_frame = |e: std::io::Error| Error::failed(format!("{} is not a sound {} file: {}", path.display(), codec.name(), plain(&e)));
    let buffered = std::io::BufReader::with_capacity(256 << 10, file);
    let mut reader: Box<dyn std::io::Read> = match codec {
        Codec::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::new(file).map_err(broken_frame)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(broken_frame)?;
            Box::new(decoder)
        }
        Codec::Gzip => Box::new(flate2::read::MultiGzDecoder::new(buffered)),
        Codec::Xz => Box::new(lzma_rust2::XzReader::new(buffered, true)),
        Codec::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(buffered)),
        Codec::Lz4 => Box::new(lz4_flex::frame::FrameDecoder::new(buffered)),
    };
    let copied = copy_sparse(&mut *reader, &spool, |n| progress.advance(n));
    let (len, broken) = copied.map_err(|e| {
        let message = format!("cannot unpack {} ({}) into {}: {}", path.display(), codec.name(), folder.display(), plain(&e));
        Error::failed(message).hint("set TMPDIR to a folder with room for the unpacked file")
    })?;
    if len == 0 {
        return Err(Error::failed(format!("{}: nothing could be unpacked from this {} file", path.display(), codec.name()))
            .hint("the file is cut or damaged; copy it again"));
    }
    let warning = broken
        .map(|e| format!("{}: the {} stream breaks after {len} bytes ({}); going on with these", path.display(), codec.name(), plain(&e)));
    Ok(Spooled { file: spool, len, warning })
}
