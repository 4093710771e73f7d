//! Numbers in bytes of either byte order.

use coresift_sdk::{Result, Source};

/// Bytes read at a time, so that a false length costs no more memory than the file has bytes.
const CHUNK: usize = 1 << 20;

/// The eight bytes at `at`; `None` behind the end.
pub fn u64_at(bytes: &[u8], at: usize, big_endian: bool) -> Option<u64> {
    let b = bytes.get(at..at.checked_add(8)?)?.try_into().ok()?;
    Some(if big_endian { u64::from_be_bytes(b) } else { u64::from_le_bytes(b) })
}

/// The four bytes at `at`; `None` behind the end.
pub fn u32_at(bytes: &[u8], at: usize, big_endian: bool) -> Option<u32> {
    let b = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
    Some(if big_endian { u32::from_be_bytes(b) } else { u32::from_le_bytes(b) })
}

/// The two bytes at `at`, little endian; `None` behind the end.
pub fn u16_le(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

/// Up to `len` bytes at `offset`, fewer if the file ends before. Bound `len` before: it may come from the input.
///
/// # Errors
/// A read failed.
pub fn read_up_to(source: &Source, offset: u64, len: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for_each_chunk(source, offset, len, 1, |chunk| bytes.extend_from_slice(chunk))?;
    Ok(bytes)
}

/// Calls `visit` with the bytes at `offset`, in pieces of a multiple of `unit` bytes; an incomplete unit at the end of the
/// file is left out. Returns how many bytes there were.
///
/// # Errors
/// A read failed.
pub fn for_each_chunk(source: &Source, offset: u64, len: u64, unit: usize, mut visit: impl FnMut(&[u8])) -> Result<u64> {
    let step = (CHUNK / unit.max(1)).max(1) * unit.max(1);
    let mut buffer = vec![0; len.min(step as u64) as usize];
    let mut done = 0;
    while done < len {
        let want = (len - done).min(step as u64) as usize;
        let Some(at) = offset.checked_add(done) else { break };
        let room = buffer.get_mut(..want).unwrap_or_default();
        let got = source.read_at(at, room)?;
        let whole = got - got % unit.max(1);
        visit(buffer.get(..whole).unwrap_or_default());
        done += whole as u64;
        if got < want || whole == 0 {
            break;
        }
    }
    Ok(done)
}
