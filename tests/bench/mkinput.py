#!/usr/bin/env python3
"""mkinput.py VMCORE OUT [MIB]: makes a large vmcore out of a real one, for timing.

The memory of an ELF64 little-endian vmcore is laid into OUT again and again at ascending physical addresses, each copy
as PT_LOADs of its own, until OUT has at least MIB mebibytes (default 1200). Every page is a real page; page tables and
notes are those of the first copy, so that makedumpfile -d 1 takes it too."""
import struct, sys

PT_LOAD, PT_NOTE, PAGE, ALIGN = 1, 4, 4096, 128 << 20

def main():
    source, target = sys.argv[1:3]
    size = (int(sys.argv[3]) if len(sys.argv) > 3 else 1200) << 20
    with open(source, "rb") as f:
        ehdr = bytearray(f.read(64))
        if ehdr[:6] != b"\x7fELF\x02\x01":
            sys.exit(f"{source}: not an ELF64 little-endian vmcore")
        phoff, = struct.unpack_from("<Q", ehdr, 32)
        entry, count = struct.unpack_from("<HH", ehdr, 54)
        f.seek(phoff)
        headers = [list(struct.unpack("<IIQQQQQQ", f.read(entry)[:56])) for _ in range(count)]
        loads = [h for h in headers if h[0] == PT_LOAD]
        f.seek(next(h for h in headers if h[0] == PT_NOTE)[2])
        notes = f.read(next(h for h in headers if h[0] == PT_NOTE)[5])
        # One copy: the loads of the direct map; the kernel image stands in them again.
        biggest = max(h[5] for h in loads)
        tile = [h for h in loads if h[3] >> 47 and h[3] < 0xffffffff80000000] or [h for h in loads if h[5] == biggest]
        one = sum(h[5] for h in tile)
        top = (max(h[4] + h[6] for h in loads) + ALIGN - 1) // ALIGN * ALIGN
        copies = max(0, -(-(size - sum(h[5] for h in loads)) // one))
        out = [(h, h[3], h[4]) for h in loads]
        out += [(h, h[3] + top * (i + 1), h[4] + top * (i + 1)) for i in range(copies) for h in tile]
        at = (64 + 56 * (len(out) + 1) + len(notes) + PAGE - 1) // PAGE * PAGE
        table = struct.pack("<IIQQQQQQ", PT_NOTE, 0, 64 + 56 * (len(out) + 1), 0, 0, len(notes), len(notes), 0)
        with open(target, "wb") as g:
            for h, vaddr, paddr in out:
                table += struct.pack("<IIQQQQQQ", PT_LOAD, 7, at, vaddr, paddr, h[5], h[6], 0)
                g.seek(at)
                f.seek(h[2])
                left = h[5]
                while left:
                    block = f.read(min(left, 4 << 20))
                    g.write(block)
                    left -= len(block)
                at = (at + h[5] + PAGE - 1) // PAGE * PAGE
            struct.pack_into("<QQ", ehdr, 32, 64, 0)
            struct.pack_into("<HHHHHH", ehdr, 52, 64, 56, len(out) + 1, 0, 0, 0)
            g.seek(0)
            g.write(ehdr + table + notes)

main()
