//! A flattened stream seen as the file that it describes, without unpacking it.
//!
//! `makedumpfile -F` and QEMU write it, so that a dump can go through a pipe: a header of 4,096 bytes, then records of
//! offset, length (both 64 bits, most significant byte first) and data, in the order in which they were written; a later
//! record wins over an earlier one. Offset and length -1 end it (`struct makedumpfile_data_header`, makedumpfile.h).

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::size::human;

/// First bytes of a stream, padded with zeros to 16 (`SIG_LEN_MDF`).
pub const SIGNATURE: &[u8; 16] = b"makedumpfile\0\0\0\0";
/// Bytes of the header (`MAX_SIZE_MDF_HEADER`).
pub const HEADER: u64 = 4096;
/// Bytes in front of a record's data.
pub const RECORD: u64 = 16;
/// Offset and length of the end mark.
pub const END: u64 = u64::MAX;
/// Offsets beyond this are damage: the largest file of Linux has 2^63 - 1 bytes.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// A stretch of the file, and where its bytes stand in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    target: u64,
    len: u64,
    at: u64,
}

/// Where the bytes of the file are in the stream.
#[derive(Debug, Default)]
pub struct Index {
    /// ascending, not overlapping
    pieces: Vec<Piece>,
    /// length of the file
    pub len: u64,
    /// the stream ends before its end mark
    pub cut: bool,
    /// what a person should know
    pub warnings: Vec<String>,
}

/// True for the first bytes of a stream.
pub fn is_flattened(head: &[u8]) -> bool {
    head.starts_with(SIGNATURE)
}

impl Index {
    /// Walks over the records. A stream that ends early or goes wrong is known as far as it goes.
    pub fn read(file: &File, name: &str) -> Self {
        let mut index = Self::default();
        let mut at = HEADER;
        let mut sorted = true;
        loop {
            let mut head = [0u8; RECORD as usize];
            let got = read_full(file, at, &mut head);
            let (offset, rest) = head.split_first_chunk::<8>().map_or((0, &[][..]), |(a, b)| (u64::from_be_bytes(*a), b));
            let len = rest.first_chunk().map_or(0, |b| u64::from_be_bytes(*b));
            if got < head.len() {
                index.stop(name, at, "ends without an end mark");
                break;
            }
            if offset == END && len == END {
                let mut more = [0u8; 1];
                if read_full(file, at + RECORD, &mut more) > 0 {
                    index.warnings.push(format!("{name}: bytes behind the end mark of the flattened stream are ignored"));
                }
                break;
            }
            let end = offset.checked_add(len).filter(|end| *end <= OFFSET_MAX && len <= OFFSET_MAX);
            let Some(end) = end else {
                index.stop(name, at, "has a record that makes no sense");
                break;
            };
            let here = at + RECORD;
            let there = file_len(file).map_or(len, |size| size.saturating_sub(here).min(len));
            if there > 0 {
                sorted &= index.pieces.last().is_none_or(|last| last.target + last.len <= offset);
                index.pieces.push(Piece { target: offset, len: there, at: here });
                index.len = index.len.max(end.min(offset + there));
            }
            if there < len {
                index.stop(name, here + there, "ends within a record");
                break;
            }
            at = here + len;
        }
        if !sorted {
            index.sort();
        }
        index
    }

    fn stop(&mut self, name: &str, at: u64, what: &str) {
        self.cut = true;
        self.warnings.push(format!(
            "{name}: the flattened stream {what} at offset {at:#x} ({}): what came before is used; transfer it again for the rest",
            human(at)
        ));
    }

    /// Sorts the pieces by target; of overlapping ones the later in the stream stays.
    fn sort(&mut self) {
        let mut map: BTreeMap<u64, Piece> = BTreeMap::new();
        for piece in self.pieces.drain(..) {
            let end = piece.target + piece.len;
            // The one that begins before may reach into this one, or beyond it.
            let before = map.range(..piece.target).next_back().map(|(_, p)| *p);
            if let Some(old) = before.filter(|old| old.target + old.len > piece.target) {
                map.insert(old.target, Piece { len: piece.target - old.target, ..old });
                if old.target + old.len > end {
                    map.insert(end, Piece { target: end, len: old.target + old.len - end, at: old.at + (end - old.target) });
                }
            }
            while let Some((start, old)) = map.range(piece.target..end).next().map(|(s, p)| (*s, *p)) {
                map.remove(&start);
                if old.target + old.len > end {
                    map.insert(end, Piece { target: end, len: old.target + old.len - end, at: old.at + (end - old.target) });
                }
            }
            map.insert(piece.target, piece);
        }
        self.pieces = map.into_values().collect();
    }

    /// Reads the file that the stream describes; gaps are zeros. Fewer bytes than asked for mean its end.
    pub fn read_at(&self, file: &File, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        let want = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        let Some(buf) = buf.get_mut(..want) else { return Ok(0) };
        let end = offset + want as u64;
        let mut at = offset;
        let from = self.pieces.partition_point(|p| p.target + p.len <= offset);
        for piece in self.pieces.iter().skip(from).take_while(|p| p.target < end) {
            let start = piece.target.max(at);
            let stop = (piece.target + piece.len).min(end);
            let range = |from: u64, to: u64| (from - offset) as usize..(to - offset) as usize;
            buf.get_mut(range(at, start)).unwrap_or_default().fill(0);
            let room = buf.get_mut(range(start, stop)).unwrap_or_default();
            let n = file.read_at(room, piece.at + (start - piece.target))?;
            if n < room.len() {
                // A short read is no end: the caller asks again.
                return Ok((start - offset) as usize + n);
            }
            at = stop;
        }
        buf.get_mut((at - offset) as usize..).unwrap_or_default().fill(0);
        Ok(want)
    }

    /// The stretches of the file in ascending order: where they are in it, their length, where they are in the stream.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        self.pieces.iter().map(|p| (p.target, p.len, p.at))
    }
}

fn file_len(file: &File) -> Option<u64> {
    file.metadata().ok().filter(|m| m.is_file()).map(|m| m.len())
}

fn read_full(file: &File, offset: u64, buf: &mut [u8]) -> usize {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|r| !r.is_empty()) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn stream(records: &[(u64, &[u8])], end: bool, behind: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        let mut head = vec![0u8; HEADER as usize];
        head[..16].copy_from_slice(SIGNATURE);
        file.write_all(&head).unwrap();
        for (offset, data) in records {
            file.write_all(&offset.to_be_bytes()).unwrap();
            file.write_all(&(data.len() as u64).to_be_bytes()).unwrap();
            file.write_all(data).unwrap();
        }
        if end {
            file.write_all(&[0xff; 16]).unwrap();
        }
        file.write_all(behind).unwrap();
        file
    }

    fn text(file: &File) -> (String, Index) {
        let index = Index::read(file, "x");
        let mut buf = vec![b'?'; index.len as usize + 8];
        let n = index.read_at(file, 0, &mut buf).unwrap();
        assert_eq!(n as u64, index.len);
        buf.truncate(n);
        (String::from_utf8(buf).unwrap().replace('\0', "."), index)
    }

    #[test]
    fn later_records_win_wherever_they_lie() {
        let whole = |records: &[(u64, &[u8])]| text(&stream(records, true, b"")).0;
        assert_eq!(whole(&[(0, b"abc"), (3, b"def")]), "abcdef");
        assert_eq!(whole(&[(6, b"ghi"), (0, b"abc")]), "abc...ghi");
        assert_eq!(whole(&[(0, b"abcdefgh"), (2, b"XY")]), "abXYefgh");
        assert_eq!(whole(&[(2, b"XY"), (0, b"abcdefgh")]), "abcdefgh");
        assert_eq!(whole(&[(0, b"aaaa"), (4, b"bbbb"), (2, b"XXXX"), (3, b"y")]), "aaXyXXbb");
        assert_eq!(whole(&[(0, b"aa"), (2, b"bb"), (4, b"cc"), (1, b"XXXX")]), "aXXXXc");
    }

    #[test]
    fn a_stream_that_is_cut_is_known_as_far_as_it_goes() {
        let (read, index) = text(&stream(&[(0, b"abc"), (3, b"def")], false, b""));
        assert_eq!((read.as_str(), index.cut), ("abcdef", true));
        let (read, index) = text(&stream(&[(0, b"abc")], false, &[0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 9, b'd', b'e']));
        assert_eq!((read.as_str(), index.cut), ("abcde", true));
        let absurd = [0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        let (read, index) = text(&stream(&[(0, b"abc")], false, &absurd));
        assert_eq!((read.as_str(), index.cut), ("abc", true));
        let (read, index) = text(&stream(&[(0, b"abc")], true, b"garbage"));
        assert_eq!((read.as_str(), index.cut, index.warnings.len()), ("abc", false, 1));
    }

    #[test]
    fn reads_begin_and_end_anywhere() {
        let file = stream(&[(4, b"efgh"), (0, b"ab")], true, b"");
        let index = Index::read(&file, "x");
        for from in 0..10usize {
            for len in 0..10usize {
                let mut buf = vec![b'?'; len];
                let n = index.read_at(&file, from as u64, &mut buf).unwrap();
                let whole = b"ab\0\0efgh";
                let expected = whole.get(from..).unwrap_or_default();
                assert_eq!(&buf[..n], &expected[..len.min(expected.len())]);
            }
        }
    }
}
