//! Pages being put into RAM: their struct pages and what is expected of them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

use super::Class;
use super::layout::{Huge, Layout, Link, Order};
use super::memory::Memory;
use super::model::{FRAME, Free, MemMap};

/// The values of a struct page that matter.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // names are the kernel's
pub struct Fields {
    pub flags: u64,
    pub mapping: u64,
    pub index: u64,
    pub private: u64,
    pub lru: [u64; 2],
    /// `_mapcount` or page_type
    pub mapcount: i32,
    pub refcount: u32,
    /// further members: offset, value, width; written last
    pub more: Vec<(u64, u64, u64)>,
}

impl Default for Fields {
    /// An allocated page that nobody maps.
    fn default() -> Self {
        Self { flags: 0, mapping: 0, index: 0, private: 0, lru: [0, 0], mapcount: -1, refcount: 1, more: Vec::new() }
    }
}

/// Whose compound page it is: the destructor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compound {
    /// free_compound_page, COMPOUND_PAGE_DTOR
    Plain,
    /// free_huge_page, HUGETLB_PAGE_DTOR
    Huge,
    /// free_compound_page, TRANSHUGE_PAGE_DTOR
    Trans,
}

/// Whose struct pages, of which some are not to be written.
#[derive(Debug)]
pub struct Scene<'a> {
    /// machine's RAM
    pub memory: &'a mut Memory,
    /// struct pages
    pub map: &'a mut MemMap,
    /// version
    pub layout: Layout,
    /// address of free_huge_page
    pub free_huge_page: u64,
    /// what is expected of each PFN
    pub expected: BTreeMap<u64, (Class, &'static str)>,
    /// free blocks that are on the lists
    pub free: Free,
    fields: BTreeMap<u64, Fields>,
    shared: HashSet<u64>,
    blank: BTreeSet<u64>,
}

impl<'a> Scene<'a> {
    /// An empty scene.
    pub fn new(memory: &'a mut Memory, map: &'a mut MemMap, layout: Layout, free_huge_page: u64) -> Self {
        Self {
            memory,
            map,
            layout,
            free_huge_page,
            expected: BTreeMap::new(),
            free: Vec::new(),
            fields: BTreeMap::new(),
            shared: HashSet::new(),
            blank: BTreeSet::new(),
        }
    }

    fn note(&mut self, pfns: Range<u64>, class: Class, what: &'static str) {
        for pfn in pfns {
            assert!(self.expected.insert(pfn, (class, what)).is_none(), "{what}: {pfn:#x} twice");
        }
    }

    /// Pages without a struct page that can be read: kept, whatever they are.
    pub fn set_unknown(&mut self, pfns: Range<u64>) {
        for pfn in pfns {
            if !self.map.readable(self.memory, &self.layout, pfn) && self.memory.take(0, pfn..pfn + 1).is_some() {
                self.note(pfn..pfn + 1, Class::Kept, "no struct page");
            }
        }
    }

    /// One page.
    pub fn page(&mut self, within: &Range<u64>, what: &'static str, class: Class, fields: Fields) {
        if let Some(pfn) = self.memory.take(0, within.clone()) {
            self.note(pfn..pfn + 1, class, what);
            self.fields.insert(pfn, fields);
        }
    }

    /// Several pages of one kind, each on its own.
    pub fn pages(&mut self, within: &Range<u64>, count: usize, what: &'static str, class: Class, fields: &Fields) {
        for _ in 0..count {
            self.page(within, what, class, fields.clone());
        }
    }

    /// A block of which only the first page says what it is: free or unaccepted memory.
    pub fn block(&mut self, within: &Range<u64>, order: u32, what: &'static str, class: Class, head: Fields) {
        if let Some(pfn) = self.memory.take(order, within.clone()) {
            self.at(pfn, order, what, class, head);
            if class == Class::Free {
                self.free.push((order, pfn));
            }
        }
    }

    /// The same at a place that is taken already.
    pub fn at(&mut self, pfn: u64, order: u32, what: &'static str, class: Class, head: Fields) {
        let end = pfn + (1 << order);
        self.note(pfn..end, class, what);
        let refcount = if class == Class::Kept { 1 } else { 0 };
        for tail in pfn + 1..end {
            self.fields.insert(tail, Fields { refcount, ..Fields::default() });
        }
        self.fields.insert(pfn, head);
    }

    /// A compound page; `None` if there is no room.
    pub fn compound(
        &mut self,
        within: &Range<u64>,
        order: u32,
        what: &'static str,
        class: Class,
        kind: Compound,
        head: Fields,
    ) -> Option<u64> {
        let pfn = self.memory.take(order, within.clone())?;
        self.note(pfn..pfn + (1 << order), class, what);
        self.compose(pfn, order, kind, head);
        Some(pfn)
    }

    /// prep_compound_page(), mm/page_alloc.c of each version.
    fn compose(&mut self, pfn: u64, order: u32, kind: Compound, mut head: Fields) {
        let (layout, flags) = (self.layout, self.layout.flags);
        let va = self.map.va(&layout, pfn).expect("its struct page");
        head.flags |= 1 << flags.head;
        if layout.version < (2, 6, 22) {
            head.private = va; // PG_compound on all of them, page.private says which is the head
        }
        if let (Compound::Huge, Huge::Type(kind)) = (kind, layout.huge) {
            head.mapcount = kind;
        }
        for n in 1..1u64 << order {
            let mut tail = Fields { refcount: 0, ..self.tail(va, order) };
            if layout.link != Link::Private {
                // TAIL_MAPPING, include/linux/poison.h; in the first tails counters have its place, and may be odd
                tail.mapping = if n < 3 { 0x201 } else { 0xdead_0000_0000_0400 & self.mask() };
            }
            if n == 1 {
                self.first_tail(&mut tail, order, kind);
            }
            self.fields.insert(pfn + n, tail);
        }
        self.fields.insert(pfn, head);
    }

    fn mask(&self) -> u64 {
        if self.layout.word() == 4 { 0xffff_ffff } else { u64::MAX }
    }

    /// A tail of the head at `va`.
    pub fn tail(&self, va: u64, order: u32) -> Fields {
        let (layout, flags) = (self.layout, self.layout.flags);
        let mut tail = Fields { refcount: 0, ..Fields::default() };
        match layout.link {
            Link::Private => {
                tail.private = va;
                tail.flags = match flags.tail {
                    Some(bit) if bit == flags.head + 1 => 1 << bit,
                    Some(bit) => 1 << flags.head | 1 << bit,
                    None => 1 << flags.head,
                };
            }
            Link::Head | Link::Info => tail.more.push((layout.compound_head(), va | 1, layout.word())),
            Link::Mask => {
                // set_compound_head() of 7.1: GENMASK(63, order + order_base_2(sizeof(struct page))) | 1
                let mask = u64::MAX << (order + layout.size().trailing_zeros());
                tail.more.push((layout.compound_head(), mask | 1, layout.word()));
            }
        }
        tail
    }

    fn first_tail(&self, tail: &mut Fields, order: u32, kind: Compound) {
        let layout = self.layout;
        match layout.order {
            Order::Lru => {
                let dtor = if kind == Compound::Huge { self.free_huge_page } else { self.free_huge_page + 0x40 };
                tail.lru = [dtor, order.into()];
            }
            Order::Field { width, .. } => {
                let (dtor, at) = layout.dtor_and_order(width);
                let number = match kind {
                    Compound::Plain => 1,
                    Compound::Huge => 2,
                    Compound::Trans => 3,
                };
                tail.more.extend([(dtor, number, width), (at, order.into(), width)]);
            }
            Order::Flags => {
                tail.flags = order.into();
                if let (Compound::Huge, Huge::Flag(bit)) = (kind, layout.huge) {
                    tail.flags |= 1 << bit;
                }
            }
        }
    }

    /// Hugetlb vmemmap optimisation of a compound page: of its struct pages only the first frame is its own.
    ///
    /// To 7.0 the others show that frame again (mm/hugetlb_vmemmap.c, "reuse"; so struct page 64 looks like the head: a fake
    /// head), since 7.1 they show one frame full of tails, whose masks suit every head of this size.
    pub fn optimise(&mut self, pfn: u64, order: u32) {
        let layout = self.layout;
        let first = self.map.va(&layout, pfn).expect("its struct page");
        let own = *self.map.frames.get(&(first / FRAME)).expect("mapped");
        let frames = (layout.size() << order) / FRAME;
        let per_frame = FRAME / layout.size();
        let other = if layout.link == Link::Mask { *self.map.frames.get(&(first / FRAME + 1)).expect("mapped") } else { own };
        self.map.frames.extend((1..frames).map(|n| (first / FRAME + n, other)));
        let written = if layout.link == Link::Mask { 2 * per_frame } else { per_frame };
        self.shared.extend(pfn + written..pfn + (1 << order));
    }

    /// Pages nobody took are the kernel's; the kernel's structures are reserved.
    pub fn rest(&mut self) {
        for (i, pfn) in self.memory.rest().into_iter().enumerate() {
            self.note(pfn..pfn + 1, Class::Kept, "kernel");
            self.fields.insert(pfn, Fields::default());
            if i % 7 == 3 {
                self.blank.insert(pfn);
            }
        }
        let reserved = Fields { flags: 1 << self.layout.flags.reserved, ..Fields::default() };
        for pfn in self.memory.system.clone() {
            self.note(pfn..pfn + 1, Class::Kept, "structures");
            self.fields.insert(pfn, reserved.clone());
        }
    }

    /// Writes the struct pages, and a mark into every page that is nobody's structure: kept ones say their PFN, of the others
    /// every second is zero.
    pub fn write(&mut self) {
        let layout = self.layout;
        // zone, node and section are in the top bits of flags
        let zone = 1u64 << (8 * layout.word() - 2);
        for (pfn, page) in std::mem::take(&mut self.fields) {
            let Some(va) = self.map.va(&layout, pfn).filter(|_| !self.shared.contains(&pfn)) else { continue };
            let word = layout.word();
            let mut members =
                vec![(0, page.flags | zone, word), (layout.mapping(), page.mapping, word), (layout.index(), page.index, word)];
            members.extend([
                (layout.lru(), page.lru[0], word),
                (layout.lru() + word, page.lru[1], word),
                (layout.private(), page.private, word),
            ]);
            members.extend([(layout.mapcount(), page.mapcount as u32 as u64, 4), (layout.refcount(), page.refcount.into(), 4)]);
            for (at, value, width) in members.into_iter().chain(page.more) {
                let bytes = self.memory.bytes(value, width);
                self.map.write(self.memory, va + at, &bytes);
            }
        }
        let shift = layout.arch.page_shift();
        for (pfn, (class, _)) in &self.expected {
            let ours = self.memory.system.contains(pfn);
            if !ours && !self.blank.contains(pfn) && (*class == Class::Kept || pfn % 2 == 0) {
                let mut mark = b"synthpfn".to_vec();
                mark.extend(pfn.to_le_bytes());
                self.memory.write(pfn << shift, &mark);
            }
        }
    }
}
