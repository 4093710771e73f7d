#!/usr/bin/python3
"""Judge of a dump: libkdumpfile, which drgn reads kdump files with, must show the pages of the input.

    compare.py INPUT.elf DUMP [--expect-missing absent | --allow-missing N] [--page-size BYTES]
    compare.py --kdump-info DUMP

DUMP is a kdump or ELF file, which libkdumpfile reads, or the parts of a split set with commas between; or a LiME image, or
a raw one (NAME.raw), for which the rules of these formats are written down here. The input is read by a small parser here
that shares nothing with coresift. One line of JSON comes out:

    pages       pages of the input that have bytes in the file (partial ones count; the rest of them is zero)
    equal       pages that the dump has with the same bytes
    different   pages that the dump has with other bytes
    missing     pages for which libkdumpfile gives an error
    absent      those of the missing that the dump does not claim to have (excluded)
    corrupt     those of the missing that are there but do not decompress
    extra       pages that the dump has and the input has not
    zero_pages  pages of the input that hold only zero bytes
    first_bad   the first of different and missing: PFN and why

Exit status: 0 if all pages are equal; 1 if not. --expect-missing absent allows excluded pages, --allow-missing N up to N
missing pages (a dump that was cut), but never a different one. A file cut by other hands than the writer's can show
different pages: libkdumpfile reads zeros behind the end of a file. 2: a file cannot be opened.

Needs Debian's python3-libkdumpfile (0.5.1 or later).
"""

import argparse
import bisect
import collections
import json
import mmap
import re
import struct
import sys

try:
    import kdumpfile
    from kdumpfile import exceptions
except ImportError as error:
    sys.exit(f"{error}: apt install python3-libkdumpfile, and run this with /usr/bin/python3")

# Bytes read and compared at once.
CHUNK = 1 << 20
FIRST_BAD = 10

PT_LOAD, PT_NOTE, PN_XNUM = 1, 4, 0xFFFF


class Elf:
    """PT_LOADs of an ELF file as pieces of physical memory that do not overlap."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self.bytes[:4] != b"\x7fELF":
            raise ValueError(f"{path} is no ELF file")
        self.wide = self.bytes[4] == 2
        self.order = ">" if self.bytes[5] == 2 else "<"
        headers = list(self.program_headers())
        self.page_size = self.find_page_size(headers)
        # (physical start, end, file offset), ascending
        self.pieces = []
        # how many of them `memory` has left behind
        self.done = 0
        for kind, offset, start, size in headers:
            if kind == PT_LOAD and size:
                add_piece(self.pieces, start, start + min(size, len(self.bytes) - offset), offset)

    def read(self, fields, at):
        return struct.unpack_from(self.order + fields, self.bytes, at)

    def program_headers(self):
        """(type, offset, physical address, file size) of each, in file order."""
        if self.wide:
            (phoff, shoff), (entry, count) = self.read("QQ", 32), self.read("HH", 54)
        else:
            (phoff, shoff), (entry, count) = self.read("II", 28), self.read("HH", 42)
        if count == PN_XNUM:
            # The count did not fit: it is sh_info of section header 0.
            (count,) = self.read("I", shoff + (44 if self.wide else 28))
        for at in range(phoff, phoff + count * entry, entry):
            if self.wide:
                kind, _, offset, _, physical, size = self.read("IIQQQQ", at)
            else:
                kind, offset, _, physical, size = self.read("IIIII", at)
            yield kind, offset, physical, size

    def find_page_size(self, headers):
        """PAGESIZE of the VMCOREINFO note, None without one."""
        for kind, offset, _, size in headers:
            at, end = offset, offset + size
            while kind == PT_NOTE and at + 12 <= end:
                name_size, text_size, _ = self.read("III", at)
                text = at + 12 + (name_size + 3 & ~3)
                if self.bytes[at + 12 : at + 12 + name_size] == b"VMCOREINFO\0":
                    found = re.search(rb"^PAGESIZE=(\d+)$", self.bytes[text : text + text_size], re.M)
                    return int(found[1]) if found else None
                at = text + (text_size + 3 & ~3)
        return None

    def page_runs(self, page_size):
        """Runs of PFNs, [first, end), that have bytes in the file."""
        runs = []
        for start, end, _ in self.pieces:
            first, end = start // page_size, -(-end // page_size)
            if runs and first <= runs[-1][1]:
                runs[-1][1] = end
            else:
                runs.append([first, end])
        return runs

    def memory(self, start, end):
        """Bytes of physical memory; zero where the file has none. Asked for in ascending order."""
        while self.done < len(self.pieces) and self.pieces[self.done][1] <= start:
            self.done += 1
        parts, at = [], start
        for i in range(self.done, len(self.pieces)):
            piece_start, piece_end, offset = self.pieces[i]
            if piece_start >= end:
                break
            begin, stop = max(piece_start, at), min(piece_end, end)
            parts.append(bytes(begin - at))
            parts.append(self.bytes[offset + begin - piece_start : offset + stop - piece_start])
            at = stop
        parts.append(bytes(end - at))
        return b"".join(parts)


def add_piece(pieces, start, end, offset):
    """Adds a piece where none is yet: of overlapping PT_LOADs the first in the file counts. Files have them in ascending
    order mostly, and 70000 of them at times, so looking at all pieces for each will not do."""
    at = bisect.bisect_right(pieces, (start, 0, 0))
    if at and pieces[at - 1][1] > start:
        at -= 1
    new = []
    until = at
    while start < end and until < len(pieces) and pieces[until][0] < end:
        taken_start, taken_end, _ = pieces[until]
        if start < taken_start:
            new.append((start, taken_start, offset))
        new.append(pieces[until])
        if taken_end > start:
            start, offset = taken_end, offset + taken_end - start
        until += 1
    if start < end:
        new.append((start, end, offset))
    pieces[at:until] = new


class Dump:
    """A dump, or one part of a split set, as libkdumpfile sees it."""

    def __init__(self, path):
        self.context = kdumpfile.kdumpfile(file=path)
        # A page mapped behind the end of a cut file would be a SIGBUS. 0 is KDUMP_MMAP_NEVER.
        self.context.attr["file.mmap_policy"] = 0
        self.page_size = self.attr("arch.page_size")
        self.runs = list(self.find_runs())
        if self.attr("max_pfn") == 0 and self.runs:
            # libkdumpfile 0.5.1 knows the i386 layout only: of ARM, MIPS and PowerPC files of 32 bits it reads the
            # fields behind the page map wrong, finds no notes, and would refuse every page.
            self.context.attr["max_pfn"] = self.runs[-1][1]

    def attr(self, name):
        """An attribute, None if libkdumpfile has no value for it."""
        try:
            return self.context.attr[name]
        except (KeyError, exceptions.KDumpBaseException):
            return None

    def find_runs(self):
        """Runs of PFNs, [first, end), that the dump claims to have."""
        pagemap, end = self.context.attr["file.pagemap"], 0
        while True:
            try:
                first = pagemap.find_set(end)
            except exceptions.NoDataException:
                return
            end = pagemap.find_clear(first)
            # For ELF files 0.5.1 says so at the end.
            if end <= first:
                return
            yield first, end

    # Physical addresses need no page tables, so libkdumpfile 0.5.1 reads them even of architectures that it does not
    # know (riscv64, loongarch64): there arch.name is missing, and virtual addresses do not work.
    def read(self, first, end):
        return self.context.read(kdumpfile.KDUMP_MACHPHYSADDR, first * self.page_size, (end - first) * self.page_size)


class Lime:
    """A LiME image (lime.h): ranges of physical memory, each behind a header of 32 bytes."""

    def __init__(self, path, page_size):
        self.page_size, self.pieces = page_size, []
        with open(path, "rb") as file:
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        at = 0
        while at < len(self.bytes):
            magic, version, first, last, reserved = struct.unpack_from("<IIQQ8s", self.bytes, at)
            if (magic, version, reserved) != (0x4C694D45, 1, bytes(8)) or at + 33 + last - first > len(self.bytes):
                raise ValueError(f"{path}: no LiME header at {at}, or the file ends within its range")
            self.pieces.append((first // page_size, (last + 1) // page_size, at + 32))
            at += 33 + last - first
        self.runs = [(first, end) for first, end, _ in self.pieces]

    def read(self, first, end):
        for piece_first, piece_end, offset in self.pieces:
            if piece_first <= first and end <= piece_end:
                offset += (first - piece_first) * self.page_size
                return self.bytes[offset : offset + (end - first) * self.page_size]
        raise ValueError("no page")


class Raw:
    """A raw image: the byte of a physical address stands at that offset of the file."""

    def __init__(self, path, page_size):
        self.page_size = page_size
        with open(path, "rb") as file:
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.runs = [(0, len(self.bytes) // page_size)]

    def read(self, first, end):
        return self.bytes[first * self.page_size : end * self.page_size]


def open_dump(path, page_size):
    with open(path, "rb") as file:
        magic = file.read(4)
    if path.endswith(".raw"):
        return Raw(path, page_size)
    return Lime(path, page_size) if magic == b"EMiL" else Dump(path)


class Result:
    def __init__(self, page_size):
        self.page_size, self.zero = page_size, bytes(page_size)
        self.pages = self.equal = self.different = self.missing = self.absent = self.corrupt = self.extra = self.zero_pages = 0
        self.first_bad = []

    def bad(self, pfn, why):
        if len(self.first_bad) < FIRST_BAD:
            self.first_bad.append([hex(pfn), why])

    def count_absent(self, first, pages):
        self.missing += pages
        self.absent += pages
        for pfn in range(first, first + min(pages, FIRST_BAD)):
            self.bad(pfn, "excluded")

    def compare(self, dump, first, expected):
        """Compares pages that the dump claims to have."""
        size = self.page_size
        end = first + len(expected) // size
        try:
            if dump.read(first, end) == expected:
                self.equal += end - first
                return
        except exceptions.KDumpBaseException:
            pass
        for pfn in range(first, end):
            try:
                if dump.read(pfn, pfn + 1) == expected[(pfn - first) * size : (pfn - first + 1) * size]:
                    self.equal += 1
                else:
                    self.different += 1
                    self.bad(pfn, "other bytes")
            except exceptions.KDumpBaseException as error:
                self.missing += 1
                # Size 0 is an empty descriptor: the dump has lost the page.
                corrupt = isinstance(error, exceptions.CorruptException) and not re.search(r"Wrong page size: 0\b", str(error))
                self.corrupt += corrupt
                self.bad(pfn, str(error))


def intersect(runs, first, end):
    """Pieces of [first, end), ascending, with the dump that claims each or None. Drops the runs that are done."""
    while first < end:
        while runs and runs[0][1] <= first:
            runs.popleft()
        start, stop, dump = runs[0] if runs else (end, end, None)
        within = start <= first
        until = min(end, stop if within else start)
        yield first, until, dump if within else None
        first = until


def compare(elf, dumps, page_size):
    result = Result(page_size)
    claimed = collections.deque(sorted(((first, end, dump) for dump in dumps for first, end in dump.runs), key=lambda run: run[0]))
    result.extra = sum(end - first for first, end, _ in claimed)
    step = max(1, CHUNK // page_size)
    for run_first, run_end in elf.page_runs(page_size):
        result.pages += run_end - run_first
        for first in range(run_first, run_end, step):
            end = min(first + step, run_end)
            expected = elf.memory(first * page_size, end * page_size)
            result.zero_pages += sum(expected[at : at + page_size] == result.zero for at in range(0, len(expected), page_size))
            for start, stop, dump in intersect(claimed, first, end):
                if dump:
                    # What the input takes of the dump's pages is not extra.
                    result.extra -= stop - start
                    result.compare(dump, start, expected[(start - first) * page_size : (stop - first) * page_size])
                else:
                    result.count_absent(start, stop - start)
    return result


def info(dump):
    names = ("sysname", "nodename", "release", "version", "machine", "domainname")
    return {
        "format": dump.attr("file.description"),
        "utsname": {name: dump.attr(f"linux.uts.{name}") for name in names},
        "arch": dump.attr("arch.name"),
        "byte_order": {0: "big", 1: "little"}.get(dump.attr("arch.byte_order")),
        "word_bits": 8 * (dump.attr("arch.ptr_size") or 0),
        "page_size": dump.page_size,
        "max_pfn": dump.attr("max_pfn"),
        "phys_base": dump.attr("linux.phys_base"),
        "cpus": dump.attr("cpu.number"),
        "vmcoreinfo": dump.attr("linux.vmcoreinfo.raw") is not None,
        "osrelease": dump.attr("linux.vmcoreinfo.lines.OSRELEASE"),
        "pages": sum(end - first for first, end in dump.runs),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--kdump-info", action="store_true")
    parser.add_argument("--expect-missing", choices=["none", "absent"], default="none")
    parser.add_argument("--allow-missing", type=int, default=0, metavar="N")
    parser.add_argument("--page-size", type=int, help="where the input has no VMCOREINFO (default: the dump's)")
    args = parser.parse_args()
    if len(args.files) != (1 if args.kdump_info else 2):
        parser.error("--kdump-info takes DUMP, else INPUT.elf and DUMP")
    try:
        elf = None if args.kdump_info else Elf(args.files[0])
        told = args.page_size or (elf and elf.page_size) or 4096
        # Each part of a split set by itself: the Python binding of 0.5.1 cannot open a set.
        dumps = [open_dump(path, told) for path in args.files[-1].split(",")]
    except (OSError, ValueError, struct.error, exceptions.KDumpBaseException) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    if args.kdump_info:
        print(json.dumps(info(dumps[0])))
        return 0
    page_size = args.page_size or elf.page_size or dumps[0].page_size
    if any(dump.page_size != page_size for dump in dumps):
        print(f"compare.py: the input has pages of {page_size} bytes, the dump of {dumps[0].page_size}", file=sys.stderr)
        return 1
    result = compare(elf, dumps, page_size)
    keys = ("pages", "equal", "different", "missing", "absent", "corrupt", "extra", "zero_pages", "first_bad")
    print(json.dumps({key: getattr(result, key) for key in keys}))
    unexpected = result.missing - (result.absent if args.expect_missing == "absent" else 0)
    return 1 if result.different or unexpected > args.allow_missing else 0


if __name__ == "__main__":
    sys.exit(main())
