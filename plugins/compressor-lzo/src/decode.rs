//! LZO1X decoder, for streams that nobody vouches for.
//!
//! Written from the description of the byte stream in Linux `Documentation/staging/lzo.rst` (version 0, without the run
//! length extension of zram). [`crate::encode`] has a table of the instructions. What it leaves out is M1: an instruction
//! below 16 is
//!
//! - after no literals: a run of 4 or more literals,
//! - after 1 to 3 literals: `0000DDSS HHHHHHHH`, two bytes from a distance of 1..=0x400,
//! - after a run of 4 or more literals: the same bits, three bytes from a distance of 0x801..=0xc00.
//!
//! It takes what liblzo2's `lzo1x_decompress_safe` takes, and nothing else (tests/liblzo2.rs): so any length bits in the end
//! marker, but no byte behind it.

use std::fmt;

/// Why a stream is not LZO1X.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The stream ends before its end marker.
    Truncated,
    /// Bytes follow the end marker.
    TrailingBytes,
    /// The data is longer than the room for it.
    TooLong,
    /// A match begins before the data.
    BadDistance,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "the LZO stream ends before its end marker",
            Self::TrailingBytes => "bytes follow the end marker of the LZO stream",
            Self::TooLong => "the LZO stream holds more data than expected",
            Self::BadDistance => "a match of the LZO stream begins before the data",
        })
    }
}

impl std::error::Error for Error {}

/// The fast path writes at most this far ahead: a match of 33 bytes in steps of 8, then 4 literals.
const ROOM: usize = 48;
/// The "state" after a run of 4 or more literals.
const LONG_RUN: usize = 4;

/// Decompresses `src` into `dst` and gives the length of the data.
///
/// `dst` beyond the data may be overwritten.
///
/// # Errors
/// The stream is damaged, or longer than `dst`.
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Result<usize, Error> {
    let mut input = Input { rest: src };
    let mut out = Output { dst, len: 0 };
    // How many literals the last instruction copied: 0 to 3, or LONG_RUN.
    let mut state = 0;
    if let Some((&first @ 18.., rest)) = src.split_first() {
        input.rest = rest;
        let run = usize::from(first) - 17;
        out.literals(&mut input, run)?;
        state = run.min(LONG_RUN);
    }
    loop {
        if let Some(literals) = near_match(&mut input, &mut out)? {
            state = literals;
            continue;
        }
        let code = usize::from(input.byte()?);
        let (distance, len, literals) = match code {
            0..16 if state == 0 => {
                let run = input.length(code, 15, 3)?;
                out.literals(&mut input, run)?;
                state = LONG_RUN;
                continue;
            }
            0..16 => {
                let (base, len) = if state == LONG_RUN { (0x801, 3) } else { (1, 2) };
                (base + (code >> 2) + (usize::from(input.byte()?) << 2), len, code & 3)
            }
            16..32 => {
                let len = input.length(code & 7, 7, 2)?;
                let operand = input.le16()?;
                let distance = ((code & 8) << 11) + (operand >> 2);
                if distance == 0 {
                    return if input.rest.is_empty() { Ok(out.len) } else { Err(Error::TrailingBytes) };
                }
                (0x4000 + distance, len, operand & 3)
            }
            32..64 => {
                let len = input.length(code & 31, 31, 2)?;
                let operand = input.le16()?;
                (1 + (operand >> 2), len, operand & 3)
            }
            _ => (1 + ((code >> 2) & 7) + (usize::from(input.byte()?) << 3), 1 + (code >> 5), code & 3),
        };
        out.matched(distance, len)?;
        out.literals(&mut input, literals)?;
        state = literals;
    }
}

/// The fast path: a whole M2 or short M3 with its literals, from one load of eight bytes. Does nothing and gives `None` on
/// any other instruction, and near the end of the input or the output; else gives the number of literals.
#[inline(always)]
fn near_match(input: &mut Input, out: &mut Output) -> Result<Option<usize>, Error> {
    let Some(word) = input.rest.first_chunk().copied().map(u64::from_le_bytes) else { return Ok(None) };
    let code = (word & 0xff) as usize;
    let operand = ((word >> 8) & 0xffff) as usize;
    let (distance, len, literals, used) = if code >= 64 {
        (1 + ((code >> 2) & 7) + ((operand & 0xff) << 3), 1 + (code >> 5), code & 3, 2)
    } else if code > 32 {
        (1 + (operand >> 2), 2 + (code & 31), operand & 3, 3)
    } else {
        return Ok(None);
    };
    if out.dst.get(out.len..out.len + ROOM).is_none() {
        return Ok(None);
    }
    let Some(from) = out.len.checked_sub(distance) else { return Err(Error::BadDistance) };
    let end = out.len + len;
    if distance >= 8 {
        let mut moved = 0;
        while moved < len {
            let bytes = out.load64(from + moved);
            out.store(out.len + moved, bytes);
            moved += 8;
        }
    } else {
        // The eight bytes at `from` reach into what is not written yet: make them from the `distance` bytes that are.
        let (pattern, step) = repeat(out.load64(from), distance);
        let mut at = out.len;
        while at < end {
            out.store(at, pattern.to_le_bytes());
            at += step;
        }
    }
    out.store(end, ((word >> (8 * used)) as u32).to_le_bytes());
    out.len = end + literals;
    input.rest = input.rest.get(used + literals..).unwrap_or_default();
    Ok(Some(literals))
}

/// Repeats the first `distance` (1..=7) bytes of `bytes` over eight bytes; also the largest multiple of `distance` up to 8.
#[inline(always)]
fn repeat(bytes: [u8; 8], distance: usize) -> (u64, usize) {
    let bits = 8 * distance as u32;
    let mut pattern = u64::from_le_bytes(bytes) & ((1 << bits) - 1);
    let mut width = bits;
    while width < u64::BITS {
        pattern |= pattern << width;
        width *= 2;
    }
    (pattern, 8 - 8 % distance)
}

struct Input<'a> {
    rest: &'a [u8],
}

impl Input<'_> {
    #[inline(always)]
    fn byte(&mut self) -> Result<u8, Error> {
        let (&byte, rest) = self.rest.split_first().ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(byte)
    }

    #[inline(always)]
    fn le16(&mut self) -> Result<usize, Error> {
        let (&bytes, rest) = self.rest.split_first_chunk().ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(usize::from(u16::from_le_bytes(bytes)))
    }

    /// A length, `base` more than its bits in the instruction; when these are 0, it is above `max`, the largest that they
    /// can say. Saturates (17 MB of zero bytes say more than 32 bits hold): longer than any output all the same.
    #[inline(always)]
    fn length(&mut self, bits: usize, max: usize, base: usize) -> Result<usize, Error> {
        if bits != 0 {
            return Ok(bits + base);
        }
        let mut length = max + base;
        loop {
            match self.byte()? {
                0 => length = length.saturating_add(255),
                last => return Ok(length.saturating_add(usize::from(last))),
            }
        }
    }
}

struct Output<'a> {
    dst: &'a mut [u8],
    len: usize,
}

impl Output<'_> {
    /// The eight bytes at `at`, which the caller knows to be inside.
    #[inline(always)]
    fn load64(&self, at: usize) -> [u8; 8] {
        self.dst.get(at..at + 8).and_then(|bytes| bytes.first_chunk()).copied().unwrap_or_default()
    }

    /// Writes at `at`, which the caller knows to be inside.
    #[inline(always)]
    fn store<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        if let Some(room) = self.dst.get_mut(at..at + N) {
            room.copy_from_slice(&bytes);
        }
    }

    /// Copies `n` bytes from the input.
    #[inline(always)]
    fn literals(&mut self, input: &mut Input, n: usize) -> Result<(), Error> {
        if n <= 16
            && let Some(bytes) = input.rest.first_chunk::<16>()
            && let Some(room) = self.dst.get_mut(self.len..self.len + 16)
        {
            room.copy_from_slice(bytes);
            input.rest = input.rest.get(n..).unwrap_or_default();
        } else {
            let (bytes, rest) = input.rest.split_at_checked(n).ok_or(Error::Truncated)?;
            let room = self.dst.get_mut(self.len..).and_then(|room| room.get_mut(..n)).ok_or(Error::TooLong)?;
            room.copy_from_slice(bytes);
            input.rest = rest;
        }
        self.len += n;
        Ok(())
    }

    /// Copies `len` bytes from `distance` before the end of the data.
    fn matched(&mut self, distance: usize, mut len: usize) -> Result<(), Error> {
        let from = self.len.checked_sub(distance).ok_or(Error::BadDistance)?;
        if len > self.dst.len() - self.len {
            return Err(Error::TooLong);
        }
        // What lies between `from` and the end repeats with the period `distance`: each pass can copy all of it.
        while len > 0 {
            let (data, room) = self.dst.get_mut(from..).and_then(|dst| dst.split_at_mut_checked(self.len - from)).ok_or(Error::TooLong)?;
            let n = len.min(data.len());
            let (Some(room), Some(data)) = (room.get_mut(..n), data.get(..n)) else { return Err(Error::TooLong) };
            room.copy_from_slice(data);
            self.len += n;
            len -= n;
        }
        Ok(())
    }
}
