#!/usr/bin/env python3
"""formats.py [--input VMCORE] [--runs N] [--threads 1] [--out DIR]

Times what coresift does with formats, A B A B ..., in the same minutes, output to memory (/dev/shm):

    refilter    an LZO dump of level 31 into another, no page changes; B is makedumpfile
    elf         an ELF vmcore of level 31; B is makedumpfile -E
    flattened   an LZO dump as a stream; B is the same as a file, by coresift
    split       an LZO dump in two parts; B is the same as one file, by coresift
    unaligned   an ELF vmcore whose pages stand at odd offsets; B is the same with aligned ones, by coresift

Prints medians of wall and CPU seconds, and A's share of B's. It never judges. Input and tools as for run.py."""
import argparse, os, struct, subprocess, tempfile

from run import ROOT, median, real_input, timed

# Bytes that the pages of the unaligned vmcore are moved by: no multiple of a cache line.
SHIFT = 0x128


def unaligned(source, target):
    """A copy of an ELF64 vmcore with SHIFT bytes between the program headers and the rest."""
    with open(source, "rb") as old, open(target, "wb") as new:
        head = bytearray(old.read(64))
        phoff, (phentsize, phnum) = struct.unpack_from("<Q", head, 32)[0], struct.unpack_from("<HH", head, 54)
        old.seek(0)
        table = bytearray(old.read(phoff + phentsize * phnum))
        for at in range(phoff, len(table), phentsize):
            (offset,) = struct.unpack_from("<Q", table, at + 8)
            struct.pack_into("<Q", table, at + 8, offset + SHIFT)
        new.write(table + bytes(SHIFT))
        while block := old.read(1 << 20):
            new.write(block)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", default="1")
    parser.add_argument("--out", default="/dev/shm")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.out) as folder:
        source = args.input or real_input(folder)
        dump, odd, output = (os.path.join(folder, name) for name in ("dump", "unaligned", "output"))
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": True}
        subprocess.run(["makedumpfile", "-l", "-d", "31", source, dump], **quiet)
        unaligned(source, odd)
        plain = [os.path.join(ROOT, "target/release/coresift"), "dump", "-d", "31", "--force", "--progress", "none"]
        theirs = ["makedumpfile", "--message-level", "0", "-d", "31"]
        print(f"input {os.path.getsize(source) >> 20} MiB, medians of {args.runs}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
        print(f"{'case':12}{'threads':>8}{'wall s':>18}{'share':>7}{'CPU s':>18}{'share':>7}")
        for threads in args.threads.split(","):
            ours = [*plain, "--threads", threads]
            cases = {
                "refilter": ([*ours, dump, output], [*theirs, "-l", dump, output]),
                "elf": ([*ours, "--writer", "elf", source, output], [*theirs, "-E", source, output]),
                "flattened": ([*ours, "--flattened", source, output], [*ours, source, output]),
                "split": ([*ours, "--split", "2", source, output], [*ours, source, output]),
                "unaligned": ([*ours, odd, output], [*ours, source, output]),
            }
            for name, (first, second) in cases.items():
                rows = [(timed(first, output), timed(second, output)) for _ in range(args.runs + 1)][1:]
                a, b = (median(side) for side in zip(*rows))
                pair = lambda i: f"{a[i]:.3f} : {b[i]:.3f}"
                print(f"{name:12}{threads:>8}{pair(0):>18}{a[0] / b[0]:>7.2f}{pair(1):>18}{a[1] / b[1]:>7.2f}", flush=True)


if __name__ == "__main__":
    main()
