//! Numbers in the memory of a crashed machine: its word size and byte order, not ours.

use crate::machine::Machine;

/// Word size and byte order of the crashed machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    /// bytes of a C `long` and of a pointer: 4 or 8
    pub long: usize,
    /// byte order
    pub big_endian: bool,
}

impl Words {
    /// Those of a machine; 64 bits if it does not say.
    pub fn of(machine: &Machine) -> Self {
        Self { long: if machine.word_bits == 32 { 4 } else { 8 }, big_endian: machine.big_endian }
    }

    /// A `long` or pointer at a byte offset; `None` if it is not all there.
    #[inline(always)]
    pub fn long(self, bytes: &[u8], offset: usize) -> Option<u64> {
        if self.long == 8 { self.u64(bytes, offset) } else { self.u32(bytes, offset).map(u64::from) }
    }

    /// A 64-bit number.
    #[inline(always)]
    pub fn u64(self, bytes: &[u8], offset: usize) -> Option<u64> {
        let raw = bytes.get(offset..)?.first_chunk::<8>()?;
        Some(if self.big_endian { u64::from_be_bytes(*raw) } else { u64::from_le_bytes(*raw) })
    }

    /// A 32-bit number.
    #[inline(always)]
    pub fn u32(self, bytes: &[u8], offset: usize) -> Option<u32> {
        let raw = bytes.get(offset..)?.first_chunk::<4>()?;
        Some(if self.big_endian { u32::from_be_bytes(*raw) } else { u32::from_le_bytes(*raw) })
    }

    /// An unsigned number of 1, 2, 4 or 8 bytes.
    pub fn unsigned(self, bytes: &[u8], offset: usize, width: usize) -> Option<u64> {
        match width {
            1 => bytes.get(offset).map(|b| u64::from(*b)),
            2 => {
                let raw = bytes.get(offset..)?.first_chunk::<2>()?;
                Some(u64::from(if self.big_endian { u16::from_be_bytes(*raw) } else { u16::from_le_bytes(*raw) }))
            }
            4 => self.u32(bytes, offset).map(u64::from),
            8 => self.u64(bytes, offset),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_size_and_byte_order_are_the_machine_s() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let le = Words { long: 8, big_endian: false };
        let be32 = Words { long: 4, big_endian: true };
        assert_eq!(le.long(&bytes, 1), Some(0x0908_0706_0504_0302));
        assert_eq!(be32.long(&bytes, 1), Some(0x0203_0405));
        assert_eq!(
            (be32.unsigned(&bytes, 0, 2), le.unsigned(&bytes, 0, 2), le.unsigned(&bytes, 8, 1)),
            (Some(0x102), Some(0x201), Some(9))
        );
        assert_eq!((le.long(&bytes, 2), le.u32(&bytes, 6), le.unsigned(&bytes, 0, 3)), (None, None, None));
    }
}
