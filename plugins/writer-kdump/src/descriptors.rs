//! Page descriptors: one for each dumped page, in PFN order.

use crate::layout::Layout;

/// Size of `struct page_desc`: off_t offset, u32 size, u32 flags, u64 page_flags (makedumpfile's diskdump_mod.h). It is
/// the same in all layouts.
pub const DESCRIPTOR: usize = 24;

/// Where a page is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Descriptor {
    /// offset of its bytes
    pub offset: u64,
    /// stored bytes
    pub size: u32,
    /// codec bit, 0 = raw
    pub flags: u32,
}

impl Descriptor {
    /// Adds the descriptor's bytes to a table.
    pub fn append_to(self, table: &mut Vec<u8>, layout: Layout) {
        table.extend_from_slice(&layout.word64(self.offset));
        table.extend_from_slice(&layout.word32(self.size));
        table.extend_from_slice(&layout.word32(self.flags));
        // page_flags: no reader and no writer uses them.
        table.extend_from_slice(&[0; 8]);
    }
}
