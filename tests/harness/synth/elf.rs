//! The ELF core file around the RAM.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::arch::Arch;
use super::memory::Memory;

/// Writes numbers in the machine's byte order.
struct Header<'a> {
    memory: &'a Memory,
    bytes: Vec<u8>,
}

impl Header<'_> {
    fn put(&mut self, value: u64, width: u64) -> &mut Self {
        self.bytes.extend(self.memory.bytes(value, width));
        self
    }
}

/// A program header's values: type, flags, offset, virtual and physical address, length.
type Segment = (u64, u64, u64, u64, u64, u64);

/// One program header, gabi: the order of members differs between the classes.
fn program_header(header: &mut Header<'_>, word: u64, (kind, flags, offset, va, pa, len): Segment) {
    let align = 0;
    header.put(kind, 4);
    if word == 8 {
        header.put(flags, 4);
    }
    for value in [offset, va, pa, len, len] {
        header.put(value, word);
    }
    if word == 4 {
        header.put(flags, 4);
    }
    header.put(align, word);
}

/// An ELF note, names and descriptions padded to 4 bytes.
fn note(memory: &Memory, name: &str, kind: u64, description: &[u8]) -> Vec<u8> {
    let mut header = Header { memory, bytes: Vec::new() };
    header.put(name.len() as u64 + 1, 4).put(description.len() as u64, 4).put(kind, 4);
    let mut bytes = header.bytes;
    for part in [[name.as_bytes(), b"\0"].concat().as_slice(), description] {
        bytes.extend(part);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

/// Writes a vmcore: one PT_NOTE, the kernel text's PT_LOAD on x86_64 (as fs/proc/vmcore.c passes it on), one for each piece of RAM.
pub fn write(path: &Path, memory: &Memory, vmcoreinfo: &str) {
    let (arch, word, shift) = (memory.arch, memory.arch.word(), memory.arch.page_shift());
    let mut notes = note(memory, "CORE", 1, &vec![0; arch.prstatus()]);
    notes.extend(note(memory, "VMCOREINFO", 0, vmcoreinfo.as_bytes()));
    let size = memory.page_size();
    let mut end = (0x1000 + notes.len() as u64).next_multiple_of(size);
    let mut segments: Vec<Segment> = vec![(4, 0, 0x1000, 0, 0, notes.len() as u64)];
    for piece in &memory.pieces {
        let (at, len) = (piece.start << shift, (piece.end - piece.start) << shift);
        segments.push((1, 7, end, memory.linear(at), at, len));
        end += len;
    }
    if arch == Arch::X86_64 {
        let (image, len) = (arch.image_at(), 0x10_0000);
        let holder = segments.iter().find(|s| s.0 == 1 && (s.4..s.4 + s.5).contains(&image)).expect("the image is in RAM");
        segments.insert(1, (1, 7, holder.2 + image - holder.4, arch.image_va(memory.version), image, len));
    }
    let (class, data) = (if word == 8 { 2 } else { 1 }, if arch.big() { 2 } else { 1 });
    let mut header = Header { memory, bytes: vec![0x7f, b'E', b'L', b'F', class, data, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0] };
    let (ehsize, phsize) = if word == 8 { (64, 56) } else { (52, 32) };
    header.put(4, 2).put(u64::from(arch.machine()), 2).put(1, 4).put(0, word).put(ehsize, word).put(0, word).put(0, 4);
    for value in [ehsize, phsize, segments.len() as u64, 0, 0, 0] {
        header.put(value, 2);
    }
    let loads: Vec<Segment> = segments.clone();
    for segment in segments {
        program_header(&mut header, word, segment);
    }
    let file = File::create(path).expect("a file");
    file.set_len(end).expect("room for a sparse file");
    file.write_all_at(&header.bytes, 0).expect("headers");
    file.write_all_at(&notes, 0x1000).expect("notes");
    for (piece, load) in memory.pieces.iter().zip(loads.iter().filter(|s| s.0 == 1 && s.3 == memory.linear(s.4))) {
        for pfn in piece.clone() {
            if let Some(bytes) = memory.page(pfn) {
                file.write_all_at(bytes, load.2 + ((pfn - piece.start) << shift)).expect("a page");
            }
        }
    }
}
