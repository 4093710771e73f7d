#!/usr/bin/env bash
# Builds the plugin of the current ABI number and keeps it: see README.md.
set -euo pipefail
cd "$(dirname "$0")"
number=$(sed -n 's/^pub const ABI_M[AI][A-Z]*: u32 = \([0-9]*\);/\1/p' ../../sdk/src/hello.rs | paste -sd.)
cargo build --release --manifest-path pinned/Cargo.toml --target-dir ../../target/pinned
strip -s -o ../../target/pinned/pinned.so ../../target/pinned/release/libfilter_pinned.so
zstd -19 -f ../../target/pinned/pinned.so -o "libfilter_pinned-$number.so.zst"
