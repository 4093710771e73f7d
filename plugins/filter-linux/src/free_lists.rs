//! Free pages of kernels whose `struct page` does not tell them: by the lists of `zone.free_area`.
//!
//! Up to 2.6.16 no mark in `struct page` says that a page is free, and up to 3.9 the kernel does not export which one
//! does. The lists are linked through `page.lru`; each list holds the first pages of free blocks of one order.

use coresift_sdk::linux::{PageRules, Words};
use coresift_sdk::{Kernel, RangeVerdict, Run, Survey, Verdict};

/// Most zones of a node (MAX_NR_ZONES is 6 at most in include/linux/mmzone.h) and most nodes (MAX_NUMNODES).
const ZONES_MAX: u64 = 16;
const NODES_MAX: u64 = 1024;
/// Migrate types of a kernel that does not export `LENGTH(free_area.free_list)`: one list, before 2.6.24.
const LISTS: u64 = 1;
/// Entries of a list that are believed: all 4 KiB pages of 4 TiB.
const ENTRIES_MAX: u64 = 1 << 30;
/// Ranges handed to the host at once.
const BATCH: usize = 4096;

/// Emits all free blocks as ranges. Returns how many pages they have, and what went wrong.
pub fn survey(kernel: &Kernel, rules: &PageRules, protected: &[Run], out: &mut dyn Survey) -> (u64, Option<String>) {
    let mut walk = match Walk::new(kernel, rules, protected, out) {
        Ok(walk) => walk,
        Err(why) => return (0, Some(format!("free pages are kept: {why}"))),
    };
    let nodes = walk.nodes();
    if nodes.is_empty() {
        return (0, Some("free pages are kept: no NUMA node was found".to_owned()));
    }
    nodes.into_iter().for_each(|node| walk.node(node));
    walk.flush();
    let trouble = (walk.broken > 0).then(|| format!("{} free lists are damaged: what lies behind is kept", walk.broken));
    (walk.pages, trouble)
}

struct Walk<'a> {
    kernel: &'a Kernel,
    rules: &'a PageRules,
    words: Words,
    orders: u64,
    lists: u64,
    lru: u64,
    next: u64,
    previous: Option<u64>,
    zones: u64,
    zone_size: u64,
    free_area: u64,
    free_area_size: u64,
    free_list: u64,
    list_head: u64,
    protected: &'a [Run],
    out: &'a mut dyn Survey,
    found: Vec<RangeVerdict>,
    pages: u64,
    broken: u64,
}

impl<'a> Walk<'a> {
    fn new(kernel: &'a Kernel, rules: &'a PageRules, protected: &'a [Run], out: &'a mut dyn Survey) -> Result<Self, String> {
        let info = kernel.info();
        let offset = |name: &str| info.offset(name).ok_or(format!("VMCOREINFO has no OFFSET({name})"));
        let size = |name: &str| info.size(name).filter(|s| *s > 0).ok_or(format!("VMCOREINFO has no SIZE({name})"));
        Ok(Self {
            kernel,
            rules,
            words: rules.words(),
            orders: u64::from(rules.free_areas()),
            lists: info.length("free_area.free_list").unwrap_or(LISTS).min(64),
            lru: offset("page.lru")?,
            next: offset("list_head.next")?,
            previous: info.offset("list_head.prev"),
            zones: offset("pglist_data.node_zones")?,
            zone_size: size("zone")?,
            free_area: offset("zone.free_area")?,
            free_area_size: size("free_area")?,
            free_list: offset("free_area.free_list")?,
            list_head: size("list_head")?,
            protected,
            out,
            found: Vec::with_capacity(BATCH),
            pages: 0,
            broken: 0,
        })
    }

    fn long(&self, address: u64) -> Option<u64> {
        let mut raw = [0u8; 8];
        let raw = raw.get_mut(..self.words.long)?;
        self.kernel.read(address, raw).ok()?;
        self.words.long(raw, 0)
    }

    /// Addresses of all `struct pglist_data`.
    fn nodes(&self) -> Vec<u64> {
        if let Some(array) = self.kernel.symbol("node_data") {
            let length = self.kernel.info().length("node_data").unwrap_or(1).min(NODES_MAX);
            let slots = (0..length).map_while(|i| self.long(array.wrapping_add(i * self.words.long as u64)));
            return slots.filter(|p| *p != 0).collect();
        }
        self.kernel.symbol("contig_page_data").into_iter().collect()
    }

    fn node(&mut self, node: u64) {
        let count = self.kernel.info().offset("pglist_data.nr_zones").and_then(|offset| {
            let mut raw = [0u8; 4];
            self.kernel.read(node.wrapping_add(offset), &mut raw).ok()?;
            self.words.u32(&raw, 0).map(u64::from)
        });
        let spanned = self.kernel.info().offset("zone.spanned_pages");
        for number in 0..count.unwrap_or(0).min(ZONES_MAX) {
            let zone = node.wrapping_add(self.zones).wrapping_add(number * self.zone_size);
            if spanned.and_then(|offset| self.long(zone.wrapping_add(offset))) == Some(0) {
                continue;
            }
            for order in 0..self.orders {
                let area = zone.wrapping_add(self.free_area).wrapping_add(order * self.free_area_size).wrapping_add(self.free_list);
                for list in 0..self.lists {
                    self.list(area.wrapping_add(list * self.list_head), order);
                }
            }
        }
    }

    /// One list. It ends where it began; one that does not is damaged.
    fn list(&mut self, head: u64, order: u64) {
        let mut at = self.long(head.wrapping_add(self.next));
        let mut previous = head;
        // Brent's cycle finder: a damaged list may go round without its head.
        let (mut tortoise, mut steps, mut power) = (head, 0u64, 1u64);
        for _ in 0..ENTRIES_MAX {
            let Some(entry) = at.filter(|a| *a != 0 && *a != tortoise || *a == head) else { break };
            if entry == head {
                return;
            }
            let pfn = self.kernel.pfn(entry.wrapping_sub(self.lru));
            let Some(pfn) = pfn.filter(|pfn| u64::from(pfn.trailing_zeros()) >= order) else { break };
            // Both must hold before pages go: what links here is what this links back to, and nobody uses the page.
            if self.previous.is_some_and(|offset| self.long(entry.wrapping_add(offset)) != Some(previous)) {
                break;
            }
            let unused = self.kernel.struct_pages(pfn, 1, self.rules).is_ok_and(|page| self.rules.may_be_free(&page));
            if !unused {
                break;
            }
            self.free(Run { first_pfn: pfn, pages: 1 << order });
            previous = entry;
            steps += 1;
            if steps == power {
                (tortoise, steps, power) = (entry, 0, power.saturating_mul(2));
            }
            at = self.long(entry.wrapping_add(self.next));
        }
        self.broken += 1;
    }

    fn free(&mut self, run: Run) {
        let touches = |p: &Run| p.first_pfn < run.end_pfn() && run.first_pfn < p.end_pfn();
        if self.protected.iter().any(touches) {
            return;
        }
        self.pages += run.pages;
        match self.found.last_mut() {
            Some(last) if last.run.end_pfn() == run.first_pfn => last.run.pages += run.pages,
            _ => self.found.push(RangeVerdict { run, verdict: Verdict::FREE }),
        }
        if self.found.len() >= BATCH {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.out.ranges(&self.found);
        self.found.clear();
    }
}
