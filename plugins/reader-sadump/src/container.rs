//! Which of the three layouts an input has, and where its parts are.

use coresift_sdk::{Error, Result, Source};

use crate::disk_set;
use crate::header::{BLOCK, DUMP_HEADER_SIZE, DumpHeader, MediaHeader, PartHeader, SIGNATURE};
use crate::layout::{Disk, Disks};

/// The three layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// one partition
    SinglePartition,
    /// up to 16 of them
    DiskSet,
    /// a copy on removable media
    MediaBackup,
}

impl Kind {
    /// The name of the format.
    pub const fn format(self) -> &'static str {
        match self {
            Self::SinglePartition => "sadump single partition",
            Self::DiskSet => "sadump disk set",
            Self::MediaBackup => "sadump media backup",
        }
    }
}

/// What the first blocks of an input look like.
#[derive(Debug, Clone)]
pub enum Sighting {
    /// a partition: single, or a disk of a set
    Partition(PartHeader),
    /// a media backup
    Media(MediaHeader, PartHeader),
    /// was one of them, but its header is damaged
    Damaged(Error),
    /// something else, and why
    Other(String),
}

/// Looks at the first blocks of an input.
///
/// # Errors
/// The input cannot be read.
pub fn look(source: &Source) -> Result<Sighting> {
    let mut bytes = [0; 2 * BLOCK as usize + SIGNATURE.len()];
    let len = source.read_at(0, &mut bytes)?;
    let block = |n: u64| bytes.get(..len).and_then(|b| b.get((n * BLOCK) as usize..)).unwrap_or_default();
    let damaged = |n: u64, at: u64| {
        let error = if block(n).len() < BLOCK as usize {
            Error::format(format!("{}: ends inside the sadump partition header", source.name()))
        } else {
            Error::format(format!("{}: wrong magic number in the sadump partition header", source.name()))
        };
        let hint = "the header of the dump device is damaged, or the device was formatted after the dump; copy it again";
        Sighting::Damaged(error.at_offset(n * BLOCK + at).hint(hint))
    };
    if block(0).starts_with(SIGNATURE) {
        return Ok(PartHeader::parse(block(0)).map_or_else(|at| damaged(0, at), Sighting::Partition));
    }
    if !block(1).starts_with(SIGNATURE) {
        return Ok(Sighting::Other("no sadump signature in the first two blocks".into()));
    }
    Ok(match PartHeader::parse(block(1)) {
        Ok(part) => Sighting::Media(MediaHeader::parse(block(0)), part),
        // A dump header comes next: block 1 is the partition header of a media backup.
        Err(at) if block(2).starts_with(SIGNATURE) => damaged(1, at),
        // Block 1 is the dump header itself: both have the same signature.
        Err(_) => {
            let found = block(0).get(..SIGNATURE.len()).unwrap_or_default().escape_ascii();
            let message = format!("{}: begins with \"{found}\" and not with the signature \"sadump\" of a partition header", source.name());
            Sighting::Damaged(Error::format(message).at_offset(0).hint("a sadump header stands in the second block; the first is damaged"))
        }
    })
}

/// An image whose parts are known.
#[derive(Debug)]
pub struct Container {
    /// which layout
    pub kind: Kind,
    /// index of the input that has the headers
    pub head: usize,
    /// partition header of that input
    pub part: PartHeader,
    /// the dump header
    pub dump: DumpHeader,
    /// offset of the sub header
    pub sub_at: u64,
    /// offset of the RAM bitmap
    pub bitmap_at: u64,
    /// offset of the dumpable bitmap
    pub dumpable_at: u64,
    /// offset of the first page in that input
    pub data_at: u64,
    /// where the pages are
    pub disks: Disks,
}

impl Container {
    /// Finds the parts; the inputs may be in any order.
    ///
    /// # Errors
    /// The inputs are no image, or not a whole one.
    pub fn open(sources: &[Source], warnings: &mut Vec<String>) -> Result<Self> {
        let seen = sources.iter().map(look).collect::<Result<Vec<_>>>()?;
        match (seen.as_slice(), sources) {
            ([Sighting::Partition(part)], [source]) if part.disk_number == 0 => {
                let found = Headers::read(source, BLOCK, warnings)?;
                let disks = Disks::one(source, found.data_at);
                Ok(found.container(Kind::SinglePartition, 0, *part, disks))
            }
            ([Sighting::Media(media, part)], [source]) => {
                check_media(source, media, part, warnings)?;
                let found = Headers::read(source, 2 * BLOCK, warnings)?;
                let disks = Disks::one(source, found.data_at);
                Ok(found.container(Kind::MediaBackup, 0, *part, disks))
            }
            _ => {
                let set = disk_set::sort(sources, &seen, warnings)?;
                let found = Headers::read(set.head(sources)?, (1 + u64::from(set.header.blocks)) * BLOCK, warnings)?;
                let mut disks = Disks::default();
                for (number, (input, part)) in (1..).zip(&set.disks) {
                    let source = sources.get(*input).ok_or_else(|| Error::format("no such input"))?;
                    let data_at = if number == 1 { found.data_at } else { BLOCK };
                    let bytes = part.used.checked_sub(data_at).ok_or_else(|| {
                        let message = format!("{}: disk {number} uses {} bytes, less than its headers take", source.name(), part.used);
                        Error::format(message).at_offset(160).hint("the partition header is damaged")
                    })?;
                    disks.push(Disk::new(source, u32::try_from(*input).unwrap_or(u32::MAX), data_at, bytes));
                }
                let (head, part) = set.disks.first().copied().ok_or_else(|| Error::format("a disk set without disks"))?;
                Ok(found.container(Kind::DiskSet, head, part, disks))
            }
        }
    }
}

/// The dump header, and the offsets of what comes behind it.
struct Headers {
    dump: DumpHeader,
    sub_at: u64,
    bitmap_at: u64,
    dumpable_at: u64,
    data_at: u64,
}

impl Headers {
    fn read(source: &Source, at: u64, warnings: &mut Vec<String>) -> Result<Self> {
        let name = source.name();
        let bad =
            |what: String, field: u64| Error::format(format!("{name}: {what}")).at_offset(at + field).hint("the dump header is damaged");
        let bytes = source.read_vec(at, DUMP_HEADER_SIZE)?;
        let found = bytes.get(..SIGNATURE.len()).unwrap_or_default().escape_ascii();
        let dump = DumpHeader::parse(&bytes).ok_or_else(|| bad(format!("no dump header: \"{found}\" is not its signature"), 0))?;
        if u64::from(dump.block_size) != BLOCK {
            let message = format!("{name}: blocks of {} bytes; only pages and blocks of {BLOCK} bytes are known", dump.block_size);
            return Err(Error::unsupported(message)
                .at_offset(at + 40)
                .hint("the dump header is damaged, or the image is not of an x86 machine"));
        }
        if dump.bitmap_blocks == 0 {
            return Err(bad("the RAM bitmap has no blocks (bitmap_blocks = 0)".into(), 52));
        }
        if dump.dumpable_blocks == 0 {
            return Err(bad("the dumpable bitmap has no blocks (dumpable_bitmap_blocks = 0)".into(), 56));
        }
        if dump.version > 1 {
            warnings.push(format!("sadump header version {} is not known; it is read as version 1", dump.version));
        }
        if dump.compress != 0 {
            warnings.push(format!(
                "the dump header says that pages are compressed ({}), which is not defined: they are taken as raw",
                dump.compress
            ));
        }
        if dump.extra_blocks != 0 {
            warnings.push(format!("the dump header has {} blocks of a reserved header, which are taken as not there", dump.extra_blocks));
        }
        // Offsets of at most 44 bits are added to: no overflow.
        let sub_at = at + BLOCK;
        let bitmap_at = sub_at + u64::from(dump.sub_blocks) * BLOCK;
        let dumpable_at = bitmap_at + u64::from(dump.bitmap_blocks) * BLOCK;
        let data_at = dumpable_at + u64::from(dump.dumpable_blocks) * BLOCK;
        if let Some(size) = source.size().filter(|size| *size < data_at) {
            let message = format!("{name}: ends at byte {size}, before the first page at byte {data_at}");
            return Err(Error::format(message).hint("the file is cut; copy it again"));
        }
        Ok(Self { dump, sub_at, bitmap_at, dumpable_at, data_at })
    }

    fn container(self, kind: Kind, head: usize, part: PartHeader, disks: Disks) -> Container {
        let Self { dump, sub_at, bitmap_at, dumpable_at, data_at } = self;
        Container { kind, head, part, dump, sub_at, bitmap_at, dumpable_at, data_at, disks }
    }
}

/// A media backup says twice whose it is.
fn check_media(source: &Source, media: &MediaHeader, part: &PartHeader, warnings: &mut Vec<String>) -> Result<()> {
    let name = source.name();
    let other = |what: &str, media: &dyn std::fmt::Display, part: &dyn std::fmt::Display, at: u64| {
        let message = format!("{name}: the media header names {what} {media}, the partition header {part}");
        Error::format(message).at_offset(at).hint("the file is put together from two backups; copy the medium again")
    };
    if media.system != part.system {
        return Err(other("system", &media.system, &part.system, 0));
    }
    if media.set != part.set {
        return Err(other("disk set", &media.set, &part.set, 16));
    }
    if media.number != 1 {
        let message = format!("{name}: medium number {} of a backup; only backups on one medium can be read", media.number);
        return Err(Error::unsupported(message).at_offset(48).hint("restore the backup to a dump device and give that one"));
    }
    if media.time != part.time {
        let (media, part) = (media.time.text(), part.time.text());
        warnings.push(format!("the time stamps of media header ({media}) and partition header ({part}) differ"));
    }
    Ok(())
}
