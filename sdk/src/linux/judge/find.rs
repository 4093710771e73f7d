//! Picks the rules for a kernel, and says which classes they can tell.

use super::{FREE_AREAS, Gap, Next, NextHugetlb, ORDER_MAX, PageRules, STRUCT_PAGE_MAX, Typed};
use crate::linux::rules::{Fact, How, Version, pick};
use crate::linux::{Vmcoreinfo, Words};
use crate::machine::Machine;
use crate::page::{ClassSet, Verdict};

impl PageRules {
    /// Picks the rules for a kernel.
    ///
    /// # Errors
    /// Not even the layout of `struct page` is known; the sentence says what is missing.
    pub fn find(info: &Vmcoreinfo, machine: &Machine) -> Result<Self, String> {
        let words = Words::of(machine);
        let size = info.size("page").ok_or("VMCOREINFO has no SIZE(page)")?;
        let size = Some(size).filter(|s| (16..=STRUCT_PAGE_MAX).contains(s)).ok_or(format!("SIZE(page)={size} is absurd"))? as usize;
        // A member that does not lie in the struct is no member: the rule that needs it does not hold.
        let member = |name: &str, width: usize, base: usize| {
            let offset = usize::try_from(info.offset(name)?).ok()?.checked_sub(base)?;
            (offset + width <= size && offset.is_multiple_of(width)).then_some(offset)
        };
        let flags = member("page.flags", words.long, 0).ok_or("VMCOREINFO has no usable OFFSET(page.flags)")?;
        let lru_list = member("page.lru", words.long, 0).filter(|o| o + 2 * words.long <= size);
        let version = info.release().and_then(Version::parse);
        let bits = 8 * words.long;
        let mut rules = Self {
            words,
            size,
            flags,
            mapping: member("page.mapping", words.long, 0),
            mapcount: member("page._mapcount", 4, 0),
            refcount: member("page._refcount", 4, 0).or_else(|| member("page._count", 4, 0)),
            private: member("page.private", words.long, 0),
            tail: None,
            lru: 0,
            private_flag: 0,
            swapcache: 0,
            swapbacked: 0,
            head: 0,
            slab_flag: 0,
            hwpoison: 0,
            buddy_flag: 0,
            buddy: Typed::NONE,
            slab: Typed::NONE,
            offline: Typed::NONE,
            unaccepted: Typed::NONE,
            hugetlb: Typed::NONE,
            next_order: None,
            next_hugetlb: None,
            free_areas: info.length("zone.free_area").filter(|n| (1..=u64::from(ORDER_MAX)).contains(n)).unwrap_or(FREE_AREAS) as u32,
            decidable: ClassSet::default(),
            notes: Vec::new(),
            picked: Vec::new(),
        };
        let mut tails_known = false;
        let facts = [
            Fact::Buddy,
            Fact::Head,
            Fact::Tail,
            Fact::Order,
            Fact::Hugetlb,
            Fact::Slab,
            Fact::Lru,
            Fact::Private,
            Fact::Swapcache,
            Fact::Swapbacked,
            Fact::Offline,
            Fact::Unaccepted,
            Fact::Hwpoison,
        ];
        for fact in facts {
            let Some(row) = pick(fact, info, version) else { continue };
            rules.picked.push(row);
            // Members that follow the first page's: their width is the distance to their neighbour.
            let next = |name: &str, other: &str| {
                let base = if name.starts_with("folio.") { size } else { 0 };
                let width = info.offset(name)?.abs_diff(info.offset(other)?) as usize;
                let width = if matches!(width, 1 | 2 | 4) { width } else { 1 };
                Some((member(name, width, base)?, width))
            };
            let (flag, typed) = match row.how {
                How::Flag(n) => (n.bit(info, bits).unwrap_or(0), Typed::NONE),
                How::FlagMask(n) => (n.mask(info).unwrap_or(0), Typed::NONE),
                How::Type(n) if rules.mapcount.is_some() => (0, n.type_value(info).map_or(Typed::NONE, Typed::new)),
                _ => (0, Typed::NONE),
            };
            match fact {
                Fact::Buddy => (rules.buddy_flag, rules.buddy) = (flag, typed),
                Fact::Head => rules.head = flag,
                Fact::Tail => {
                    if let How::BitZero(name) = row.how {
                        rules.tail = member(name, words.long, 0);
                    }
                    tails_known = rules.tail.is_some() || row.how == How::Never;
                }
                Fact::Order => {
                    rules.next_order = match row.how {
                        How::NextField(name, other) => next(name, other).map(|(o, w)| Next::Member(o, w)),
                        How::NextLruPrev => lru_list.map(|o| Next::Member(o + words.long, words.long)),
                        _ => Some(Next::FlagsByte),
                    }
                }
                Fact::Hugetlb => {
                    rules.hugetlb = typed;
                    rules.next_hugetlb = match row.how {
                        How::NextFlag(n) => n.bit(info, bits).map(NextHugetlb::Flag),
                        How::NextFieldIs(name, other, value) => {
                            let value = info.number(value).map(i64::cast_unsigned);
                            next(name, other).zip(value).map(|((o, w), v)| NextHugetlb::MemberIs(o, w, v))
                        }
                        How::NextLruNextIs(symbol) => {
                            lru_list.zip(info.symbol(symbol)).map(|(o, v)| NextHugetlb::MemberIs(o, words.long, v))
                        }
                        _ => None,
                    };
                }
                Fact::Slab => (rules.slab_flag, rules.slab) = (flag, typed),
                Fact::Lru => rules.lru = flag,
                Fact::Private => rules.private_flag = flag,
                Fact::Swapcache => rules.swapcache = flag,
                Fact::Swapbacked => rules.swapbacked = flag,
                Fact::Offline => rules.offline = typed,
                Fact::Unaccepted => rules.unaccepted = typed,
                Fact::Hwpoison => rules.hwpoison = flag,
            }
        }
        // Since 4.10 the swap cache shares its bit with other uses and counts only beside "swapbacked". A bit below
        // PG_private is the shared one.
        if rules.swapbacked == 0 && rules.swapcache < rules.private_flag {
            rules.swapcache = 0;
        }
        rules.decide(info, version, tails_known);
        Ok(rules)
    }

    /// Which classes can be told, and what to say of the others.
    fn decide(&mut self, info: &Vmcoreinfo, version: Option<Version>, tails_known: bool) {
        let release = info.release().unwrap_or("an unknown release");
        if let Some(v) = version.filter(|v| *v > Version::NEWEST_KNOWN) {
            let newest = format!("{}.{}", Version::NEWEST_KNOWN.0, Version::NEWEST_KNOWN.1);
            let text = format!("Linux {v} is newer than the rules (up to {newest}): decided by what it exports");
            self.notes.push(Gap { class: Verdict::UNDECIDED, text });
        }
        let slab_known = self.slab_flag != 0 || self.slab != Typed::NONE;
        let (buddy_known, lru_known) = (self.buddy_flag != 0 || self.buddy != Typed::NONE, self.lru != 0);
        let mut missing = |class: Verdict, what: &str| {
            let text = format!("{release}: {} pages are kept: {what}", class.class_name().unwrap_or_default());
            self.notes.push(Gap { class, text });
        };
        // Without the mark of tails their members, which mean other things, would be taken for an owner's.
        let owners = match (self.mapping.is_some(), tails_known, self.head != 0, slab_known) {
            (false, ..) => Err("OFFSET(page.mapping) is not known"),
            (_, false, ..) => Err("OFFSET(page.compound_head) or its successor is not known"),
            (.., false, _) => Err("NUMBER(PG_head_mask) is not known"),
            (.., false) => Err("slab pages cannot be told from them"),
            _ => Ok(()),
        };
        let mut decidable = ClassSet::default();
        match owners {
            Ok(()) => {
                decidable = decidable.with(Verdict::USER);
                match (lru_known, self.private_flag != 0) {
                    (true, true) => decidable = decidable.with(Verdict::CACHE).with(Verdict::PRIVATE_CACHE),
                    (true, false) => missing(Verdict::CACHE, "NUMBER(PG_private) is not known"),
                    _ => missing(Verdict::CACHE, "NUMBER(PG_lru) is not known"),
                }
            }
            Err(why) => {
                missing(Verdict::USER, why);
                missing(Verdict::CACHE, why);
            }
        }
        if self.tail.is_some() && self.next_order.is_none() {
            let text = format!("{release}: compound pages of user memory and cache are kept: their length is not known");
            self.notes.push(Gap { class: Verdict::USER, text });
        }
        let known = [
            (Verdict::FREE, buddy_known && self.private.is_some()),
            (Verdict::HWPOISON, self.hwpoison != 0),
            (Verdict::OFFLINE, self.offline != Typed::NONE),
            (Verdict::UNACCEPTED, self.unaccepted != Typed::NONE),
        ];
        self.decidable = known.into_iter().filter(|(_, known)| *known).fold(decidable, |set, (class, _)| set.with(class));
    }
}
