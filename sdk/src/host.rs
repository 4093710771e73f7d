//! Services of the host: inputs, messages, cancellation, and interfaces asked for by name and version.

use std::fmt;
use std::sync::Arc;

use crate::abi::{HostServices, SourceBytes};
use crate::error::{Error, ErrorKind, Result};

/// How important a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Shown to everybody: something is wrong with the dump.
    Warning = 1,
    /// Shown when asked for.
    Info = 2,
    /// For the plugin's author.
    Debug = 3,
}

/// An input: random access to bytes. Cheap to clone.
#[derive(Clone)]
pub struct Source(pub(crate) Arc<dyn SourceBytes>);

impl Source {
    /// Wraps the host's implementation; used by the host and the test kit.
    pub fn new(bytes: Arc<dyn SourceBytes>) -> Self {
        Self(bytes)
    }

    /// The path or another name for messages.
    pub fn name(&self) -> String {
        self.0.name()
    }

    /// Length in bytes; `None` if the input does not tell (some files under /proc).
    pub fn size(&self) -> Option<u64> {
        self.0.size()
    }

    /// Reads at `offset`; fewer bytes than asked for mean the end of the input.
    ///
    /// # Errors
    /// The read failed; nothing of `buf` is valid.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let n = self.0.read_at(offset, buf)?;
        if n <= buf.len() { Ok(n) } else { Err(Error::new(ErrorKind::Io, "more bytes were read than asked for").at_offset(offset)) }
    }

    /// Reads `len` bytes at `offset` into a new buffer. Bound `len` before: it may come from the input.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] if the input ends before.
    pub fn read_vec(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut buf = vec![0; len];
        let n = self.read_at(offset, &mut buf)?;
        if n == len {
            return Ok(buf);
        }
        let message = format!("{}: ends {} bytes too early", self.name(), len - n);
        Err(Error::format(message).at_offset(offset.saturating_add(n as u64)).hint("the file is cut; copy it again"))
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({:?})", self.name())
    }
}

/// Services of the host. Cheap to clone.
#[derive(Clone)]
pub struct Host(pub(crate) Arc<dyn HostServices>);

impl Host {
    /// Wraps the host's implementation; used by the host and the test kit.
    pub fn new(services: Arc<dyn HostServices>) -> Self {
        Self(services)
    }

    /// Says something to the user. Plugins never print.
    pub fn log(&self, level: Level, message: &str) {
        self.0.log(level as u32, message);
    }

    /// True when the run is to stop; look once a batch in long work.
    pub fn cancelled(&self) -> bool {
        self.0.cancelled()
    }

    /// Physical memory of the crashed machine, if the host offers it (not while a reader is being opened).
    pub fn physical_memory(&self) -> Option<PhysicalMemory> {
        PhysicalMemory::of(self.clone())
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Host")
    }
}

/// Name and version under which the host offers [`PhysicalMemoryTable`].
pub const PHYSICAL_MEMORY: (&str, u32) = ("physical-memory", 1);

/// Functions of the interface `physical-memory` 1. Fields are only ever added at the end; `size` of the interface tells how many
/// there are.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PhysicalMemoryTable {
    /// Reads `len` bytes at a physical address. Returns how many could be read from the start, negative = errno.
    pub read: unsafe extern "C" fn(object: *const core::ffi::c_void, paddr: u64, buf: *mut u8, len: usize) -> i64,
}

/// Reads physical memory of the crashed machine.
#[derive(Debug, Clone)]
pub struct PhysicalMemory {
    host: Host,
    /// the host's functions; `None` if the host is in this program
    far: Option<Far>,
}

/// Functions on the other side of the border, and the object to call them with.
#[derive(Debug, Clone, Copy)]
struct Far {
    table: PhysicalMemoryTable,
    object: *const core::ffi::c_void,
}

// SAFETY: `object` belongs to the host's services, which are Send and Sync and live as long as `PhysicalMemory::host`
// does; the contract of `PhysicalMemoryTable::read` allows calls from any thread.
unsafe impl Send for Far {}
// SAFETY: as above; `read` takes a const pointer and the host's object is Sync.
unsafe impl Sync for Far {}

impl PhysicalMemory {
    fn of(host: Host) -> Option<Self> {
        if host.0.physical_memory().is_some() {
            return Some(Self { host, far: None });
        }
        let (name, version) = PHYSICAL_MEMORY;
        let (table, object) = host.0.interface(name, version)?.parts(size_of::<PhysicalMemoryTable>())?;
        // SAFETY: under this name and version the host offers a table that begins with `PhysicalMemoryTable`; `parts`
        // checked its size, and it lives as long as the host's services.
        let table = unsafe { *table.cast::<PhysicalMemoryTable>() };
        Some(Self { host, far: Some(Far { table, object }) })
    }

    /// Reads at a physical address; fewer bytes than asked for mean that the next page is not in the input.
    ///
    /// # Errors
    /// Not even the first byte could be read.
    pub fn read(&self, paddr: u64, buf: &mut [u8]) -> Result<usize> {
        let n = match &self.far {
            // SAFETY: `buf` is valid for writes of its length; `object` is what the host gave together with this table.
            Some(far) => unsafe { (far.table.read)(far.object, paddr, buf.as_mut_ptr(), buf.len()) },
            None => self.host.0.physical_memory().map_or(0, |m| m.read_physical(paddr, buf)) as i64,
        };
        match usize::try_from(n) {
            Ok(n) if n <= buf.len() && (n > 0 || buf.is_empty()) => Ok(n),
            _ => Err(Error::new(ErrorKind::Io, format!("physical address {paddr:#x} cannot be read"))),
        }
    }

    /// The host's services this memory belongs to.
    pub fn host(&self) -> &Host {
        &self.host
    }
}
