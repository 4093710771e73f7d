//! A machine with a few bytes of memory, for tests of page tables.

use std::collections::BTreeMap;

use crate::memory::Memory;

/// Pages of 4 KiB, made as they are written.
#[derive(Default)]
pub(crate) struct Tables(BTreeMap<u64, Vec<u8>>);

impl Tables {
    pub fn put(&mut self, paddr: u64, bytes: &[u8]) {
        for (at, byte) in (paddr..).zip(bytes) {
            self.0.entry(at / 4096).or_insert_with(|| vec![0; 4096])[(at % 4096) as usize] = *byte;
        }
    }
    pub fn put64(&mut self, paddr: u64, value: u64) {
        self.put(paddr, &value.to_le_bytes());
    }
}

impl Memory for Tables {
    fn read(&self, paddr: u64, buf: &mut [u8]) -> usize {
        for (i, byte) in buf.iter_mut().enumerate() {
            let at = paddr.wrapping_add(i as u64);
            match self.0.get(&(at / 4096)) {
                Some(page) => *byte = page[(at % 4096) as usize],
                None => return i,
            }
        }
        buf.len()
    }
}
