//! The header and the sub-header.
//!
//! `struct disk_dump_header` and `struct kdump_sub_header` of makedumpfile's diskdump_mod.h; crash reads the same from its
//! diskdump.h. Nothing says which byte order and word size they have: the one is taken in which they make sense.

use coresift_sdk::{Error, Result, Source, UtsName};

use crate::layout::{Fields, Layout, Words};

/// First bytes of a dump.
pub const SIGNATURE: &[u8; 8] = b"KDUMP   ";
/// First bytes of a dump of diskdump, the predecessor: the same format in version 0 or 1.
pub const DISKDUMP: &[u8; 8] = b"DISKDUMP";
/// Bytes of signature, version and names (`struct new_utsname`: 6 fields of 65 bytes).
const NAMES_AT: usize = 12;
const UTS_FIELD: usize = 65;
/// Page sizes of Linux: 4 KiB to 256 KiB; a block is a page. QEMU writes the same for its targets.
const BLOCKS: std::ops::RangeInclusive<u32> = 4 << 10..=256 << 10;
/// The highest version there is. A newer one adds fields at the end, as all before did.
pub const VERSION_MAX: u32 = 6;
/// Versions that are believed.
const VERSION_ABSURD: u32 = 64;
/// Bits of `status` (`DUMP_DH_*`).
pub const INCOMPLETE: u32 = 0x8;
/// As above: pages of the mem_map were left out.
pub const EXCLUDED_VMEMMAP: u32 = 0x10;
/// Most bytes of sub-header and notes that are read: registers of 8,192 CPUs take a few MiB.
const SUB_MAX: u64 = 64 << 20;

/// What header and sub-header say.
#[derive(Debug, Clone)]
pub struct Header {
    /// how they are laid out
    pub layout: Layout,
    /// `header_version`
    pub version: u32,
    /// kernel names
    pub utsname: UtsName,
    /// seconds since 1970
    pub time: u64,
    /// codec bits and marks
    pub status: u32,
    /// bytes of a block, which is a page
    pub block: u64,
    /// blocks of the sub-header
    pub sub_blocks: u32,
    /// blocks of the bitmaps
    pub bitmap_blocks: u32,
    /// one behind the highest PFN
    pub max_mapnr: u64,
    /// number of CPUs
    pub cpus: u32,
    /// `phys_base` of x86_64
    pub phys_base: u64,
    /// makedumpfile's dump level, -1 if the version does not say
    pub dump_level: i32,
    /// one part of a split dump: its PFNs
    pub part: Option<(u64, u64)>,
    /// the ELF notes
    pub notes: Vec<u8>,
    /// VMCOREINFO's text where the header points to it
    pub vmcoreinfo: Vec<u8>,
    /// what was erased
    pub erased: Vec<u8>,
    /// what of these could not be read
    pub warnings: Vec<String>,
}

/// The fields that tell whether a layout makes sense.
struct Main {
    version: u32,
    time: u64,
    status: u32,
    block: u32,
    sub_blocks: u32,
    bitmap_blocks: u32,
    max_mapnr: u32,
    cpus: u32,
}

impl Main {
    fn read(bytes: &[u8], layout: Layout) -> Self {
        let version = layout.u32(bytes.get(SIGNATURE.len()..).unwrap_or_default());
        let mut f = Fields::new(layout, bytes, NAMES_AT + 6 * UTS_FIELD);
        // `struct timeval` is aligned as a long is.
        let time = if layout.words == Words::Wide { f.long_long() } else { f.long() };
        f.long();
        let (status, block, sub_blocks, bitmap_blocks, max_mapnr) = (f.int(), f.int(), f.int(), f.int(), f.int());
        // total_ram_blocks, device_blocks, written_blocks, current_cpu
        let _ = [f.int(), f.int(), f.int(), f.int()];
        Self { version, time, status, block, sub_blocks, bitmap_blocks, max_mapnr, cpus: f.int() }
    }

    fn makes_sense(&self) -> bool {
        let block = BLOCKS.contains(&self.block) && self.block.is_power_of_two();
        let bits = u64::from(self.bitmap_blocks) * u64::from(self.block) * 8;
        // The obsolete field is capped, never larger than what the bitmaps hold.
        block && self.version <= VERSION_ABSURD && self.sub_blocks > 0 && self.bitmap_blocks > 0 && bits >= u64::from(self.max_mapnr)
    }
}

/// True for the first bytes of a dump.
pub fn is_dump(head: &[u8]) -> bool {
    head.starts_with(SIGNATURE) || head.starts_with(DISKDUMP)
}

impl Header {
    /// Reads both headers, and what they point to.
    ///
    /// # Errors
    /// It is no dump, or the headers make no sense in any layout.
    pub fn read(source: &Source) -> Result<Self> {
        let name = source.name();
        let mut bytes = vec![0u8; 4096];
        let n = source.read_at(0, &mut bytes)?;
        bytes.truncate(n);
        if !is_dump(&bytes) {
            return Err(Error::format(format!("{name}: no kdump signature")));
        }
        let mut names = Fields::new(Layout { big_endian: false, words: Words::Wide }, &bytes, NAMES_AT);
        let [sysname, nodename, release, version, machine, domainname] = std::array::from_fn(|_| names.string(UTS_FIELD));
        let utsname = UtsName { sysname, nodename, release, version, machine, domainname };
        let Some((layout, main)) = find_layout(&bytes, &utsname.machine) else {
            if without_bitmaps(&bytes) {
                let message = format!("{name}: has no pages: its header counts no bitmap blocks");
                return Err(Error::format(message).hint("whoever wrote it was stopped at the beginning: dump again"));
            }
            let message = format!("{name}: the header makes no sense: no byte order and word size gives a page size and bitmaps");
            return Err(Error::format(message)
                .at_offset(0)
                .hint("the file is damaged at its beginning: copy it again from where it was written"));
        };
        let mut header = Self {
            layout,
            version: main.version,
            utsname,
            time: main.time,
            status: main.status,
            block: u64::from(main.block),
            sub_blocks: main.sub_blocks,
            bitmap_blocks: main.bitmap_blocks,
            max_mapnr: u64::from(main.max_mapnr),
            cpus: main.cpus,
            phys_base: 0,
            dump_level: -1,
            part: None,
            notes: Vec::new(),
            vmcoreinfo: Vec::new(),
            erased: Vec::new(),
            warnings: Vec::new(),
        };
        if header.version > VERSION_MAX {
            header.warnings.push(format!("header version {} is newer than {VERSION_MAX}: what it added is not used", header.version));
        }
        header.read_sub(source, bytes.starts_with(DISKDUMP))?;
        Ok(header)
    }

    /// Reads the sub-header of kdump; diskdump's holds registers in a layout of each architecture's own, which nobody needs.
    fn read_sub(&mut self, source: &Source, diskdump: bool) -> Result<()> {
        if diskdump {
            return Ok(());
        }
        let mut sub = vec![0u8; 256];
        let n = source.read_at(self.block, &mut sub)?;
        sub.truncate(n);
        if self.layout.words != Words::Wide {
            self.layout.words = self.packed_or_padded(&sub);
        }
        let mut f = Fields::new(self.layout, &sub, 0);
        self.phys_base = f.long();
        let level = f.int().cast_signed();
        let split = f.int();
        let (start, end) = (f.long(), f.long());
        let vmcoreinfo = (f.long_long(), f.long());
        let notes = (f.long_long(), f.long());
        let erased = (f.long_long(), f.long());
        let (start_64, end_64, max_64) = (f.long_long(), f.long_long(), f.long_long());
        if self.version >= 1 {
            self.dump_level = level;
        }
        if self.version >= 6 && max_64 > 0 {
            self.max_mapnr = max_64;
        }
        if self.version >= 2 && split == 1 {
            self.part = Some(if self.version >= 6 { (start_64, end_64) } else { (start, end) });
        }
        for (from, place, what) in [(3, vmcoreinfo, "VMCOREINFO"), (4, notes, "the notes"), (5, erased, "the erase information")] {
            let found = if self.version >= from { self.part_of_file(source, place, what) } else { Vec::new() };
            match from {
                3 => self.vmcoreinfo = found,
                4 => self.notes = found,
                _ => self.erased = found,
            }
        }
        Ok(())
    }

    fn part_of_file(&mut self, source: &Source, (offset, len): (u64, u64), what: &str) -> Vec<u8> {
        if offset == 0 || len == 0 {
            return Vec::new();
        }
        let found = if len <= SUB_MAX && source.size().is_none_or(|size| len <= size) {
            source.read_vec(offset, len as usize).map_err(|e| e.message)
        } else {
            Err(format!("{len} bytes are more than there can be"))
        };
        found.unwrap_or_else(|why| {
            self.warnings.push(format!("{what} cannot be read: {why}"));
            Vec::new()
        })
    }

    /// i386 packs 64-bit fields to 4 bytes, all other 32-bit machines pad them to 8; QEMU packs them for all machines. So
    /// that layout is taken in which VMCOREINFO or the notes lie in the sub-header's blocks, and else the machine's name tells.
    fn packed_or_padded(&self, sub: &[u8]) -> Words {
        let end = self.block * (1 + u64::from(self.sub_blocks));
        let inside = |words: Words| {
            let mut f = Fields::new(Layout { words, ..self.layout }, sub, 0);
            let _ = (f.long(), f.int(), f.int(), f.long(), f.long());
            let (first, _, second) = (f.long_long(), f.long(), f.long_long());
            [first, second].iter().any(|at| (self.block..end).contains(at))
        };
        match (inside(Words::Packed), inside(Words::Padded)) {
            (true, false) => Words::Packed,
            (false, true) => Words::Padded,
            _ => {
                let machine = self.utsname.machine.as_str();
                if machine.starts_with('i') && machine.ends_with("86") { Words::Packed } else { Words::Padded }
            }
        }
    }

    /// Offset of the bitmaps.
    pub fn bitmaps_at(&self) -> u64 {
        self.block * (1 + u64::from(self.sub_blocks))
    }

    /// Offset of the page descriptors.
    pub fn descriptors_at(&self) -> u64 {
        self.bitmaps_at() + self.block * u64::from(self.bitmap_blocks)
    }

    /// True if there are two bitmaps, of RAM and of dumped pages; as crash tells it (diskdump.c). A number of pages for
    /// which all blocks are too few is damaged: then there are two, as every dump of this century has them.
    pub fn two_bitmaps(&self) -> bool {
        let (one, blocks) = (self.max_mapnr.div_ceil(8).div_ceil(self.block), u64::from(self.bitmap_blocks));
        blocks >= one.saturating_mul(2) || blocks < one
    }

    /// Bytes of one bitmap.
    pub fn bitmap_len(&self) -> u64 {
        let all = self.block * u64::from(self.bitmap_blocks);
        if self.two_bitmaps() { all / 2 } else { all }
    }
}

/// True if only the bitmaps are missing for the header to make sense.
fn without_bitmaps(bytes: &[u8]) -> bool {
    let layouts = [Words::Wide, Words::Padded].into_iter().flat_map(|words| [false, true].map(|big_endian| Layout { big_endian, words }));
    let mut mains = layouts.map(|layout| Main::read(bytes, layout)).filter(|main| main.bitmap_blocks == 0);
    mains.any(|main| Main { bitmap_blocks: main.sub_blocks, max_mapnr: 0, ..main }.makes_sense())
}

/// The layout in which the header makes sense. Where two do, the machine's name decides, else the wider one.
fn find_layout(bytes: &[u8], machine: &str) -> Option<(Layout, Main)> {
    let wide_first = machine.is_empty() || machine.contains("64") || matches!(machine, "s390x" | "alpha");
    let words = if wide_first { [Words::Wide, Words::Padded] } else { [Words::Padded, Words::Wide] };
    let layouts = words.into_iter().flat_map(|words| [false, true].map(|big_endian| Layout { big_endian, words }));
    layouts.map(|layout| (layout, Main::read(bytes, layout))).find(|(_, main)| main.makes_sense())
}
