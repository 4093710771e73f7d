//! VMCOREINFO that the input's notes do not have: from a file, or found in the crashed machine's memory.

use std::path::Path;
use std::sync::Arc;

use coresift_kernel::Vmcoreinfo;
use coresift_sdk::{Extent, ExtentKind};
use memchr::memmem;

use crate::error::{Error, Result};
use crate::image::Image;
use crate::progress::Progress;

/// The first key of the text since Linux 2.6.24.
const FIRST_KEY: &[u8] = b"OSRELEASE=";
/// Longest text: kernels give it one page of memory, whose size is at most 64 KiB.
const TEXT_MAX: usize = 64 << 10;
/// Bytes that are searched at once.
const CHUNK: usize = 4 << 20;
/// Candidates that are tried: the text stands in memory two or three times.
const CANDIDATES_MAX: usize = 16;

/// Reads a file of VMCOREINFO lines, as `makedumpfile -g` writes.
///
/// # Errors
/// It cannot be read, or has no such lines.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    let text = std::fs::read(path).map_err(|e| Error::io("cannot read the VMCOREINFO file", path, &e))?;
    let info = Vmcoreinfo::parse(&text);
    // A hypervisor's has frames where Linux has pages.
    if info.release().is_none() && info.size("page").or_else(|| info.size("page_info")).is_none() {
        let message = format!("{}: no VMCOREINFO lines: neither OSRELEASE= nor SIZE(page)=", path.display());
        return Err(Error::usage(message).hint("give a text of KEY=VALUE lines, as `makedumpfile -g FILE -x vmlinux` writes"));
    }
    Ok(text)
}

/// Gives an image the text of the file, for what its own note leaves out, or one found in memory if it has none.
pub fn complete(image: &mut Image, file: Option<&[u8]>, progress: &dyn Progress) {
    let own = image.machine.vmcoreinfo.clone();
    if let Some(file) = file {
        let text = joined(&own, file);
        supply(image, text);
    } else if own.is_empty() && !image.machine.hypervisor {
        match search(image, progress) {
            Some(text) => {
                progress.note("VMCOREINFO is in no note of the input; it was found in memory");
                supply(image, text);
            }
            None => progress.note("VMCOREINFO is in no note of the input and was not found in memory"),
        }
    }
}

/// Makes this the VMCOREINFO of the machine.
pub fn supply(image: &mut Image, text: Vec<u8>) {
    let info = Vmcoreinfo::parse(&text);
    let machine = Arc::make_mut(&mut image.machine);
    if let Some(release) = info.release().filter(|_| machine.utsname.release.is_empty()) {
        machine.utsname.release = release.to_owned();
    }
    if let Some(time) = info.crash_time().filter(|_| machine.crash_time == 0) {
        machine.crash_time = time;
    }
    machine.vmcoreinfo = text;
}

/// The note's lines first: of several with one key the first counts. A file made from a vmlinux has link addresses; the
/// note says how far KASLR moved them.
fn joined(note: &[u8], file: &[u8]) -> Vec<u8> {
    let (own, extra) = (Vmcoreinfo::parse(note), Vmcoreinfo::parse(file));
    let moved = if extra.kaslr_offset().is_none() { own.kaslr_offset().unwrap_or(0) } else { 0 };
    let mut text = note.to_vec();
    if !text.is_empty() && text.last() != Some(&b'\n') {
        text.push(b'\n');
    }
    for (key, value) in extra.iter() {
        let symbol = key.strip_prefix("SYMBOL(").and_then(|k| k.strip_suffix(')')).and_then(|name| extra.symbol(name));
        let line = match symbol {
            Some(address) if moved != 0 => format!("{key}={:x}\n", address.wrapping_add(moved)),
            _ => format!("{key}={value}\n"),
        };
        text.extend_from_slice(line.as_bytes());
    }
    text
}

/// Searches all of memory. Of several texts the one by which the kernel can be read is right; stale ones are left from
/// boots before.
fn search(image: &mut Image, progress: &dyn Progress) -> Option<Vec<u8>> {
    let mut tried: Vec<Vec<u8>> = Vec::new();
    let shift = image.machine.page_shift;
    let ram: Vec<_> = image.extents.iter().map(|e| e.first_pfn << shift..e.end_pfn() << shift).collect();
    let extents = image.extents.clone();
    progress.phase(crate::progress::Phase::Search, extents.iter().map(|e| e.pages).sum());
    // The text may lie across two chunks: each begins with the last bytes of the one before.
    let mut buffer = vec![0u8; CHUNK + TEXT_MAX];
    for extent in extents.iter().filter(|e| e.kind != ExtentKind::ABSENT) {
        for at in chunks(extent, shift) {
            // Short extents are read as what they are, and what follows them as far as a text may reach.
            let rest = usize::try_from((extent.end_pfn() << shift) - at).unwrap_or(CHUNK).min(CHUNK);
            let n = image.read_physical(at, buffer.get_mut(..rest + TEXT_MAX).unwrap_or_default());
            progress.advance((n.min(CHUNK) >> shift) as u64);
            let bytes = buffer.get(..n).unwrap_or_default();
            for start in memmem::find_iter(bytes, FIRST_KEY) {
                let Some(text) = text_at(bytes.get(start..).unwrap_or_default()) else { continue };
                if tried.len() >= CANDIDATES_MAX || tried.iter().any(|t| t == text) {
                    continue;
                }
                let mut machine = (*image.machine).clone();
                machine.vmcoreinfo = text.to_vec();
                if coresift_kernel::Kernel::find(&machine, &*image, &ram).is_ok() {
                    return Some(machine.vmcoreinfo);
                }
                tried.push(machine.vmcoreinfo);
            }
        }
    }
    // None leads to the kernel; the first still tells its release and layout.
    tried.into_iter().next()
}

/// Physical addresses to search from.
fn chunks(extent: &Extent, shift: u32) -> impl Iterator<Item = u64> + use<> {
    (extent.first_pfn << shift..extent.end_pfn() << shift).step_by(CHUNK)
}

/// The VMCOREINFO text that begins here, if it is one and not the format string that makes it.
fn text_at(bytes: &[u8]) -> Option<&[u8]> {
    let bytes = bytes.get(..TEXT_MAX.min(bytes.len()))?;
    let end = bytes.iter().position(|b| !matches!(b, b'\n' | b' '..=b'~')).unwrap_or(bytes.len());
    let text = bytes.get(..end)?;
    let info = Vmcoreinfo::parse(text);
    (info.page_size().is_some() && info.release().is_some() && info.iter().count() >= 10).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_s_lines_win_and_symbols_of_a_file_are_moved() {
        let note = b"OSRELEASE=6.1.0\nSYMBOL(a)=ffffffff9a000000\nKERNELOFFSET=19000000";
        let file = b"OSRELEASE=6.1.0-other\nSYMBOL(a)=ffffffff81000000\nSYMBOL(b)=ffffffff82000000\nSIZE(page)=64\n";
        let text = joined(note, file);
        let info = Vmcoreinfo::parse(&text);
        assert_eq!(info.release(), Some("6.1.0"));
        assert_eq!((info.symbol("a"), info.symbol("b")), (Some(0xffff_ffff_9a00_0000), Some(0xffff_ffff_9b00_0000)));
        assert_eq!(info.size("page"), Some(64));
    }

    #[test]
    fn the_kernel_s_format_string_is_no_text() {
        assert_eq!(text_at(b"OSRELEASE=%s\n\0"), None);
        let text = format!("OSRELEASE=6.1.0\nPAGESIZE=4096\n{}", "SIZE(page)=64\n".repeat(10));
        assert_eq!(text_at(format!("{text}\0\0junk").as_bytes()), Some(text.as_bytes()));
    }
}
