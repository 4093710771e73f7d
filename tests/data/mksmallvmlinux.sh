#!/usr/bin/env bash
# mksmallvmlinux.sh VMLINUX OUT [CRASH-BINARY...]
#
# Reduce a debug vmlinux (500 MB and more) to a namelist of a few MB that the
# crash utility accepts: `crash OUT DUMP`.  What is kept:
#   - the sections with their addresses; contents zeroed, but for .notes (build id)
#   - the symbol table without names that the build makes up
#   - the text of linux_banner (crash compares it with the dump's)
#   - DWARF: every type, compiled anew from the kernel's BTF, and the types and
#     addresses of the variables that a crash binary mentions by name; the bounds of the
#     functions it mentions, and one constant (for HZ)
# No line numbers, no code, no data.
#
# Needs: bpftool gcc binutils gdb python3 (and zstd for OUT.zst).
# CRASH-BINARY: default $(command -v crash); give more to serve several versions.
set -euo pipefail
export LC_ALL=C
vm=$(realpath "${1:?usage: $0 VMLINUX OUT [CRASH-BINARY...]}")
out=$(realpath -m "${2:?usage: $0 VMLINUX OUT [CRASH-BINARY...]}")
shift 2
[ $# -gt 0 ] || set -- "$(command -v crash)"
for b in "$@"; do [ -r "$b" ] || { echo "cannot read $b" >&2; exit 1; }; done
crash_bins=$(realpath "$@")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"

# 1. All types as C, from BTF.
bpftool btf dump file "$vm" format c | sed '/preserve_access_index/d' > types.c

# 2. Variables whose name is in a crash binary (as a string or the tail of one: the
#    linker merges those); names that are not unique in vmlinux are left out.
nm -S "$vm" > nm.txt
expire=$(gdb -nx -batch -ex 'output write_expire' "$vm" 2> /dev/null | grep -xE '[0-9]+' || true)
# shellcheck disable=SC2086
python3 - "$expire" $crash_bins > vars.txt <<'P'
import collections, re, sys
words = set()
for f in sys.argv[2:]:
    for m in re.finditer(rb"[A-Za-z0-9_]{3,}(?=\0)", open(f, "rb").read()):
        w = m.group().decode()
        words.update(w[i:] for i in range(len(w) - 2))
seen = collections.Counter(); addr = {}; func = {}; abs = {}
for line in open("nm.txt"):
    p = line.split()
    name = p[-1]
    abs[name] = p[0]
    seen[name] += 1
    if name in words:
        if p[-2] in "DdBbRrVvA":
            addr[name] = p[0]
        elif p[-2] in "Tt" and len(p) == 4:
            func[name] = p[0], p[1]
for n in sorted(addr):
    if seen[n] == 1:
        print(n, addr[n])
# a compile unit with nothing but the functions, and a constant that crash takes from the scope
# of one of them: mq-deadline's write_expire is 5 * HZ
with open("funcs.s", "w") as f:
    f.write('''.section .debug_abbrev,"",@progbits
0: .uleb128 1,0x11; .byte 1; .uleb128 3,8, 0x13,5, 0x11,1, 0x12,1, 0,0
.uleb128 2,0x2e; .byte 0; .uleb128 3,8, 0x11,1, 0x12,1, 0,0
.uleb128 3,0x24; .byte 0; .uleb128 3,8, 0x0b,0x0b, 0x3e,0x0b, 0,0
.uleb128 4,0x34; .byte 0; .uleb128 3,8, 0x49,0x13, 0x1c,0x0d, 0,0
.byte 0
.section .debug_info,"",@progbits
9:
.long 2f-1f
1: .short 4; .long 0b; .byte 8
.uleb128 1; .asciz "functions"; .short 12; .quad 0x%s, 0x%s
8: .uleb128 3; .asciz "int"; .byte 4, 5
''' % (abs["_stext"], abs["_einittext"]))
    if sys.argv[1]:
        f.write('.uleb128 4; .asciz "write_expire"; .long 8b-9b; .sleb128 %s\n' % sys.argv[1])
    for n, (a, size) in sorted(func.items()):
        if seen[n] == 1:
            f.write('.uleb128 2; .asciz "%s"; .quad 0x%s, 0x%x\n' % (n, a, int(a, 16) + int(size, 16)))
    f.write('.byte 0\n2:\n.section .note.GNU-stack,"",@progbits\n')
P
{ echo 'set pagination off'; while read -r v _; do printf 'echo @%s\\n\nwhatis %s\n' "$v" "$v"; done < vars.txt; } > q.gdb
gdb -nx -batch -x q.gdb "$vm" > q.out 2> q.err
# __typeof__(T) declares arrays and function pointers as gdb writes them.  -fcommon plus an
# absolute symbol of the same name gives each variable its DW_AT_location.
python3 - vars.txt q.out types.c > syms.s <<'P'
import re, subprocess, sys
addr = dict(l.split() for l in open(sys.argv[1]))
name = None; decl = {}
for line in open(sys.argv[2]):
    if line[0] == "@":
        name = line[1:].strip()
    elif line.startswith("type = ") and name:
        t = re.sub("^const ", "", line[7:].strip().replace("[]", "[0]"))
        if "{" not in t and "no debug info" not in t:
            decl[name] = t
        name = None
types = open(sys.argv[3]).read()
while True:     # leave out what clashes with an enumerator or typedef of the same name
    with open(sys.argv[3], "w") as f:
        f.write(types + "".join("__typeof__(%s) %s;\n" % (t, n) for n, t in decl.items()))
    r = subprocess.run(["gcc", "-std=gnu11", "-w", "-fno-builtin", "-fsyntax-only", sys.argv[3]], capture_output=True, text=True)
    if r.returncode == 0:
        break
    lines = open(sys.argv[3]).read().split("\n")
    bad = {lines[int(m) - 1].split()[-1].rstrip(";") for m in re.findall(r"^[^:\n]*:(\d+):\d+: error", r.stderr, re.M)} & set(decl)
    if not bad:
        sys.exit(r.stderr)
    print("left out: " + " ".join(sorted(bad)), file=sys.stderr)
    for n in bad:
        del decl[n]
for n in decl:
    print(".globl %s\n.set %s, 0x%s" % (n, n, addr[n]))
print("%d variables" % len(decl), file=sys.stderr)
P

# 3. Compile and link, only for the debug sections.
gcc -std=gnu11 -w -O0 -g -gdwarf-4 -fcommon -fno-builtin -mcmodel=large -fno-pic \
    -fno-eliminate-unused-debug-types -frandom-seed=1 -fdebug-prefix-map="$tmp=." -c types.c -o types.o
echo '.section .note.GNU-stack,"",@progbits' >> syms.s
as --64 syms.s -o syms.o
as --64 funcs.s -o funcs.o
ld -static -e 0 -o linked types.o funcs.o syms.o
sections=()
for s in info abbrev str line; do
  objcopy --dump-section ".debug_$s=d_$s" linked /dev/null
  sections+=(--add-section ".debug_$s=d_$s")
done

# 4. The skeleton of vmlinux, symbols thinned.
awk '$NF ~ /^(__UNIQUE_ID|__ksymtab|__kstrtab|__crc_|__pfx_|__param_|__TRACE_SYSTEM|__event_|__initcall_|__addressable|__bpf_trace_tp_map|__SCK__|__exitcall|__setup_str|__ksym)/ {print $NF}' nm.txt | sort -u > drop.txt
objcopy --remove-section='.debug_*' --remove-section='.rela*' --remove-section=.comment \
        --remove-section=.BTF --remove-section=.BTF_ids "$vm" bare
objcopy --strip-symbols=drop.txt "${sections[@]}" bare small    # second pass: relocations keep symbols in the first
# crash wants .text and .data to have contents (NOBITS is refused): zeros will do, as it reads the dump's.
python3 - small nm.txt <<'P'
import re, struct, sys
b = bytearray(open(sys.argv[1], "rb").read())
banner = next(int(l.split()[0], 16) for l in open(sys.argv[2]) if l.endswith(" linux_banner\n"))
shoff, = struct.unpack_from("<Q", b, 40); es, n, sx = struct.unpack_from("<3H", b, 58)
keep = []
for i in range(n):
    _, typ, flags, addr, off, size = struct.unpack_from("<IIQQQQ", b, shoff + i * es)
    if typ == 1 and flags & 2:              # SHT_PROGBITS, SHF_ALLOC; .notes is SHT_NOTE
        if addr <= banner < addr + size:
            o = off + banner - addr
            keep.append((o, bytes(b[o:b.index(0, o) + 1])))
        b[off:off + size] = bytes(size)
for o, c in keep:
    b[o:o + len(c)] = c
open(sys.argv[1], "wb").write(b)
P
cp --sparse=always small "$out"
chmod 644 "$out"
ls -l "$out"
