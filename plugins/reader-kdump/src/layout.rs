//! How C laid out the structures of a dump on the machine that wrote it: byte order, word size and alignment.

/// What the size and place of a structure's fields depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Words {
    /// `long` has 64 bits.
    Wide,
    /// `long` has 32 bits, and 64-bit fields are aligned to 4 bytes: i386.
    Packed,
    /// `long` has 32 bits, and 64-bit fields are aligned to 8 bytes: ARM, MIPS, PowerPC.
    Padded,
}

/// Byte order and words of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// most significant byte first
    pub big_endian: bool,
    /// word size and alignment
    pub words: Words,
}

impl Layout {
    /// A 32-bit value; 0 if the bytes end before.
    pub fn u32(self, bytes: &[u8]) -> u32 {
        bytes.first_chunk().map_or(0, |b| if self.big_endian { u32::from_be_bytes(*b) } else { u32::from_le_bytes(*b) })
    }

    /// A 64-bit value; 0 if the bytes end before.
    pub fn u64(self, bytes: &[u8]) -> u64 {
        bytes.first_chunk().map_or(0, |b| if self.big_endian { u64::from_be_bytes(*b) } else { u64::from_le_bytes(*b) })
    }

    /// Bits in a `long`.
    pub fn word_bits(self) -> u32 {
        if self.words == Words::Wide { 64 } else { 32 }
    }
}

/// Reads a C structure field by field; each is aligned as the machine's compiler aligned it. What lies behind the end of
/// the bytes reads as 0: older versions of the format have fewer fields.
#[derive(Debug)]
pub struct Fields<'a> {
    layout: Layout,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    /// Begins at byte `at`.
    pub fn new(layout: Layout, bytes: &'a [u8], at: usize) -> Self {
        Self { layout, bytes, at }
    }

    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    /// A `char[size]` that holds a string.
    pub fn string(&mut self, size: usize) -> String {
        let field = self.rest().get(..size).unwrap_or_default();
        self.at += size;
        let text = field.split(|b| *b == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).trim().to_owned()
    }

    /// `int`
    pub fn int(&mut self) -> u32 {
        self.align(4);
        let value = self.layout.u32(self.rest());
        self.at += 4;
        value
    }

    /// `long`
    pub fn long(&mut self) -> u64 {
        if self.layout.words == Words::Wide { self.long_long() } else { u64::from(self.int()) }
    }

    /// `off_t`, `unsigned long long`
    pub fn long_long(&mut self) -> u64 {
        self.align(if self.layout.words == Words::Packed { 4 } else { 8 });
        let value = self.layout.u64(self.rest());
        self.at += 8;
        value
    }
}
