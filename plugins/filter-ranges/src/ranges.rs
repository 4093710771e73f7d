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
        let (name, lines) = (name.trim(), self.lines.as_deref().unwrap_or_default());
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
        Some((name.to_owned(), digits_of(start, 16)?..digits_of(last, 16)?.saturating_add(1)))
    };
    let lines: Vec<_> = text.lines().filter_map(line).collect();
    if lines.is_empty() {
        let message = format!("{path} has no line such as `00100000-07ffffff : System RAM`");
        return Err(Error::new(ErrorKind::Config, message).hint("save it again: sudo cat /proc/iomem > FILE"));
    }
    if lines.iter().all(|(_, range)| *range == (0..1)) {
        let message = format!("{path} has only zeros for addresses: it was not saved by root");
        return Err(Error::new(ErrorKind::Config, message).hint("save it again: sudo cat /proc/iomem > FILE"));
    }
    Ok(lines)
}

/// A range in numbers; `None` if the text does not read like one and so is a name: that of a PCI device is 0000:00:02.0.
fn by_number(text: &str) -> Option<Result<Range<u64>>> {
    let text = text.trim();
    let Some(at) = text.find(['-', '+']) else {
        let is_number = text.starts_with("0x") || (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()));
        return is_number.then(|| Err(wrong("is a number and no range")));
    };
    let (start, rest) = text.split_at(at);
    let (start, is_length, rest) = (start.trim(), rest.starts_with('+'), rest.get(1..).unwrap_or_default().trim());
    let digits = start.strip_prefix("0x").unwrap_or(start);
    let is_number = !start.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    (is_number || start.starts_with("0x")).then(|| bytes_of(start, rest, is_length))
}

/// The bytes from an address on, up to a last one or for a length.
fn bytes_of(start: &str, rest: &str, is_length: bool) -> Result<Range<u64>> {
    let start = address(start)?;
    if is_length {
        return match length(rest).ok_or_else(|| wrong(format!("`{rest}` is no length")))? {
            0 => Err(wrong("is empty")),
            len => start.checked_add(len).map(|end| start..end).ok_or_else(|| wrong("ends beyond 64 bits")),
        };
    }
    let last = address(rest)?;
    if last < start { Err(wrong("ends before it begins")) } else { Ok(start..last.saturating_add(1)) }
}

/// An address. It must begin with `0x`: `/proc/iomem` writes hexadecimal numbers without it, and one that is copied from
/// there would else be another place, and its pages lost.
fn address(text: &str) -> Result<u64> {
    let Some(digits) = text.strip_prefix("0x") else {
        return Err(wrong(format!("`{text}` is no address: it must begin with 0x")));
    };
    digits_of(digits, 16).ok_or_else(|| wrong(format!("`{text}` is no address")))
}

/// A number of digits alone: the standard library also takes a sign.
fn digits_of(text: &str, radix: u32) -> Option<u64> {
    u64::from_str_radix(text, radix).ok().filter(|_| text.chars().all(|c| c.is_digit(radix)))
}

/// A number of bytes, hexadecimal with `0x`; also with KiB, MiB, GiB, TiB.
fn length(text: &str) -> Option<u64> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let (count, shift) = units.into_iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift))).unwrap_or((text, 0));
    let count = count.trim();
    let number = count.strip_prefix("0x").map_or_else(|| digits_of(count, 10), |hex| digits_of(hex, 16));
    number?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_in_all_their_forms() {
        let of = |text| by_number(text).map(|r| r.unwrap());
        assert_eq!(of("0x100000-0x1fffff"), Some(0x10_0000..0x20_0000));
        assert_eq!(of("0x100000+1MiB"), Some(0x10_0000..0x20_0000));
        assert_eq!(of("0x1000 + 4096"), Some(4096..8192));
        assert_eq!(of("0x1000+0x10KiB"), Some(0x1000..0x5000));
        assert_eq!(of("Kernel code"), None);
        assert_eq!(of("System RAM"), None);
        assert_eq!(of("0000:00:02.0"), None, "a PCI device");
        assert_eq!(of("PCI MMCONFIG 0000 [bus 00-ff]"), None);
    }

    #[test]
    fn what_could_be_another_place_than_meant_is_refused() {
        for (text, says) in [
            ("01000000-02000000", "must begin with 0x"), // copied from /proc/iomem
            ("e0000000-efffffff", "must begin with 0x"),
            ("0x1000-1fff", "must begin with 0x"),
            ("0x+1000-0x1fff", "`0x` is no address"),
            ("0x1000-0x+1fff", "no address"),
            ("0x1000++4096", "no length"),
            ("0x1000+4 parsecs", "no length"),
            ("0x1000+0", "is empty"),
            ("0x1000+16777216TiB", "no length"),
            ("0xffffffffffffffff+4096", "beyond 64 bits"),
            ("0x1000-", "no address"),
            ("4096", "no range"),
        ] {
            let e = by_number(text).and_then(Result::err).unwrap_or_else(|| panic!("{text} is accepted"));
            assert!(e.message.contains(says) && e.hint.contains("0x1000-0x1fff"), "{text}: {}", e.message);
        }
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
        std::fs::write(file.path(), "no iomem\n").unwrap();
        let e = Iomem::new(file.path().to_str().unwrap()).by_name("System RAM").err().unwrap();
        assert!(e.message.contains("no line such as"), "{}", e.message);
    }
}
