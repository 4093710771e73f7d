//! Physical ranges: by number, or by the name of a resource in a saved `/proc/iomem`.

use std::ops::Range;

use coresift_sdk::{Config, Error, ErrorKind, Result, Run};

/// How ranges are written, for errors.
const FORMS: &str = "write 0x1000-0x1fff (last byte included), 0x1000+64KiB, or a name of /proc/iomem such as \"Crash kernel\"";

/// An error about one entry of a setting.
pub fn setting_error(key: &str, text: &str, e: &Error) -> Error {
    Error::new(ErrorKind::Config, format!("key `{key}`: \"{text}\": {}", e.message)).hint(e.hint.clone())
}

fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, message.into()).hint(FORMS)
}

/// The pages that lie wholly inside a range of bytes.
pub fn pages_inside(range: Range<u64>, page_shift: u32) -> Option<Run> {
    let (first, end) = (range.start.div_ceil(1 << page_shift), range.end >> page_shift);
    (first < end).then(|| Run { first_pfn: first, pages: end - first })
}

/// The pages that a range of bytes touches.
pub fn pages_touched(range: Range<u64>, page_shift: u32) -> Run {
    let (first, end) = (range.start >> page_shift, range.end.div_ceil(1 << page_shift));
    Run { first_pfn: first, pages: end.saturating_sub(first) }
}

/// A saved `/proc/iomem`, read when a name asks for it.
pub struct Iomem {
    path: String,
    lines: Option<Vec<(String, Range<u64>)>>,
}

impl Iomem {
    /// The file at this path; empty = there is none.
    pub fn new(path: &str) -> Self {
        Self { path: path.to_owned(), lines: None }
    }

    /// All ranges that a setting names.
    ///
    /// # Errors
    /// One of them makes no sense; the message has the setting and the entry.
    pub fn ranges(&mut self, config: &Config, key: &str) -> Result<Vec<Range<u64>>> {
        let mut all = Vec::new();
        for text in config.list(key)? {
            let found = match by_number(text) {
                Some(range) => range.map(|r| vec![r]),
                None => self.by_name(text),
            };
            all.extend(found.map_err(|e| setting_error(key, text, &e))?);
        }
        Ok(all)
    }

    fn by_name(&mut self, name: &str) -> Result<Vec<Range<u64>>> {
        if self.path.is_empty() {
            let hint = format!("save /proc/iomem as root and give it: iomem = \"/path/to/iomem\"; or {FORMS}");
            return Err(Error::new(ErrorKind::Config, "is no range, and for a name the key `iomem` is missing").hint(hint));
        }
        if self.lines.is_none() {
            self.lines = Some(read(&self.path)?);
        }
        let lines = self.lines.as_deref().unwrap_or_default();
        let found: Vec<_> = lines.iter().filter(|(n, _)| n == name).map(|(_, range)| range.clone()).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let mut names: Vec<_> = lines.iter().map(|(n, _)| n.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        Err(Error::new(ErrorKind::Config, format!("{} has no such name", self.path)).hint(format!("it has: {}", names.join(", "))))
    }
}

/// Lines of `START-END : NAME`, indented where one lies inside another (Documentation/filesystems/proc.rst of Linux).
fn read(path: &str) -> Result<Vec<(String, Range<u64>)>> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::new(ErrorKind::Config, format!("cannot read {path}: {e}")).hint("save /proc/iomem as root"))?;
    let line = |line: &str| {
        let (range, name) = line.trim().split_once(" : ")?;
        let (start, last) = range.split_once('-')?;
        let hex = |t: &str| u64::from_str_radix(t, 16).ok();
        Some((name.to_owned(), hex(start)?..hex(last)?.saturating_add(1)))
    };
    let lines: Vec<_> = text.lines().filter_map(line).collect();
    if !lines.is_empty() && lines.iter().all(|(_, range)| *range == (0..1)) {
        let message = format!("{path} has only zeros for addresses: it was not saved by root");
        return Err(Error::new(ErrorKind::Config, message).hint("save it again: sudo cat /proc/iomem > FILE"));
    }
    Ok(lines)
}

/// A range in numbers; `None` if the text does not begin like a number and so is a name.
fn by_number(text: &str) -> Option<Result<Range<u64>>> {
    let text = text.trim();
    let split = text.split_once('-').map(|(a, b)| (a, b, false)).or_else(|| text.split_once('+').map(|(a, b)| (a, b, true)));
    let Some((start, rest, is_length)) = split.filter(|_| text.starts_with(|c: char| c.is_ascii_digit())) else {
        return text.starts_with(|c: char| c.is_ascii_digit()).then(|| Err(wrong("is no range")));
    };
    let range = || {
        let start = number(start.trim()).ok_or_else(|| wrong(format!("`{}` is no address", start.trim())))?;
        let bad = || wrong(format!("`{}` is no {}", rest.trim(), if is_length { "length" } else { "address" }));
        if is_length {
            let len = length(rest.trim()).ok_or_else(bad)?;
            return start.checked_add(len).map(|end| start..end).ok_or_else(|| wrong("ends beyond 64 bits"));
        }
        let last = number(rest.trim()).ok_or_else(bad)?;
        if last < start { Err(wrong("ends before it begins")) } else { Ok(start..last.saturating_add(1)) }
    };
    Some(range())
}

/// A number, hexadecimal with `0x`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A number of bytes, also with KiB, MiB, GiB, TiB.
fn length(text: &str) -> Option<u64> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    match units.into_iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift))) {
        Some((count, shift)) => number(count.trim())?.checked_mul(1 << shift),
        None => number(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_in_all_their_forms() {
        let of = |text| by_number(text).map(|r| r.unwrap());
        assert_eq!(of("0x100000-0x1fffff"), Some(0x10_0000..0x20_0000));
        assert_eq!(of("0x100000+1MiB"), Some(0x10_0000..0x20_0000));
        assert_eq!(of("4096 + 4096"), Some(4096..8192));
        assert_eq!(of("Kernel code"), None);
        assert_eq!(of("System RAM"), None);
    }

    #[test]
    fn names_are_found_wherever_they_are_nested() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "00001000-0009ffff : System RAM\n00100000-07ffffff : System RAM\n  01000000-01ffffff : Kernel code\n";
        std::fs::write(file.path(), text).unwrap();
        let mut iomem = Iomem::new(file.path().to_str().unwrap());
        assert_eq!(iomem.by_name("System RAM").unwrap(), [0x1000..0xa_0000, 0x10_0000..0x800_0000]);
        assert_eq!(iomem.by_name("Kernel code").unwrap().first(), Some(&(0x100_0000..0x200_0000)));
        let e = iomem.by_name("Kernel cod").err().unwrap();
        assert!(e.hint.contains("Kernel code, System RAM"), "{}", e.hint);
        std::fs::write(file.path(), "00000000-00000000 : System RAM\n").unwrap();
        let e = Iomem::new(file.path().to_str().unwrap()).by_name("System RAM").err().unwrap();
        assert!(e.message.contains("only zeros"), "{}", e.message);
    }
}
