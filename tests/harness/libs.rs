//! Libraries that are built wrong on purpose, with the C compiler, to be refused.

use std::path::{Path, PathBuf};

use crate::peer;

/// A Hello as C, with the numbers given. Layout: `coresift_sdk::Hello`.
pub fn hello(magic: &str, major: u32, minor: u32, unwind: u32, name: &str) -> String {
    format!(
        "#include <stdint.h>\n\
         struct hello {{ char magic[8]; uint32_t major, minor, unwind, kind; char name[32]; }};\n\
         const struct hello CORESIFT_HELLO = {{ \"{magic}\", {major}, {minor}, {unwind}, 2, \"{name}\" }};\n"
    )
}

/// Compiles C into `lib<kind>_<name>.so` in `folder`.
#[track_caller]
pub fn compile(folder: &Path, file: &str, source: &str) -> PathBuf {
    let (c, so) = (folder.join("source.c"), folder.join(file));
    std::fs::write(&c, source).expect("a C file");
    let run = peer("cc", "gcc", &["-shared".as_ref(), "-fPIC".as_ref(), "-w".as_ref(), "-o".as_ref(), so.as_ref(), c.as_ref()]);
    assert_eq!(run.status, 0, "cc: {}", run.stderr);
    so
}
