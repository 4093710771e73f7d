//! VMCOREINFO: the text by which a kernel tells dump tools its layout.
//!
//! Lines of `KEY=value`, made at boot by kernel/vmcore_info.c (kernel/crash_core.c before Linux 6.9) and by
//! arch_crash_save_vmcoreinfo() of each architecture, found in the vmcore as a note or in memory. Keys and their meaning:
//! Documentation/admin-guide/kdump/vmcoreinfo.rst.
//!
//! The text is small (one page of memory, some 150 lines) and asked for some hundred values a run: it stays a text that
//! is searched, an index would not pay.

use crate::machine::vmcoreinfo_value;

/// Longest text that is looked at. Kernels give it one page, at most 256 KiB; a note may claim anything.
const MAX_BYTES: usize = 1 << 20;

/// A VMCOREINFO text. Junk between the lines does no harm; of several lines with the same key the first one counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vmcoreinfo {
    text: Vec<u8>,
}

impl Vmcoreinfo {
    /// Takes the text of a note; whatever it is, this cannot fail. What goes beyond 1 MiB is left out.
    pub fn parse(text: &[u8]) -> Self {
        Self { text: text.get(..MAX_BYTES).unwrap_or(text).to_vec() }
    }

    /// Keys and values as they stand there, in order, duplicates too. Lines that are no UTF-8 or have no `=` are left out.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let lines = self.text.split(|&b| b == b'\n' || b == 0);
        lines.filter_map(|line| std::str::from_utf8(line).ok()?.split_once('='))
    }

    /// Value of a key that has no accessor of its own.
    pub fn get(&self, key: &str) -> Option<&str> {
        vmcoreinfo_value(&self.text, key).map(str::trim)
    }

    /// `uname -r` of the kernel.
    pub fn release(&self) -> Option<&str> {
        self.get("OSRELEASE")
    }

    /// The kernel's build ID in hexadecimal digits, from Linux 5.9 on.
    pub fn build_id(&self) -> Option<&str> {
        self.get("BUILD-ID")
    }

    /// Page size in bytes.
    pub fn page_size(&self) -> Option<u64> {
        self.get("PAGESIZE")?.parse().ok()
    }

    /// Seconds since 1970 at the crash; `None` if the kernel still ran when it was dumped (QEMU, libvirt).
    pub fn crash_time(&self) -> Option<u64> {
        self.get("CRASHTIME")?.parse().ok()
    }

    /// How far KASLR moved the kernel up from its link address.
    pub fn kaslr_offset(&self) -> Option<u64> {
        hexadecimal(self.get("KERNELOFFSET")?)
    }

    /// Address of a kernel symbol, after KASLR.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        hexadecimal(self.get(&format!("SYMBOL({name})"))?)
    }

    /// Bytes of a type, for example `page` for `struct page`.
    pub fn size(&self, name: &str) -> Option<u64> {
        self.get(&format!("SIZE({name})"))?.parse().ok()
    }

    /// Byte offset of a member in its struct, for example `page.flags`.
    pub fn offset(&self, member: &str) -> Option<u64> {
        self.get(&format!("OFFSET({member})"))?.parse().ok()
    }

    /// Elements of an array: of a variable, or of a member such as `zone.free_area`.
    pub fn length(&self, name: &str) -> Option<u64> {
        self.get(&format!("LENGTH({name})"))?.parse().ok()
    }

    /// A number: an enumerator, a constant, a variable's value at boot.
    ///
    /// Kernels print signed decimals, but some architectures print addresses and masks: hexadecimal with `0x`, or decimal
    /// beyond [`i64::MAX`]. Those come out as the same 64 bits; `cast_unsigned` gives them back.
    pub fn number(&self, name: &str) -> Option<i64> {
        let text = self.get(&format!("NUMBER({name})"))?;
        let unsigned = || text.parse::<u64>().ok().or_else(|| hexadecimal(text.strip_prefix("0x")?));
        text.parse().ok().or_else(|| unsigned().map(u64::cast_signed))
    }
}

/// Kernels print with `%lx`: no `0x`. Some dump tools that make the text up do.
fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the vmcore of a Debian kernel after a panic.
    const LINUX_6_1: &str = "\
OSRELEASE=6.1.0-57-cloud-amd64
BUILD-ID=01d2640d3a13145ee314eb05b155f141b7b7058b
PAGESIZE=4096
SYMBOL(init_uts_ns)=ffffffffa9df9b60
OFFSET(uts_namespace.name)=0
SYMBOL(mem_section)=ffff8a89d3fd3000
LENGTH(mem_section)=2048
SIZE(mem_section)=16
SIZE(page)=64
OFFSET(page.flags)=0
OFFSET(page._mapcount)=48
OFFSET(pglist_data.node_start_pfn)=171560
LENGTH(zone.free_area)=11
NUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)=-129
NUMBER(phys_base)=-400556032
NUMBER(pgtable_l5_enabled)=0
KERNELOFFSET=27200000
NUMBER(KERNEL_IMAGE_SIZE)=1073741824
CRASHTIME=1796071143
";

    #[test]
    fn a_real_text_gives_typed_values() {
        let v = Vmcoreinfo::parse(LINUX_6_1.as_bytes());
        assert_eq!(v.release(), Some("6.1.0-57-cloud-amd64"));
        assert_eq!(v.build_id(), Some("01d2640d3a13145ee314eb05b155f141b7b7058b"));
        assert_eq!(v.page_size(), Some(4096));
        assert_eq!(v.crash_time(), Some(1_796_071_143));
        assert_eq!(v.kaslr_offset(), Some(0x2720_0000));
        assert_eq!(v.symbol("mem_section"), Some(0xffff_8a89_d3fd_3000));
        assert_eq!(v.size("page"), Some(64));
        assert_eq!(v.offset("page._mapcount"), Some(48));
        assert_eq!(v.offset("pglist_data.node_start_pfn"), Some(171_560));
        assert_eq!((v.length("mem_section"), v.size("mem_section")), (Some(2048), Some(16)));
        assert_eq!(v.length("zone.free_area"), Some(11));
        assert_eq!(v.number("PAGE_BUDDY_MAPCOUNT_VALUE"), Some(-129));
        assert_eq!(v.number("phys_base"), Some(-400_556_032));
        assert_eq!(v.iter().count(), LINUX_6_1.lines().count());
        assert_eq!(v.iter().nth(2), Some(("PAGESIZE", "4096")));
    }

    #[test]
    fn what_is_not_there_is_none() {
        let v = Vmcoreinfo::parse(LINUX_6_1.as_bytes());
        assert_eq!(v.symbol("mem_map"), None);
        assert_eq!(v.symbol("mem_sectio"), None, "a name is not a prefix");
        assert_eq!(v.size("page.flags"), None);
        let nothing = Vmcoreinfo::parse(b"");
        assert_eq!((nothing.release(), nothing.page_size(), nothing.iter().count()), (None, None, 0));
    }

    #[test]
    fn unsigned_and_hexadecimal_numbers_keep_their_bits() {
        // arm64: NUMBER(PHYS_OFFSET)=0x%llx, NUMBER(kimage_voffset)=0x%llx; x86_64: NUMBER(sme_mask)=%lld of a u64.
        let v = Vmcoreinfo::parse(
            b"NUMBER(a)=0xffffddd6d5a00000\nNUMBER(b)=18446744073709551615\nNUMBER(c)=0x\nNUMBER(d)=99999999999999999999\n",
        );
        assert_eq!(v.number("a").map(i64::cast_unsigned), Some(0xffff_ddd6_d5a0_0000));
        assert_eq!(v.number("b"), Some(-1));
        assert_eq!((v.number("c"), v.number("d")), (None, None));
    }

    #[test]
    fn junk_does_no_harm() {
        let text = b"\n\n=\nPAGESIZE\nnonsense\nOSRELEASE=\xff\xfe\nOSRELEASE=good \nOSRELEASE=late\nPAGESIZE=x\nPAGESIZE=4096\nSYMBOL(a)=zz\0\0CRASHTIME=7";
        let v = Vmcoreinfo::parse(text);
        assert_eq!(v.release(), Some("good"), "the first that is a text");
        assert_eq!(v.page_size(), None, "the first counts, even if it makes no sense");
        assert_eq!(v.symbol("a"), None);
        assert_eq!(v.crash_time(), Some(7), "NUL ends a line, too");
        assert_eq!(v.iter().next(), Some(("", "")));
    }

    #[test]
    fn an_endless_text_is_cut() {
        let mut text = vec![b'x'; MAX_BYTES];
        text.extend_from_slice(b"\nPAGESIZE=4096\n");
        assert_eq!(Vmcoreinfo::parse(&text).page_size(), None);
    }
}
