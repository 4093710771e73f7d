#!/usr/bin/env python3
"""run.py [--input VMCORE] [--runs N] [--threads 1,2] [--levels 31,1] [--codecs filter,zlib,lzo,none] [--out DIR]

Times coresift against makedumpfile in the same minutes, A B A B ..., output to memory (/dev/shm). The codec `filter` is
a dry run without zero pages (level 30 for 31): deciding alone, nothing is copied.
Without --input, the real vmcore of tests/data is taken (191 MiB of memory: enough to see a slow day; for a claim, give
one of 1 GiB or more, e.g. a guest's `virsh dump --memory-only`). Prints for each level and codec the medians of wall and CPU
seconds, peak memory and size, and our share of makedumpfile's. It never judges.

makedumpfile runs without threads: with them it is slower on few CPUs. Needs Debian's makedumpfile and zstd."""
import argparse, glob, itertools, os, resource, statistics, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
OURS = {"zlib": "libdeflate", "lzo": "lzo", "none": "none"}
THEIRS = {"zlib": ["-c"], "lzo": ["-l"], "none": []}


def timed(command, output):
    # Those of a split dump have a number behind the name. Emptying an old file would count as work.
    for old in glob.glob(glob.escape(output) + "*"):
        os.unlink(old)
    begun = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.monotonic() - begun
    size = os.path.getsize(output) if os.path.exists(output) else 0
    child.returncode = status
    if status:
        sys.exit(f"{' '.join(command)}: status {status}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, size


def median(rows):
    return [statistics.median(column) for column in zip(*rows)]


def real_input(folder):
    real = os.path.join(folder, "vmcore")
    packed = os.path.join(ROOT, "tests/data/kdump-6.1.vmcore.zst")
    subprocess.run(["zstd", "-dqf", "--long=31", packed, "-o", real], check=True)
    return real


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--levels", default="31,1")
    parser.add_argument("--codecs", default="filter,zlib,lzo,none")
    parser.add_argument("--out", default="/dev/shm")
    args = parser.parse_args()
    coresift = os.path.join(ROOT, "target/release/coresift")
    with tempfile.TemporaryDirectory(dir=args.out) as folder:
        source = args.input or real_input(folder)
        output = os.path.join(folder, "dump")
        print(f"input {os.path.getsize(source) >> 20} MiB, medians of {args.runs}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
        print(f"{'level':6}{'codec':7}{'threads':>8}{'wall s':>16}{'share':>7}{'CPU s':>16}{'share':>7}{'peak MiB':>16}{'size MB':>18}{'share':>8}")
        for level, codec in itertools.product(args.levels.split(","), args.codecs.split(",")):
            if codec == "filter" and level == "1":
                continue
            for threads in args.threads.split(","):
                ours, theirs = [], []
                if codec == "filter":
                    level = str(int(level) & ~1)
                    mine, other = ["--dry-run", "--compress", "none", source], ["--dry-run", source, output]
                else:
                    mine, other = ["--compress", OURS[codec], source, output], [*THEIRS[codec], source, output]
                # One run of each to warm the input up; it does not count.
                for run in range(args.runs + 1):
                    a = timed([coresift, "dump", "-d", level, "--threads", threads, "--progress", "none", *mine], output)
                    b = timed(["makedumpfile", "--message-level", "0", "-d", level, *other], output)
                    if run:
                        ours.append(a)
                        theirs.append(b)
                a, b = median(ours), median(theirs)
                pair = lambda i, d: f"{a[i]:.{d}f} : {b[i]:.{d}f}"
                share = lambda i: f"{a[i] / b[i]:.2f}"
                size = f"{a[3] / 1e6:.1f} : {b[3] / 1e6:.1f}"
                less = f"{a[3] / b[3]:.3f}" if b[3] else "-"
                row = f"{level:6}{codec:7}{threads:>8}{pair(0, 2):>16}{share(0):>7}{pair(1, 2):>16}{share(1):>7}"
                print(f"{row}{pair(2, 1):>16}{size:>18}{less:>8}", flush=True)


if __name__ == "__main__":
    main()
