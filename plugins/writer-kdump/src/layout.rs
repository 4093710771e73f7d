//! How C lays out the structures of a dump on the machine that crashed: its byte order, word size and alignment.

use coresift_sdk::Machine;

/// `e_machine` of i386 (ELF specification, `EM_386`).
const EM_386: u16 = 3;

/// What the size and place of a structure's fields depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Words {
    /// `long` has 64 bits.
    Wide,
    /// `long` has 32 bits, and 64-bit fields are aligned to 4 bytes: i386.
    Packed,
    /// `long` has 32 bits, and 64-bit fields are aligned to 8 bytes: ARM, MIPS, PowerPC.
    Padded,
}

/// Byte order and words of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    big_endian: bool,
    words: Words,
}

impl Layout {
    /// The layout on this machine. A word size that is neither 32 nor 64 counts as 64.
    pub fn of(machine: &Machine) -> Self {
        let i386 = machine.elf_machine == EM_386 || matches!(machine.arch.as_str(), "i386" | "i486" | "i586" | "i686");
        let words = match (machine.word_bits, i386) {
            (32, true) => Words::Packed,
            (32, false) => Words::Padded,
            _ => Words::Wide,
        };
        Self { big_endian: machine.big_endian, words }
    }

    /// True if `long` has 32 bits.
    pub fn is_32_bit(self) -> bool {
        self.words != Words::Wide
    }

    /// A 32-bit value as it stands in the file.
    pub fn word32(self, value: u32) -> [u8; 4] {
        if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    /// A 64-bit value as it stands in the file.
    pub fn word64(self, value: u64) -> [u8; 8] {
        if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    /// A 32-bit value of the file; 0 if it is cut.
    pub fn read32(self, bytes: &[u8]) -> u32 {
        bytes.first_chunk().map_or(0, |&b| if self.big_endian { u32::from_be_bytes(b) } else { u32::from_le_bytes(b) })
    }
}

/// A C structure being put together field by field; each field is aligned as the machine's compiler aligns it.
#[derive(Debug)]
pub struct Struct {
    layout: Layout,
    bytes: Vec<u8>,
}

impl Struct {
    /// An empty structure.
    pub fn new(layout: Layout) -> Self {
        Self { layout, bytes: Vec::new() }
    }

    /// The offset of the next field if it is aligned to 4 bytes; after the last field, the size so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The structure's bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// `char[]`
    pub fn chars(&mut self, chars: &[u8]) {
        self.bytes.extend_from_slice(chars);
    }

    /// A `char[size]` that holds a string: cut to leave room for a NUL, padded with NULs.
    pub fn string(&mut self, size: usize, string: &str) {
        let end = self.bytes.len() + size;
        self.bytes.extend(string.bytes().take(size.saturating_sub(1)));
        self.bytes.resize(end, 0);
    }

    /// `int`, `unsigned int`
    pub fn int(&mut self, value: u32) {
        self.align(4);
        self.bytes.extend_from_slice(&self.layout.word32(value));
    }

    /// `long`, `unsigned long`: the low half where it has 32 bits.
    pub fn long(&mut self, value: u64) {
        if self.layout.is_32_bit() {
            self.int(value as u32);
        } else {
            self.long_long(value);
        }
    }

    /// `off_t` (64 bits everywhere), `unsigned long long`
    pub fn long_long(&mut self, value: u64) {
        self.align(if self.layout.words == Words::Packed { 4 } else { 8 });
        self.bytes.extend_from_slice(&self.layout.word64(value));
    }

    fn align(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }
}
