//! Where the bytes come from.

/// Reads physical memory of the crashed machine.
pub trait Memory: Sync {
    /// Reads at a physical address; returns how many bytes could be read from the start. It stops at the first page that
    /// the input does not have.
    fn read(&self, paddr: u64, buf: &mut [u8]) -> usize;
}

/// Fills the buffer, or says that it cannot.
pub fn read_all(memory: &dyn Memory, paddr: u64, buf: &mut [u8]) -> Option<()> {
    (memory.read(paddr, buf) == buf.len()).then_some(())
}
