//! Windows: pieces of an input file mapped into memory, and what happens when the file breaks under them.
//!
//! A mapped page whose bytes cannot be had (the file shrank, the disk returns an error) raises SIGBUS. The handler here
//! puts a page of zeros in its place and marks the window as damaged; the batch is then read again with pread, which
//! tells page by page what is missing. So a bad page costs a page and never the dump.

use std::fs::File;
use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use memmap2::{Mmap, MmapMut, MmapOptions};

/// Most windows that exist at one time: several for each batch in flight. More are not mapped but read.
const SLOTS: usize = 1024;

/// A window the handler knows. `start` is 0 for a free slot.
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    damaged: AtomicBool,
}

static WINDOWS: [Slot; SLOTS] =
    [const { Slot { start: AtomicUsize::new(0), end: AtomicUsize::new(0), damaged: AtomicBool::new(false) } }; SLOTS];

static HANDLER: Once = Once::new();
static HANDLER_WORKS: AtomicBool = AtomicBool::new(false);
static PAGE_SIZE: AtomicUsize = AtomicUsize::new(4096);

/// A mapped piece of an input.
#[derive(Debug)]
pub struct Window {
    map: Mmap,
    slot: usize,
}

impl Window {
    /// Maps `len` bytes of `file` from `offset` on.
    ///
    /// # Errors
    /// The file cannot be mapped, or too many windows exist; read it instead.
    pub fn map(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        HANDLER.call_once(install_handler);
        if !HANDLER_WORKS.load(Ordering::Relaxed) {
            return Err(io::Error::other("no SIGBUS handler"));
        }
        // SAFETY: the mapping is private to this window and only ever read. Another process can change or cut the file:
        // a cut is caught by the SIGBUS handler; changed bytes are as good as the ones before, since every consumer
        // treats them as untrusted input and no decision is made twice from the same byte.
        let map = unsafe { MmapOptions::new().offset(offset).len(len).map(file)? };
        let start = map.as_ptr() as usize;
        for (slot, known) in WINDOWS.iter().enumerate() {
            if known.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                known.damaged.store(false, Ordering::Relaxed);
                known.end.store(start + len, Ordering::Release);
                return Ok(Self { map, slot });
            }
        }
        Err(io::Error::other("too many windows"))
    }

    /// Brings all of the window in at once: for one that is read from end to end, cheaper than a fault for each piece. A
    /// kernel that cannot (before 5.14), or a page that is not to be had, changes nothing.
    pub fn populate(&self) {
        let _ = self.map.advise(memmap2::Advice::PopulateRead);
    }

    /// The bytes. Read [`Self::damaged`] after use.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// True if some bytes were not to be had and read as zeros.
    pub fn damaged(&self) -> bool {
        WINDOWS.get(self.slot).is_none_or(|s| s.damaged.load(Ordering::Acquire))
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // The slot goes before the mapping (a field's drop comes after this): the handler must never put a page over an
        // address that is somebody else's by then.
        if let Some(slot) = WINDOWS.get(self.slot) {
            slot.end.store(0, Ordering::Release);
            slot.start.store(0, Ordering::Release);
        }
    }
}

fn install_handler() {
    let size = rustix::param::page_size();
    PAGE_SIZE.store(size, Ordering::Relaxed);
    // SAFETY: the struct is zeroed, then filled with a handler of the type that SA_SIGINFO asks for; `on_sigbus` only
    // does what is async-signal-safe (atomics, mmap, sigaction).
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut())
    };
    HANDLER_WORKS.store(done == 0, Ordering::Relaxed);
}

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler.
    let code = unsafe { (*info).si_code };
    // Not from a memory access (kill): there is no address.
    if code <= 0 {
        return default_action();
    }
    // SAFETY: as above; a SIGBUS of a memory access holds an address.
    let addr = unsafe { (*info).si_addr() } as usize;
    let mut replaced = false;
    // Every slot that matches is marked: one that is just being taken or given back can seem to cover another's address,
    // and a batch that is read again for nothing costs little.
    for slot in &WINDOWS {
        let (start, end) = (slot.start.load(Ordering::Acquire), slot.end.load(Ordering::Acquire));
        if start == 0 || addr < start || addr >= end {
            continue;
        }
        slot.damaged.store(true, Ordering::Release);
        if replaced {
            continue;
        }
        let size = PAGE_SIZE.load(Ordering::Relaxed);
        let page = addr & !(size - 1);
        // SAFETY: the page lies in a window of ours (its first page may begin before `start`, still in our mapping), so
        // replacing it touches nobody else's memory; it stays mapped and readable until the window is unmapped.
        let new = unsafe {
            let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(page as *mut libc::c_void, size, libc::PROT_READ, flags, -1, 0)
        };
        replaced = new != libc::MAP_FAILED;
    }
    if !replaced {
        default_action();
    }
}

/// Not ours: back to the default, and the access that is repeated on return ends the process as it would have.
fn default_action() {
    // SAFETY: as in `install_handler`, with the default action.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

/// A page-aligned buffer: reading into one that begins 16 bytes behind a page boundary, as large `Vec`s do, is several
/// times slower.
#[derive(Debug, Default)]
pub struct AlignedBuffer {
    map: Option<MmapMut>,
}

impl AlignedBuffer {
    /// Makes the buffer at least `len` bytes long and lends that much.
    ///
    /// # Errors
    /// No memory.
    pub fn lend(&mut self, len: usize) -> io::Result<&mut [u8]> {
        if self.map.as_ref().is_none_or(|m| m.len() < len) {
            self.map = None;
            self.map = Some(MmapMut::map_anon(len)?);
        }
        let map = self.map.as_mut().and_then(|m| m.get_mut(..len));
        map.ok_or_else(|| io::Error::other("no buffer"))
    }

    /// What the buffer holds.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_that_shrinks_under_its_window_reads_as_zeros_and_is_marked() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7u8; 64 << 10]).unwrap();
        let window = Window::map(&file, 4096, 60 << 10).unwrap();
        assert_eq!(window.bytes()[0], 7);
        assert!(!window.damaged());
        file.set_len(8192).unwrap();
        assert_eq!(window.bytes()[100], 7);
        assert_eq!(window.bytes()[50 << 10], 0);
        assert!(window.damaged());
        let other = Window::map(&file, 0, 8192).unwrap();
        assert!(!other.damaged());
    }

    #[test]
    fn buffers_begin_on_a_page() {
        let mut buffer = AlignedBuffer::default();
        assert_eq!(buffer.lend(3 << 20).unwrap().as_ptr() as usize % 4096, 0);
        assert_eq!(buffer.bytes().len(), 3 << 20);
    }
}
