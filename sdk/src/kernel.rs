//! The crashed kernel as a plugin sees it: symbols, memory by kernel address, and the mem_map.

use core::ffi::c_void;
use std::sync::Arc;

use crate::abi::KernelView;
use crate::error::{Error, ErrorKind, Result};
use crate::host::Host;
use crate::linux::{PageRules, StructPages, Vmcoreinfo};
use crate::machine::Machine;

/// Name and version under which the host offers [`KernelTable`].
pub const KERNEL: (&str, u32) = ("kernel", 1);

/// Functions of the interface `kernel` 1. Fields are only ever added at the end; `size` of the interface tells how many
/// there are. Functions return 0 (or a count) if it worked, a negative number if there is no such thing.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KernelTable {
    /// where a kernel address leads
    pub translate: unsafe extern "C" fn(object: *const c_void, vaddr: u64, out: *mut Mapping) -> i64,
    /// reads at a kernel address; returns how many bytes could be read from the start
    pub read: unsafe extern "C" fn(object: *const c_void, vaddr: u64, buf: *mut u8, len: usize) -> i64,
    /// address of a symbol
    pub symbol: unsafe extern "C" fn(object: *const c_void, name: *const u8, len: usize, out: *mut u64) -> i64,
    /// address of the `struct page` of a PFN
    pub struct_page: unsafe extern "C" fn(object: *const c_void, pfn: u64, out: *mut u64) -> i64,
    /// PFN of a `struct page` by its address
    pub pfn: unsafe extern "C" fn(object: *const c_void, struct_page: u64, out: *mut u64) -> i64,
}

/// Where a kernel address leads.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mapping {
    /// physical address
    pub paddr: u64,
    /// bytes from here to the end of the page-table entry's range
    pub len: u64,
    /// [`Mapping::EXECUTABLE`], [`Mapping::WRITABLE`]
    pub flags: u32,
    /// room for more
    pub reserved: u32,
}

impl Mapping {
    /// The kernel may run code there.
    pub const EXECUTABLE: u32 = 1;
    /// The kernel may write there.
    pub const WRITABLE: u32 = 2;
}

/// The first page of the compound page that a page belongs to, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Folio {
    /// PFN of the first page
    pub head: u64,
    /// log2 of the number of pages; 0 for a page by itself, and for one whose length its class does not tell
    pub order: u32,
}

/// The crashed kernel. Cheap to clone.
#[derive(Clone)]
pub struct Kernel {
    host: Host,
    /// the host's functions; `None` if the host is in this program
    far: Option<Far>,
    info: Arc<Vmcoreinfo>,
}

/// Functions on the other side of the border, and the object to call them with.
#[derive(Debug, Clone, Copy)]
struct Far {
    table: KernelTable,
    object: *const c_void,
}

// SAFETY: `object` belongs to the host's services, which are Send and Sync and live as long as `Kernel::host` does; the
// contract of `KernelTable` allows calls from any thread.
unsafe impl Send for Far {}
// SAFETY: as above; the functions take a const pointer and the host's object is Sync.
unsafe impl Sync for Far {}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernel({})", self.info.release().unwrap_or("unknown release"))
    }
}

impl Kernel {
    /// The kernel of the crashed machine; `None` if the host could not make sense of it (it has told the user why).
    pub fn of(host: &Host, machine: &Machine) -> Option<Self> {
        let info = Arc::new(Vmcoreinfo::parse(&machine.vmcoreinfo));
        if host.0.kernel().is_some() {
            return Some(Self { host: host.clone(), far: None, info });
        }
        let (name, version) = KERNEL;
        let (table, object) = host.0.interface(name, version)?.parts(size_of::<KernelTable>())?;
        // SAFETY: under this name and version the host offers a table that begins with `KernelTable`; `parts` checked its
        // size, and it lives as long as the host's services.
        let table = unsafe { *table.cast::<KernelTable>() };
        Some(Self { host: host.clone(), far: Some(Far { table, object }), info })
    }

    fn near(&self) -> Option<&dyn KernelView> {
        self.host.0.kernel()
    }

    /// What the kernel tells of itself: sizes, offsets, numbers.
    pub fn info(&self) -> &Vmcoreinfo {
        &self.info
    }

    /// Address of a symbol.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        let Some(far) = &self.far else { return self.near()?.symbol(name) };
        let mut address = 0;
        // SAFETY: `name` is valid for reads of its length, `address` for a write; `object` came with the table.
        let done = unsafe { (far.table.symbol)(far.object, name.as_ptr(), name.len(), &mut address) };
        (done >= 0).then_some(address)
    }

    /// Where a kernel address leads.
    pub fn translate(&self, vaddr: u64) -> Option<Mapping> {
        let Some(far) = &self.far else { return self.near()?.translate(vaddr) };
        let mut mapping = Mapping::default();
        // SAFETY: `mapping` is valid for a write; `object` came with the table.
        let done = unsafe { (far.table.translate)(far.object, vaddr, &mut mapping) };
        (done >= 0).then_some(mapping)
    }

    /// Fills `buf` from a kernel address.
    ///
    /// # Errors
    /// Not all of it could be read; the message has the address of the first byte that could not.
    pub fn read(&self, vaddr: u64, buf: &mut [u8]) -> Result<()> {
        let n = match &self.far {
            // SAFETY: `buf` is valid for writes of its length; `object` came with the table.
            Some(far) => unsafe { (far.table.read)(far.object, vaddr, buf.as_mut_ptr(), buf.len()) },
            None => self.near().map_or(0, |k| k.read(vaddr, buf)) as i64,
        };
        let n = usize::try_from(n).unwrap_or(0);
        if n >= buf.len() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Io, format!("kernel address {:#x} cannot be read", vaddr.wrapping_add(n as u64))))
    }

    /// Address of the `struct page` of a PFN.
    pub fn struct_page(&self, pfn: u64) -> Option<u64> {
        let Some(far) = &self.far else { return self.near()?.struct_page(pfn) };
        let mut address = 0;
        // SAFETY: `address` is valid for a write; `object` came with the table.
        let done = unsafe { (far.table.struct_page)(far.object, pfn, &mut address) };
        (done >= 0).then_some(address)
    }

    /// PFN of the `struct page` at a kernel address.
    pub fn pfn(&self, struct_page: u64) -> Option<u64> {
        let Some(far) = &self.far else { return self.near()?.pfn(struct_page) };
        let mut pfn = 0;
        // SAFETY: `pfn` is valid for a write; `object` came with the table.
        let done = unsafe { (far.table.pfn)(far.object, struct_page, &mut pfn) };
        (done >= 0).then_some(pfn)
    }

    /// The bytes of some `struct page`s from a PFN on.
    ///
    /// # Errors
    /// They are not all there.
    pub fn struct_pages(&self, pfn: u64, pages: usize, rules: &PageRules) -> Result<Vec<u8>> {
        let no = || Error::new(ErrorKind::Other, format!("the kernel has no struct page for PFN {pfn:#x}"));
        let mut bytes = vec![0; pages.saturating_mul(rules.struct_page_size())];
        self.read(self.struct_page(pfn).ok_or_else(no)?, &mut bytes)?;
        Ok(bytes)
    }

    /// The compound page that a page belongs to.
    ///
    /// # Errors
    /// The `struct page` cannot be read, or leads nowhere.
    pub fn folio(&self, pfn: u64, rules: &PageRules) -> Result<Folio> {
        let own = self.struct_pages(pfn, 1, rules)?;
        let slice = StructPages { bytes: &own, first_pfn: pfn, address: self.struct_page(pfn) };
        let head = rules.head_of(&slice, 0, |address| self.pfn(address)).unwrap_or(pfn);
        // The head and the page behind it, which has the order.
        let pair = self.struct_pages(head, 2, rules)?;
        let slice = StructPages { bytes: &pair, first_pfn: head, address: self.struct_page(head) };
        Ok(Folio { head, order: rules.judge(&slice, 0).order })
    }
}
