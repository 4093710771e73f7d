//! Services of the host: inputs, messages, cancellation, and interfaces asked for by name and version.

use std::fmt;
use std::sync::Arc;

use crate::abi::{AbiInterface, HostServices, SourceBytes};
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

/// Functions of the interface `physical-memory` 1. Fields are only ever added at the end; `size` in
/// [`crate::abi::AbiInterface`] tells how many there are.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PhysicalMemoryTable {
    /// Reads `len` bytes at a physical address. Returns how many could be read from the start, negative = errno.
    pub read: unsafe extern "C" fn(object: *const core::ffi::c_void, paddr: u64, buf: *mut u8, len: usize) -> i64,
}

/// What the host offers physical memory with.
pub trait ReadPhysical: Sync {
    /// Reads at a physical address; returns how many bytes could be read from the start.
    fn read_physical(&self, paddr: u64, buf: &mut [u8]) -> usize;
}

/// The interface `physical-memory` 1 on this object; for [`HostServices::interface`] to return. The object must live as
/// long as the services do.
pub fn physical_memory_of<T: ReadPhysical>(object: &T) -> AbiInterface {
    let table: &'static PhysicalMemoryTable = &Shim::<T>::TABLE;
    AbiInterface {
        table: std::ptr::from_ref(table).cast(),
        size: size_of::<PhysicalMemoryTable>(),
        object: std::ptr::from_ref(object).cast(),
    }
}

/// `errno` for an address that is not there (ENXIO of asm-generic/errno-base.h).
const NO_SUCH_ADDRESS: i64 = 6;

struct Shim<T>(std::marker::PhantomData<T>);

impl<T: ReadPhysical> Shim<T> {
    const TABLE: PhysicalMemoryTable = PhysicalMemoryTable { read: Self::read };

    unsafe extern "C" fn read(object: *const core::ffi::c_void, paddr: u64, buf: *mut u8, len: usize) -> i64 {
        // SAFETY: by the contract of `AbiHost::interface`, `object` is what stood beside this table: the `T` given to
        // `physical_memory_of`, which lives as long as the services that the caller holds.
        let object = unsafe { &*object.cast::<T>() };
        // SAFETY: by the contract of `PhysicalMemoryTable::read`, `buf` is valid for writes of `len` bytes.
        let buf = unsafe { std::slice::from_raw_parts_mut(buf, len) };
        let read = object.read_physical(paddr, buf);
        if read == 0 && len > 0 { -NO_SUCH_ADDRESS } else { i64::try_from(read).unwrap_or(i64::MAX) }
    }
}

/// Reads physical memory of the crashed machine.
#[derive(Debug, Clone)]
pub struct PhysicalMemory {
    host: Host,
    table: PhysicalMemoryTable,
    object: *const core::ffi::c_void,
}

// SAFETY: `object` belongs to the host's services, which are Send and Sync and live as long as `host` does; the contract
// of `PhysicalMemoryTable::read` allows calls from any thread.
unsafe impl Send for PhysicalMemory {}
// SAFETY: as above; `read` takes a const pointer and the host's object is Sync.
unsafe impl Sync for PhysicalMemory {}

impl PhysicalMemory {
    fn of(host: Host) -> Option<Self> {
        let (name, version) = PHYSICAL_MEMORY;
        let found = host.0.interface(name, version)?;
        if found.table.is_null() || found.size < size_of::<PhysicalMemoryTable>() {
            return None;
        }
        // SAFETY: under this name and version the host offers a table that begins with `PhysicalMemoryTable` and has at
        // least `size` bytes; it is not null and lives as long as the host's services.
        let table = unsafe { *found.table.cast::<PhysicalMemoryTable>() };
        Some(Self { host, table, object: found.object })
    }

    /// Reads at a physical address; fewer bytes than asked for mean that the next page is not in the input.
    ///
    /// # Errors
    /// Not even the first byte could be read.
    pub fn read(&self, paddr: u64, buf: &mut [u8]) -> Result<usize> {
        // SAFETY: `buf` is valid for writes of its length; `object` is what the host gave together with this table.
        let n = unsafe { (self.table.read)(self.object, paddr, buf.as_mut_ptr(), buf.len()) };
        match usize::try_from(n) {
            Ok(n) if n <= buf.len() => Ok(n),
            _ => Err(Error {
                errno: i32::try_from(-n).unwrap_or(0),
                ..Error::new(ErrorKind::Io, format!("physical address {paddr:#x} cannot be read"))
            }),
        }
    }

    /// The host's services this memory belongs to.
    pub fn host(&self) -> &Host {
        &self.host
    }
}
