#!/usr/bin/env python3
"""mkmanifest.py FILE.elf [KEY=VALUE ...] : facts about an ELF vmcore, as JSON.
Reads ELF32/ELF64, both byte orders, any page size, program headers anywhere; written from the ELF format alone.

pfns            distinct PFNs (p_paddr / page size) with at least one byte of file data
sha256_pfns     sha256 of these PFNs, ascending, each as u64 little endian
zero_pages      how many of them are all zero
sha256_content  sha256 over (u64le PFN + page bytes), ascending.  A page's bytes: PT_LOADs in program header order,
                the first that has a byte wins; bytes that none has are zero (p_memsz beyond p_filesz is not data)
partial_pages   PFNs of which no single PT_LOAD has all bytes
page_size       PAGESIZE of VMCOREINFO: the note's, else the text found in memory (vmcoreinfo_paddr)"""
import hashlib, json, mmap, re, struct, sys


class Elf:
    def __init__(self, path):
        with open(path, "rb") as f:
            self.m = m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        if m[:4] != b"\x7fELF":
            raise SystemExit("not ELF: " + path)
        self.bits = {1: 32, 2: 64}[m[4]]
        self.order = {1: "little", 2: "big"}[m[5]]
        e = {1: "<", 2: ">"}[m[5]]
        self.machine, = struct.unpack_from(e + "H", m, 18)
        h = struct.unpack_from(e + ("3IIHHHHHH" if self.bits == 32 else "3QIHHHHHH"), m, 24)
        self.phoff, shoff, self.ehsize, phentsize, phnum = h[1], h[2], h[4], h[5], h[6]
        if phnum == 0xFFFF:
            phnum, = struct.unpack_from(e + "I", m, shoff + (28 if self.bits == 32 else 44))
        self.phnum, self.loads, self.notes = phnum, [], []
        for i in range(phnum):
            o = self.phoff + i * phentsize
            if self.bits == 32:
                t, off, va, pa, fs, ms, fl, al = struct.unpack_from(e + "8I", m, o)
            else:
                t, fl, off, va, pa, fs, ms, al = struct.unpack_from(e + "2I6Q", m, o)
            if t == 1:
                self.loads.append((off, va, pa, fs, ms))
            elif t == 4:
                p, end = off, off + fs
                while p + 12 <= end:
                    a, b, nt = struct.unpack_from(e + "3I", m, p)
                    d = p + 12 + (a + 3) // 4 * 4
                    if a == 0 or d + b > end:
                        break
                    self.notes.append((m[p + 12:p + 12 + a].rstrip(b"\0").decode("latin1"), nt, d, b))
                    p = d + (b + 3) // 4 * 4
        for off, va, pa, fs, ms in self.loads:
            if off + fs > len(m):
                raise SystemExit("PT_LOAD beyond the end of the file")

    def vmcoreinfo(self):
        """(text, physical addresses of its copies in memory; None if it is from the note)"""
        for n, t, d, size in self.notes:
            if n == "VMCOREINFO":
                return self.m[d:d + size].rstrip(b"\0").decode("latin1"), None
        rx = re.compile(rb"OSRELEASE=[^\n\0]+\n(?:[A-Za-z_-]+[^=\n\0]*=[^\n\0]*\n)+")
        best, at = b"", []
        for off, va, pa, fs, ms in self.loads:
            for g in rx.finditer(self.m, off, off + fs):
                if b"\nPAGESIZE=" in g.group() and len(g.group()) >= len(best):
                    at = (at if g.group() == best else []) + [pa + g.start() - off]
                    best = g.group()
        return best.decode("latin1"), sorted(set(at))

    def pages(self, ps):
        """yield (pfn, bytes, whole) ascending"""
        owner = {}                       # pfn -> file offset of a page that the first load with data for it has whole
        mixed = set()
        for off, va, pa, fs, ms in self.loads:
            if fs == 0:
                continue
            for pfn in range(pa // ps, (pa + fs - 1) // ps + 1):
                if pfn in owner or pfn in mixed:
                    continue
                if pfn * ps >= pa and (pfn + 1) * ps <= pa + fs:
                    owner[pfn] = off + pfn * ps - pa
                else:
                    mixed.add(pfn)
        for pfn in sorted(owner.keys() | mixed):
            if pfn in owner:
                yield pfn, self.m[owner[pfn]:owner[pfn] + ps], True
                continue
            page, have, whole, a = bytearray(ps), bytearray(ps), False, pfn * ps
            for off, va, pa, fs, ms in self.loads:
                s, t = max(a, pa), min(a + ps, pa + fs)
                whole = whole or t - s == ps
                for i in range(s, t):
                    if not have[i - a]:
                        have[i - a] = 1
                        page[i - a] = self.m[off + i - pa]
            yield pfn, bytes(page), whole


def manifest(path):
    x = Elf(path)
    text, paddr = x.vmcoreinfo()
    g = re.search(r"^PAGESIZE=(\d+)$", text, re.M)
    if not g:
        raise SystemExit("no PAGESIZE: " + path)
    ps = int(g.group(1))
    whole_file, hp, hc, n, zero, part = hashlib.sha256(), hashlib.sha256(), hashlib.sha256(), 0, 0, []
    for o in range(0, len(x.m), 1 << 22):
        whole_file.update(x.m[o:o + (1 << 22)])
    z = bytes(ps)
    first = last = None
    for pfn, b, whole in x.pages(ps):
        k = struct.pack("<Q", pfn)
        hp.update(k); hc.update(k); hc.update(b)
        n += 1
        zero += b == z
        if not whole:
            part.append(pfn)
        first = pfn if first is None else first
        last = pfn
    r = re.search(r"^OSRELEASE=(.*)$", text, re.M)
    return {
        "sha256": whole_file.hexdigest(), "size": len(x.m), "elf_class": x.bits, "byte_order": x.order, "e_machine": x.machine,
        "e_phoff": x.phoff, "e_ehsize": x.ehsize, "osrelease": r.group(1) if r else "", "page_size": ps,
        "vmcoreinfo": "note" if paddr is None else "memory", "vmcoreinfo_paddr": paddr and [hex(a) for a in paddr],
        "vmcoreinfo_size": len(text),
        "notes": [{"name": a, "type": b, "size": d} for a, b, c, d in x.notes],
        "loads": [dict(zip(("offset", "vaddr", "paddr", "filesz", "memsz"), map(hex, l))) for l in x.loads],
        "pfns": n, "first_pfn": first, "last_pfn": last, "sha256_pfns": hp.hexdigest(), "zero_pages": zero,
        "partial_pages": part, "sha256_content": hc.hexdigest(),
    }


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    out = dict(a.split("=", 1) for a in sys.argv[2:])
    out.update(manifest(sys.argv[1]))
    print(json.dumps(out, indent=1))
