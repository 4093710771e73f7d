//! LZO1X encoder.
//!
//! Written from the description of the byte stream in Linux `Documentation/staging/lzo.rst`. A stream is a row of
//! instructions; each copies a match from the output written so far, then 0 to 3 literal bytes:
//!
//! | bits, then operand bytes              | length             | distance            | name |
//! |---------------------------------------|--------------------|---------------------|------|
//! | `1LLDDDSS` / `01LDDDSS`, `HHHHHHHH`   | 3..=8              | 1..=0x800           | M2   |
//! | `001LLLLL`, (more), LE16 `D << 2 \| S` | 2 + L, or 33 + more | 1..=0x4000         | M3   |
//! | `0001HLLL`, (more), LE16 `D << 2 \| S` | 2 + L, or 9 + more | 0x4001..=0xbfff     | M4   |
//! | `0000LLLL`, (more), literals          | 3 + L, or 18 + more | a long literal run | -    |
//!
//! - `S` is the number of literals that follow, so a run of 1 to 3 literals needs no byte of its own.
//! - A length of 0 in the `L` bits says that more bytes follow: each zero byte counts 255, the first non-zero byte its value.
//! - The first byte of a stream may be 17 + n: n literals.
//! - The end is an M4 whose distance bits are all 0: `11 00 00`.
//!
//! M1 (two or three bytes near a literal run) is left out: it saves too little to search for.
//!
//! The search is greedy, with one candidate per hash of four bytes. The time goes into the chain *position → hash → candidate
//! → match length → next position*, so that chain is kept short; clearing the table for every page is cheaper than telling
//! stale entries apart, because a branch on "stale" is mispredicted on real pages (measured: 10 % slower).

/// Positions fit `u16`, and no distance can exceed 0xbfff, the largest that M4 can say.
const BLOCK_LEN: usize = 0xc000;
const TABLE_LEN: usize = 1 << 14;
/// The step grows by one for every 32 bytes without a match: data that does not compress is passed over quickly.
const SKIP_SHIFT: usize = 5;
/// The search reads eight bytes at a time, so the last bytes of a block are literals.
const READ: usize = size_of::<u64>();
/// A short sequence is written into room of this fixed size, and only then counted.
/// It has the last two bytes of the previous instruction, a run byte, 16 literals and an instruction of 4 bytes.
const ROOM: usize = 32;
const SHORT_RUN: usize = 16;

const M2_MAX_DISTANCE: u32 = 0x800;
const M2_MAX_LEN: u32 = 8;
const M3_MAX_DISTANCE: u32 = 0x4000;
const M3_MAX_SHORT_LEN: u32 = 33;
const M4_MAX_SHORT_LEN: u32 = 9;
const M3_TAG: u32 = 0x20;
const M4_TAG: u32 = 0x10;
const END: [u8; 3] = [0x11, 0, 0];

/// The longest stream that `n` bytes can become: literals only, in the worst case.
pub const fn max_compressed_len(n: usize) -> usize {
    // One run byte, one more length byte for each 255 literals begun, the end marker.
    n + n / 255 + 2 + END.len()
}

/// An encoder for pages; it keeps its match table from page to page.
pub struct Encoder {
    table: Box<[u16; TABLE_LEN]>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// Makes an encoder.
    pub fn new() -> Self {
        Self { table: Box::new([0; TABLE_LEN]) }
    }

    /// Compresses `src` into `dst` and gives the stream's length; `None` when it does not fit.
    ///
    /// The stream depends on `src` alone. `dst` beyond the stream may be overwritten.
    pub fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let mut out = Output { dst, len: 0 };
        let mut done = 0;
        let mut start = 0;
        while start < src.len() {
            let block = src.get(start..src.len().min(start + BLOCK_LEN))?;
            let search = Search { src, block, start };
            // A smaller table is cleared faster, and stays in the L1 cache beside the page.
            done = match block.len() {
                0..=0x1000 => search.run::<12>(&mut self.table, done, &mut out)?,
                0x1001..=0x8000 => search.run::<13>(&mut self.table, done, &mut out)?,
                _ => search.run::<14>(&mut self.table, done, &mut out)?,
            };
            start += block.len();
            // `sequence` may take a short run from the block only: let the next block begin with it.
            if start < src.len() && start - done <= SHORT_RUN {
                start = done;
            }
        }
        out.literals(src.get(done..)?)?;
        out.bytes(&END)?;
        Some(out.len)
    }
}

/// The search for matches in `block`, which is at `start` in `src`.
#[derive(Clone, Copy)]
struct Search<'a> {
    src: &'a [u8],
    block: &'a [u8],
    start: usize,
}

impl Search<'_> {
    /// Writes sequences (literals, then a match) to `out`. `src` is written up to `done` before the call, and up to the
    /// result after it.
    #[inline(always)]
    fn run<const BITS: u32>(self, table: &mut [u16; TABLE_LEN], mut done: usize, out: &mut Output) -> Option<usize> {
        let Self { block, start, .. } = self;
        // Entries of 0 are right without more ado: they say "position 0", and a candidate is always compared.
        table.get_mut(..1 << BITS)?.fill(0);
        let mut at = 1;
        let mut anchor = 0;
        loop {
            let (candidate, diff) = loop {
                let Some(here) = load64(block, at) else { return Some(done) };
                let (candidate, diff) = probe::<BITS>(table, block, at, here as u32, here);
                if diff as u32 == 0 {
                    break (candidate, diff);
                }
                at += 1 + ((at - anchor) >> SKIP_SHIFT);
            };
            let (len, mut head) = match_len(block, candidate, at, diff);
            self.sequence(out, done, at, at - candidate, len)?;
            at += len;
            // Three of four matches follow on a match directly. This loop of their own needs no work for literals, and
            // has the four bytes to hash (`head`) before the load at the new position would give them.
            loop {
                let Some(here) = load64(block, at) else { return Some(start + at) };
                let (candidate, diff) = probe::<BITS>(table, block, at, head, here);
                if diff as u32 != 0 {
                    break;
                }
                let len;
                (len, head) = match_len(block, candidate, at, diff);
                out.matched(at - candidate, len)?;
                at += len;
            }
            done = start + at;
            anchor = at;
            at += 1;
        }
    }

    /// Writes the literals from `done` on and the match at `at`.
    #[inline(always)]
    fn sequence(&self, out: &mut Output, done: usize, at: usize, distance: usize, len: usize) -> Option<()> {
        let run = self.start + at - done;
        // Both cases of a run up to 16 (in the previous instruction, or with a byte of its own) are written without a
        // branch, as is the match: their lengths are random to the branch predictor.
        if run <= SHORT_RUN
            && let Some(literals) = load::<SHORT_RUN>(self.block, at - run)
            && let Some(previous) = out.len.checked_sub(2)
            && let Some(room) = out.dst.get_mut(previous..previous + ROOM).and_then(|room| room.first_chunk_mut::<ROOM>())
        {
            let in_previous = run <= 3;
            room[0] |= if in_previous { run as u8 } else { 0 };
            room[2] = run.wrapping_sub(3) as u8;
            let literals_at = 3 - usize::from(in_previous);
            room.get_mut(literals_at..literals_at + SHORT_RUN)?.copy_from_slice(&literals);
            let code_at = literals_at + run;
            if let Some((code, code_len)) = instruction(distance, len) {
                room.get_mut(code_at..code_at + 4)?.copy_from_slice(&code.to_le_bytes());
                out.len = previous + code_at + code_len;
                return Some(());
            }
            out.len = previous + code_at;
            return out.matched_slowly(distance, len);
        }
        out.literals(self.src.get(done..done + run)?)?;
        out.matched_slowly(distance, len)
    }
}

#[inline(always)]
fn load<const N: usize>(block: &[u8], at: usize) -> Option<[u8; N]> {
    block.get(at..at + N).and_then(|bytes| bytes.first_chunk()).copied()
}

#[inline(always)]
fn load64(block: &[u8], at: usize) -> Option<u64> {
    load(block, at).map(u64::from_le_bytes)
}

/// Puts `at` into the table under its four bytes `head`. Gives the position that it replaces, and the bits in which the
/// eight bytes there differ from `here`.
#[inline(always)]
fn probe<const BITS: u32>(table: &mut [u16; TABLE_LEN], block: &[u8], at: usize, head: u32, here: u64) -> (usize, u64) {
    const NO_MATCH: (usize, u64) = (0, u64::MAX);
    // Fibonacci hashing: 2^32 divided by the golden ratio, and the top bits.
    let Some(slot) = table.get_mut((head.wrapping_mul(0x9e37_79b1) >> (32 - BITS)) as usize) else { return NO_MATCH };
    let candidate = usize::from(*slot);
    *slot = at as u16;
    load64(block, candidate).map_or(NO_MATCH, |there| (candidate, here ^ there))
}

/// The length of the match of `at` with `candidate`, whose first eight bytes differ in the bits `diff`, and the four bytes
/// behind it (valid where a search can go on: with eight bytes left in the block).
#[inline(always)]
fn match_len(block: &[u8], candidate: usize, at: usize, diff: u64) -> (usize, u32) {
    if diff != 0 {
        let bits = diff.trailing_zeros();
        // 4 to 7 bytes are equal, as the caller has seen: shift by 0 to 3 bytes.
        let head = (load64(block, at + 4).unwrap_or(0) >> (bits & 0x18)) as u32;
        return ((bits / 8) as usize, head);
    }
    let mut len = READ;
    while let (Some(here), Some(there)) = (load64(block, at + len), load64(block, candidate + len)) {
        let diff = here ^ there;
        if diff != 0 {
            len += (diff.trailing_zeros() / 8) as usize;
            return (len, load(block, at + len).map_or(0, u32::from_le_bytes));
        }
        len += READ;
    }
    // The last bytes of the block: no search goes on behind them.
    while let (Some(here), Some(there)) = (block.get(at + len), block.get(candidate + len))
        && here == there
    {
        len += 1;
    }
    (len, 0)
}

/// The match instruction (with no literals yet) as little-endian bytes, and how many they are; `None` when it is longer
/// than that.
#[inline(always)]
fn instruction(distance: usize, len: usize) -> Option<(u32, usize)> {
    let (distance, len) = (distance as u32, len as u32);
    let d = distance.wrapping_sub(1);
    if len <= M3_MAX_SHORT_LEN && distance <= M3_MAX_DISTANCE {
        let is_m2 = (distance <= M2_MAX_DISTANCE) & (len <= M2_MAX_LEN);
        let m2 = ((len - 1) << 5) | ((d & 7) << 2) | ((d >> 3) << 8);
        let m3 = M3_TAG | (len - 2) | (d << 10);
        let mask = u32::from(is_m2).wrapping_neg();
        return Some(((m2 & mask) | (m3 & !mask), 3 - usize::from(is_m2)));
    }
    let (tag, max_short_len, d) = if distance <= M3_MAX_DISTANCE {
        (M3_TAG, M3_MAX_SHORT_LEN, d)
    } else {
        (M4_TAG | ((distance >> 15) << 3), M4_MAX_SHORT_LEN, distance & 0x3fff)
    };
    if len <= max_short_len {
        Some((tag | (len - 2) | (d << 10), 3))
    } else if len - max_short_len <= 255 {
        Some((tag | ((len - max_short_len) << 8) | (d << 18), 4))
    } else {
        None
    }
}

struct Output<'a> {
    dst: &'a mut [u8],
    len: usize,
}

impl Output<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> Option<()> {
        self.dst.get_mut(self.len..)?.get_mut(..bytes.len())?.copy_from_slice(bytes);
        self.len += bytes.len();
        Some(())
    }

    /// The bytes that carry a length which is `more` (at least 1) above what the instruction's own bits can say.
    fn more(&mut self, more: usize) -> Option<()> {
        let zeros = (more - 1) / 255;
        self.dst.get_mut(self.len..)?.get_mut(..zeros)?.fill(0);
        self.len += zeros;
        self.bytes(&[(more - zeros * 255) as u8])
    }

    /// A run of literals of any length.
    fn literals(&mut self, run: &[u8]) -> Option<()> {
        let n = run.len();
        match n {
            0 => return Some(()),
            1..=238 if self.len == 0 => self.bytes(&[(17 + n) as u8])?,
            // The count goes into the previous instruction: its last byte but one in every form.
            1..=3 => *self.dst.get_mut(self.len.checked_sub(2)?)? |= n as u8,
            4..=18 => self.bytes(&[(n - 3) as u8])?,
            _ => {
                self.bytes(&[0])?;
                self.more(n - 18)?;
            }
        }
        self.bytes(run)
    }

    /// A match of any length.
    #[inline(always)]
    fn matched(&mut self, distance: usize, len: usize) -> Option<()> {
        if let Some(room) = self.dst.get_mut(self.len..self.len + 4)
            && let Some((code, code_len)) = instruction(distance, len)
        {
            room.copy_from_slice(&code.to_le_bytes());
            self.len += code_len;
            return Some(());
        }
        self.matched_slowly(distance, len)
    }

    /// The same for a match that is very long, or at the very end of the room.
    #[inline(never)]
    fn matched_slowly(&mut self, distance: usize, len: usize) -> Option<()> {
        if let Some((code, code_len)) = instruction(distance, len) {
            return self.bytes(code.to_le_bytes().get(..code_len)?);
        }
        // The same instruction with the shortest length that needs more bytes has the right tag and distance.
        let max_short_len = if distance <= M3_MAX_DISTANCE as usize { M3_MAX_SHORT_LEN } else { M4_MAX_SHORT_LEN } as usize;
        let (code, _) = instruction(distance, max_short_len + 1)?;
        let [tag, _, low, high] = code.to_le_bytes();
        self.bytes(&[tag])?;
        self.more(len - max_short_len)?;
        self.bytes(&[low, high])
    }
}
