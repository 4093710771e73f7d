//! The headers' fields. Offsets are in bytes from the header's start, by the structs of `sadump_mod.h` of makedumpfile 1.7
//! (the same in `sadump.h` of crash); little endian.

use std::fmt;

use crate::time::{self, EfiTime};

/// Bytes of a block, and of a page: sadump runs on x86 only (`SADUMP_DEFAULT_BLOCK_SIZE`).
pub const BLOCK: u64 = 4096;

/// The first 8 bytes of both the partition header (`SADUMP_SIGNATURE1`, `SADUMP_SIGNATURE2`) and the dump header
/// (`SADUMP_SIGNATURE`). The magic numbers tell them apart.
pub const SIGNATURE: &[u8; 8] = b"sadump\0\0";

/// Offset of the magic numbers in the partition header; they fill its block.
const MAGIC_AT: usize = 168;

/// Bytes from the start of the dump header to the end of what version 1 has.
pub const DUMP_HEADER_SIZE: usize = 120;

/// Most disks of a set (`SADUMP_MAX_DISK_SET_NUM`).
pub const DISKS_MAX: u32 = 16;

/// Bytes of `struct sadump_disk_set_header` with all 15 `struct sadump_volume_info`.
pub const DISK_SET_HEADER_SIZE: usize = 16 + 15 * VOLUME_INFO_SIZE;

/// Bytes of a `struct sadump_volume_info`.
const VOLUME_INFO_SIZE: usize = 32;

/// `N` bytes at an offset; zeros where the header is shorter.
pub fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

/// A byte.
pub fn u8_at(bytes: &[u8], at: usize) -> u8 {
    u8::from_le_bytes(array_at(bytes, at))
}

/// A 16-bit number.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

/// A 32-bit number.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

/// A 64-bit number.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

/// An `EFI_GUID`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guid([u8; 16]);

impl Guid {
    fn at(bytes: &[u8], at: usize) -> Self {
        Self(array_at(bytes, at))
    }
}

impl fmt::Display for Guid {
    /// The text form of the UEFI specification, appendix A: the first three groups are little endian numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{:04x}-{:04x}-", u32_at(&self.0, 0), u16_at(&self.0, 4), u16_at(&self.0, 6))?;
        for (i, byte) in self.0.iter().enumerate().skip(8) {
            write!(f, "{}{byte:02x}", if i == 10 { "-" } else { "" })?;
        }
        Ok(())
    }
}

/// `struct sadump_part_header`: every partition that the firmware may dump to begins with one.
#[derive(Debug, Clone, Copy)]
pub struct PartHeader {
    /// which machine (`sadump_id`)
    pub system: Guid,
    /// which set of disks
    pub set: Guid,
    /// which volume
    pub volume: Guid,
    /// when the dump was taken
    pub time: EfiTime,
    /// 0 = a single partition, else the disk's number in its set, from 1 (`set_disk_set`)
    pub disk_number: u32,
    /// bytes of the partition that the dump uses, headers included (`used_device`)
    pub used: u64,
}

impl PartHeader {
    /// The header of this block, or the offset in it of the first wrong magic number. The firmware fills the block with
    /// numbers made each from the one before; what begins with the signature only is something else.
    ///
    /// # Errors
    /// The offset.
    pub fn parse(block: &[u8]) -> Result<Self, u64> {
        let mut expected = u32_at(block, MAGIC_AT);
        for at in (MAGIC_AT..BLOCK as usize).step_by(4) {
            if u32_at(block, at) != expected || block.len() < at + 4 {
                return Err(at as u64);
            }
            expected = expected.wrapping_add(7).wrapping_mul(11);
        }
        Ok(Self {
            system: Guid::at(block, 88),
            set: Guid::at(block, 104),
            volume: Guid::at(block, 120),
            time: EfiTime::at(block, 136),
            disk_number: u32_at(block, 152),
            used: u64_at(block, 160),
        })
    }
}

/// `struct sadump_media_header`: what a backup of the dump to removable media begins with.
#[derive(Debug, Clone, Copy)]
pub struct MediaHeader {
    /// which machine
    pub system: Guid,
    /// which set of disks
    pub set: Guid,
    /// when the dump was taken
    pub time: EfiTime,
    /// number of the medium, from 1 (`sequential_num`)
    pub number: u8,
}

impl MediaHeader {
    /// The header of this block.
    pub fn parse(block: &[u8]) -> Self {
        Self { system: Guid::at(block, 0), set: Guid::at(block, 16), time: EfiTime::at(block, 32), number: u8_at(block, 32 + time::SIZE) }
    }
}

/// `struct sadump_disk_set_header`: on disk 1 only.
#[derive(Debug, Clone)]
pub struct DiskSetHeader {
    /// blocks it takes (`disk_set_header_size`)
    pub blocks: u32,
    /// number of disks, disk 1 included (`disk_num`)
    pub disks: u32,
    /// IDs of the volumes: entry 0 is that of disk 2
    pub volumes: Vec<Guid>,
}

impl DiskSetHeader {
    /// The header at the start of these bytes ([`DISK_SET_HEADER_SIZE`]).
    pub fn parse(bytes: &[u8]) -> Self {
        let disks = u32_at(bytes, 4);
        let others = disks.min(DISKS_MAX).saturating_sub(1) as usize;
        let volumes = (0..others).map(|i| Guid::at(bytes, 16 + i * VOLUME_INFO_SIZE)).collect();
        Self { blocks: u32_at(bytes, 0), disks, volumes }
    }
}

/// `struct sadump_header`.
#[derive(Debug, Clone, Copy)]
pub struct DumpHeader {
    /// `header_version`: 0, or 1 with 64-bit numbers of pages
    pub version: u32,
    /// when the dump was taken
    pub time: EfiTime,
    /// how pages are compressed; only 0, not at all, is defined
    pub compress: u32,
    /// bytes of a block
    pub block_size: u32,
    /// blocks of a header that is reserved, and never there (`extra_hdr_size`)
    pub extra_blocks: u32,
    /// blocks of the sub header
    pub sub_blocks: u32,
    /// blocks of the RAM bitmap
    pub bitmap_blocks: u32,
    /// blocks of the dumpable bitmap
    pub dumpable_blocks: u32,
    /// one behind the highest PFN (`max_mapnr`, `max_mapnr_64`)
    pub max_pfn: u64,
    /// number of CPUs
    pub cpus: u32,
}

impl DumpHeader {
    /// The header at the start of these bytes ([`DUMP_HEADER_SIZE`]); `None` if its signature is not there. Versions that
    /// are not known yet are taken for version 1, as makedumpfile does.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let version = u32_at(bytes, 8);
        let header = Self {
            version,
            time: EfiTime::at(bytes, 16),
            compress: u32_at(bytes, 36),
            block_size: u32_at(bytes, 40),
            extra_blocks: u32_at(bytes, 44),
            sub_blocks: u32_at(bytes, 48),
            bitmap_blocks: u32_at(bytes, 52),
            dumpable_blocks: u32_at(bytes, 56),
            max_pfn: if version == 0 { u64::from(u32_at(bytes, 60)) } else { u64_at(bytes, 88) },
            cpus: u32_at(bytes, 80),
        };
        bytes.starts_with(SIGNATURE).then_some(header)
    }
}
