//! What the stories share: the built command, real vmcores, and the peers that judge our output.
//!
//! A missing peer is a failure, never a skipped test: `tests/run` installs them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test that cannot go on fails

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub mod images;
pub mod inside;
pub mod kdump;
pub mod libs;
pub mod peers;
pub mod synth;
pub mod vmcores;
pub mod walker;

/// Folder of the built command and plugins: that of the running test's profile.
pub fn built() -> PathBuf {
    let exe = std::env::current_exe().expect("a running test has a path");
    let folder = exe.ancestors().nth(2).expect("tests run in target/PROFILE/deps").to_owned();
    let command = folder.join("coresift");
    assert!(command.exists(), "{} is not built: run tests/run, or `cargo build --workspace` in this profile first", command.display());
    folder
}

/// Folder of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the workspace").to_owned()
}

/// A run of `coresift`.
#[derive(Debug)]
pub struct Run {
    /// exit status
    pub status: i32,
    /// standard output
    pub stdout: String,
    /// standard error
    pub stderr: String,
}

impl Run {
    fn of(output: &Output) -> Self {
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        Self { status: output.status.code().unwrap_or(-1), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// Fails unless the status is this.
    #[track_caller]
    pub fn status(self, status: i32) -> Self {
        assert_eq!(self.status, status, "\nstdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    /// Fails unless the error is of one or two lines and holds all these texts.
    #[track_caller]
    pub fn says(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.stderr.contains(text), "`{text}` is not in: {}", self.stderr);
        }
        let own = self.stderr.lines().filter(|l| !l.contains("warning:") && !l.contains("copying pages:")).count();
        assert!(own <= 2, "more than two lines: {}", self.stderr);
        self
    }

    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e} in {}", self.stdout))
    }
}

/// Runs `coresift` with these arguments, and no environment that could change what it finds.
pub fn coresift<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    Run::of(&command(args).output().expect("coresift starts"))
}

/// The command of [`coresift`], for stories that stop it or starve it.
pub fn command<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(built().join("coresift"));
    command.args(args).env_remove("CORESIFT_PLUGIN_PATH").env_remove("CORESIFT_PROFILE_PATH");
    command.stdin(std::process::Stdio::null());
    command
}

/// Runs a program that must be there; `package` is the Debian package that has it.
#[track_caller]
pub fn peer(program: &str, package: &str, args: &[&std::ffi::OsStr]) -> Run {
    match Command::new(program).args(args).stdin(std::process::Stdio::null()).output() {
        Ok(output) => Run::of(&output),
        Err(e) => panic!("{program}: {e}; it is in Debian's package {package}, which tests/run installs"),
    }
}

/// A folder for a test's files, gone at its end.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}
