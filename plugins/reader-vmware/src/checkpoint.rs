//! The checkpoint file: header, groups, and what the group `memory` says.

use coresift_sdk::{Error, Result, Source};

/// Numbers that a checkpoint begins with: those of 64-bit ones (whole, partial, restored, not to be restored), and the old
/// ones, whose blocks have lengths of 32 bits.
const MAGIC: [u32; 4] = [0xbed2_bed2, 0xbed3_bed3, 0xbad1_bad1, 0xbad2_bad2];
const OLD_MAGIC: [u32; 2] = [0xbed0_bed0, 0xbed2_bed0];

/// Bytes of the header, and of a group's entry.
const HEADER: u64 = 12;
const GROUP: usize = 80;
/// Bytes of a group's name.
const NAME: usize = 64;

/// Most groups that are believed; real ones have about a hundred.
const GROUPS_MAX: u32 = 4096;
/// Most tags of a group that are looked at; `memory` has a few for each region.
const TAGS_MAX: u32 = 1 << 16;
/// Most regions that are believed; crash has room for 3.
const REGIONS_MAX: usize = 1024;
/// Most bytes of a tag before its value: itself, name, three indices.
const TAG_MAX: usize = 2 + 255 + 12;
/// Sizes of a value that stand for a block, and for a compressed one.
const BLOCK: u64 = 63;
const COMPRESSED: u64 = 62;

/// Pages of a memory file that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Region {
    /// PFN of the first page
    pub first_pfn: u64,
    /// its number in the memory file
    pub file_page: u64,
    /// how many
    pub pages: u64,
}

/// Memory within the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inside {
    /// file offset
    pub offset: u64,
    /// bytes
    pub len: u64,
    /// not as it is
    pub compressed: bool,
}

/// What a checkpoint says of the guest's memory.
#[derive(Debug, Default)]
pub struct Checkpoint {
    /// as the file has them
    pub regions: Vec<Region>,
    /// the memory itself, if it is here
    pub memory: Option<Inside>,
    /// what was odd
    pub warnings: Vec<String>,
}

/// A tag: an item of a group.
struct Tag {
    name: String,
    indices: Vec<u32>,
    /// file offset of the value, or of a block's data
    at: u64,
    /// bytes of the value or of the data
    len: u64,
    block: bool,
    compressed: bool,
}

/// True if the file begins as a checkpoint.
///
/// # Errors
/// It cannot be read.
pub fn is_checkpoint(source: &Source) -> Result<bool> {
    let mut head = [0; HEADER as usize];
    let n = source.read_at(0, &mut head)?;
    let magic = number(&head, 0, 4) as u32;
    // Memory may begin with these bytes, but not with a sane number of groups behind them.
    let groups = number(&head, 8, 4) as u32;
    Ok(n == head.len() && (MAGIC.contains(&magic) || OLD_MAGIC.contains(&magic)) && (1..=GROUPS_MAX).contains(&groups))
}

/// A little-endian number of up to 8 bytes; 0 behind the end.
fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let mut wide = [0; 8];
    if let (Some(to), Some(from)) = (wide.get_mut(..len), bytes.get(at..at.saturating_add(len))) {
        to.copy_from_slice(from);
    }
    u64::from_le_bytes(wide)
}

impl Checkpoint {
    /// Reads the groups' table, and the group `memory`.
    ///
    /// # Errors
    /// The table cannot be read, or no group has that name.
    pub fn read(source: &Source) -> Result<Self> {
        let head = source.read_vec(0, HEADER as usize)?;
        let old = OLD_MAGIC.contains(&(number(&head, 0, 4) as u32));
        let count = (number(&head, 8, 4) as u32).min(GROUPS_MAX) as usize;
        let mut table = vec![0; count * GROUP];
        let n = source.read_at(HEADER, &mut table)?;
        let mut checkpoint = Self::default();
        let mut found = false;
        for group in table.get(..n).unwrap_or_default().chunks_exact(GROUP) {
            let name = group.get(..NAME).unwrap_or_default();
            let end = name.iter().position(|b| *b == 0).unwrap_or(NAME);
            if name.get(..end) == Some(b"memory") {
                found = true;
                checkpoint.read_memory(source, number(group, NAME, 8), old);
            }
        }
        if !found {
            let message = format!("{}: a VMware checkpoint without a group `memory`", source.name());
            return Err(Error::format(message).at_offset(HEADER).hint("the file is cut or damaged: copy it again"));
        }
        Ok(checkpoint)
    }

    /// Reads the tags of the group at `at`.
    fn read_memory(&mut self, source: &Source, mut at: u64, old: bool) {
        let mut regions = 0;
        for _ in 0..TAGS_MAX {
            let tag = match next_tag(source, at, old) {
                Ok(Some(tag)) => tag,
                Ok(None) => break,
                Err(why) => {
                    self.warnings.push(format!("the checkpoint's memory map ends early: {why} (at byte {at})"));
                    break;
                }
            };
            at = tag.at.saturating_add(tag.len);
            if tag.block {
                if tag.name == "Memory" {
                    self.memory = Some(Inside { offset: tag.at, len: tag.len, compressed: tag.compressed });
                }
                continue;
            }
            let mut bytes = [0; 8];
            let len = tag.len.min(8) as usize;
            let read = bytes.get_mut(..len).map(|room| source.read_at(tag.at, room));
            if !matches!(read, Some(Ok(n)) if n == len) {
                self.warnings.push(format!("the checkpoint ends within `{}` (at byte {})", tag.name, tag.at));
                break;
            }
            let value = u64::from_le_bytes(bytes);
            let index = tag.indices.first().map_or(0, |i| *i as usize);
            match tag.name.as_str() {
                "regionsCount" => regions = value,
                "regionPPN" => self.region(index, |r| r.first_pfn = value),
                "regionPageNum" => self.region(index, |r| r.file_page = value),
                "regionSize" => self.region(index, |r| r.pages = value),
                _ => {}
            }
        }
        self.regions.retain(|r| r.pages > 0);
        if self.regions.len() as u64 != regions {
            let there = self.regions.len();
            self.warnings.push(format!("the checkpoint has {there} memory regions and says that it has {regions}"));
        }
    }

    fn region(&mut self, index: usize, set: impl FnOnce(&mut Region)) {
        if index < REGIONS_MAX {
            if self.regions.len() <= index {
                self.regions.resize(index + 1, Region::default());
            }
            self.regions.get_mut(index).map(set);
        }
    }
}

/// The tag at a file offset; `None` at the end of the group.
fn next_tag(source: &Source, at: u64, old: bool) -> std::result::Result<Option<Tag>, String> {
    let mut bytes = [0; TAG_MAX + 18];
    let n = source.read_at(at, &mut bytes).map_err(|e| e.message)?;
    let bytes = bytes.get(..n).unwrap_or_default();
    if n < 2 {
        return Err("the file is cut".into());
    }
    let tag = number(bytes, 0, 2);
    if tag == 0 {
        return Ok(None);
    }
    let (size, indices, name) = (tag & 0x3f, (tag >> 6 & 3) as usize, (tag >> 8) as usize);
    let text = bytes.get(2..2 + name).ok_or("the file is cut")?;
    let mut pos = 2 + name;
    let indices = (0..indices).map(|i| number(bytes, pos + i * 4, 4) as u32).collect::<Vec<_>>();
    pos += indices.len() * 4;
    let mut found = Tag { name: String::from_utf8_lossy(text).into_owned(), indices, at: 0, len: size, block: false, compressed: false };
    if size == BLOCK || size == COMPRESSED {
        let width = if old { 4 } else { 8 };
        found.block = true;
        found.compressed = size == COMPRESSED;
        found.len = number(bytes, pos, width);
        let padding = number(bytes, pos + 2 * width, 2);
        pos += 2 * width + 2 + padding as usize;
    }
    found.at = at.checked_add(pos as u64).ok_or("an offset beyond 64 bits")?;
    Ok(Some(found))
}
