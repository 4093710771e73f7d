//! The setting `regions`: where the parts of a file belong that has no holes.

use coresift_sdk::{Error, ErrorKind, Result};

/// How a region is written, for errors.
const FORMS: &str = "write 0x1000-0x9ffff (last byte included) or 0x100000000+1GiB, ascending, as they stand in the file";

/// Bytes of memory that stand one behind the other in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// physical address of the first byte
    pub start: u64,
    /// one behind that of the last
    pub end: u64,
}

/// Reads the regions of the setting.
///
/// # Errors
/// One makes no sense, or they do not ascend.
pub fn parse(texts: &[String]) -> Result<Vec<Region>> {
    let mut regions: Vec<Region> = Vec::with_capacity(texts.len());
    for text in texts {
        let wrong = |what: &str| Error::new(ErrorKind::Config, format!("key `regions`: \"{text}\" {what}")).hint(FORMS);
        let region = region(text).map_err(&wrong)?;
        if regions.last().is_some_and(|last| region.start < last.end) {
            return Err(wrong("does not lie behind the region before it"));
        }
        regions.push(region);
    }
    Ok(regions)
}

fn region(text: &str) -> std::result::Result<Region, &'static str> {
    let at = text.find(['-', '+']).ok_or("is no range")?;
    let (start, rest) = text.split_at(at);
    let start = address(start)?;
    let end = match rest.strip_prefix('-') {
        Some(last) => address(last)?.checked_add(1),
        None => start.checked_add(length(rest.get(1..).unwrap_or_default()).ok_or("has no length")?),
    };
    let end = end.ok_or("ends beyond 64 bits")?;
    if start < end { Ok(Region { start, end }) } else { Err("ends before it begins") }
}

/// An address; only with `0x`, since `/proc/iomem` has hexadecimal numbers without it.
fn address(text: &str) -> std::result::Result<u64, &'static str> {
    let digits = text.trim().strip_prefix("0x").ok_or("has an address that does not begin with 0x")?;
    number(digits, 16).ok_or("has an address that is no number")
}

/// A number of bytes, also with KiB, MiB, GiB, TiB.
fn length(text: &str) -> Option<u64> {
    let text = text.trim();
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let (count, shift) = units.into_iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift))).unwrap_or((text, 0));
    let count = count.trim();
    count.strip_prefix("0x").map_or_else(|| number(count, 10), |hex| number(hex, 16))?.checked_mul(1 << shift)
}

/// Digits alone: the standard library takes a sign, too.
fn number(digits: &str, radix: u32) -> Option<u64> {
    u64::from_str_radix(digits, radix).ok().filter(|_| digits.chars().all(|c| c.is_digit(radix)))
}
