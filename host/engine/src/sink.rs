//! Sinks: where a writer's bytes go. A file that gets its name only when it is whole, or nothing (dry run).

use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use coresift_sdk::{Error as PluginError, ErrorKind, Result as PluginResult, Sink};

use crate::error::{Error, Result, plain};
use crate::size::human;

mod flattened;
mod pipe;

pub use flattened::Flattened;
pub use pipe::Pipe;

/// Suffix of an output that is not whole yet.
pub const INCOMPLETE_SUFFIX: &str = ".incomplete";

/// Most pieces of one system call (`UIO_MAXIOV`, include/uapi/linux/uio.h).
const PIECES_MAX: usize = 1024;

/// A sink that the engine can end.
pub trait Output: Sink + Send {
    /// Length so far, in bytes.
    fn written(&self) -> u64;
    /// True if a write was refused because of the size limit that was asked for, and not by the disk.
    fn limit_reached(&self) -> bool {
        false
    }
    /// Makes it durable and gives it its name.
    ///
    /// # Errors
    /// It is there, but under the unfinished name.
    fn finish(&mut self) -> Result<()>;
    /// Where the bytes are now, for messages.
    fn place(&self) -> Option<&Path>;
    /// Called when it will not be finished: writes what it still holds back, as far as that goes.
    fn abandon(&mut self) {}
    /// Takes the unfinished output away: it holds nothing.
    fn discard(&self) {}
}

/// Another output that takes no more than so many bytes.
pub struct Limited {
    inner: Box<dyn Output>,
    limit: u64,
    reached: bool,
}

impl Limited {
    /// Limits an output to `limit` bytes.
    pub fn new(inner: Box<dyn Output>, limit: u64) -> Self {
        Self { inner, limit, reached: false }
    }

    fn check(&mut self, end: u64) -> PluginResult<()> {
        if end <= self.limit {
            return Ok(());
        }
        self.reached = true;
        Err(PluginError::new(ErrorKind::NoSpace, format!("the size limit of {} is reached", human(self.limit))))
    }
}

impl Sink for Limited {
    fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> PluginResult<()> {
        self.check(offset.saturating_add(total(pieces)))?;
        self.inner.write_at(offset, pieces)
    }

    fn reserve(&mut self, len: u64) -> PluginResult<()> {
        self.check(len)?;
        self.inner.reserve(len)
    }

    fn positioned(&self) -> bool {
        self.inner.positioned()
    }
}

impl Output for Limited {
    fn written(&self) -> u64 {
        self.inner.written()
    }

    fn limit_reached(&self) -> bool {
        self.reached
    }

    fn finish(&mut self) -> Result<()> {
        self.inner.finish()
    }

    fn place(&self) -> Option<&Path> {
        self.inner.place()
    }

    fn abandon(&mut self) {
        self.inner.abandon();
    }

    fn discard(&self) {
        self.inner.discard();
    }
}

fn total(pieces: &[&[u8]]) -> u64 {
    pieces.iter().map(|p| p.len() as u64).sum()
}

/// Counts bytes.
#[derive(Debug, Default)]
pub struct Nothing {
    end: u64,
}

impl Sink for Nothing {
    fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> PluginResult<()> {
        self.end = self.end.max(offset.saturating_add(total(pieces)));
        Ok(())
    }

    fn reserve(&mut self, len: u64) -> PluginResult<()> {
        self.end = self.end.max(len);
        Ok(())
    }

    fn positioned(&self) -> bool {
        true
    }
}

impl Output for Nothing {
    fn written(&self) -> u64 {
        self.end
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn place(&self) -> Option<&Path> {
        None
    }
}

/// A file, written as `NAME.incomplete` and renamed at the end; or a block device, written in place.
#[derive(Debug)]
pub struct FileSink {
    file: File,
    name: PathBuf,
    /// where the bytes are now
    current: PathBuf,
    end: u64,
    force: bool,
}

impl FileSink {
    /// Checks that an output of this name can be made, without making anything.
    ///
    /// # Errors
    /// It exists and `force` is false, its folder is missing, or it is a folder.
    pub fn check(name: &Path, force: bool) -> Result<()> {
        let shown = name.display();
        if let Ok(meta) = std::fs::metadata(name) {
            let kind = meta.file_type();
            if kind.is_dir() {
                return Err(Error::failed(format!("the output {shown} is a directory"))
                    .hint(format!("give a file name, e.g. {}", name.join("vmcore").display())));
            }
            if kind.is_fifo() || kind.is_char_device() || kind.is_socket() {
                return Err(Error::failed(format!("the output {shown} is a pipe or character device, and a dump needs random access"))
                    .hint("write to a file or a block device, or a stream with --flattened"));
            }
            if kind.is_block_device() && !force {
                return Err(Error::failed(format!("the output {shown} is a block device: all on it would be lost"))
                    .hint("write to a file, or overwrite the device with --force"));
            }
            if kind.is_file() && !force {
                return Err(Error::failed(format!("the output {shown} exists")).hint("choose another name, or overwrite it with --force"));
            }
            return Ok(());
        }
        if name.is_symlink() {
            return Err(Error::failed(format!("the output {shown} is a link to nothing")).hint("remove it, or choose another name"));
        }
        let part = self::unfinished(name);
        if !force && std::fs::symlink_metadata(&part).is_ok() {
            return Err(Error::failed(format!("an unfinished dump is there already: {}", part.display()))
                .hint("another run may be writing it, or an earlier one was cut short: move it away, or overwrite it with --force"));
        }
        let folder = folder_of(name);
        match std::fs::metadata(folder) {
            Ok(meta) if meta.is_dir() => Ok(()),
            Ok(_) => Err(Error::failed(format!("the output's folder {} is a file", folder.display())).hint("check the path")),
            Err(e) => Err(Error::failed(format!("the output's folder {}: {}", folder.display(), plain(&e)))
                .hint(format!("mkdir -p {}", folder.display()))),
        }
    }

    /// Makes the file, mode 0600: a dump holds everybody's secrets.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn create(name: &Path, force: bool) -> Result<Self> {
        Self::check(name, force)?;
        let device = std::fs::metadata(name).is_ok_and(|m| m.file_type().is_block_device());
        let current = if device { name.to_owned() } else { unfinished(name) };
        let mut options = OpenOptions::new();
        options.write(true).mode(0o600);
        if !device {
            // A name that somebody else may have put there, perhaps as a link to another file, is never written through.
            options.create_new(true);
            if force {
                let _ = std::fs::remove_file(&current);
            }
        } else {
            // Refused by the kernel if it is mounted or in use otherwise.
            options.custom_flags(libc::O_EXCL);
        }
        let file = options.open(&current).map_err(|e| Error::io("cannot make the output", &current, &e))?;
        Ok(Self { file, name: name.to_owned(), current, end: 0, force })
    }

    fn full(&self, what: &str) -> PluginError {
        PluginError::new(ErrorKind::NoSpace, format!("{}: {what}", self.current.display()))
    }

    fn failed(&self, e: rustix::io::Errno, offset: u64) -> PluginError {
        let e = std::io::Error::from(e);
        let message = format!("cannot write {}: {}", self.current.display(), plain(&e));
        PluginError { message, ..PluginError::from(e) }.at_offset(offset)
    }

    /// True if reserving leaves at least as much again for the data: bitmaps of sparse machines are mostly holes, and
    /// must not use up a disk that would do.
    fn has_room_for(&self, len: u64) -> bool {
        rustix::fs::fstatvfs(&self.file).is_ok_and(|s| s.f_bavail.saturating_mul(s.f_frsize) / 2 >= len)
    }

    /// Fills a part of a device with zeros: it holds what was there before, and a bitmap must not.
    fn zero_device(&mut self, from: u64, to: u64) -> PluginResult<()> {
        let zeros = vec![0u8; 1 << 20];
        let mut at = from;
        while at < to {
            let n = usize::try_from(to - at).unwrap_or(usize::MAX).min(zeros.len());
            self.write_at(at, &[zeros.get(..n).unwrap_or_default()])?;
            at += n as u64;
        }
        Ok(())
    }
}

fn folder_of(name: &Path) -> &Path {
    name.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Name of an output that is not whole yet.
pub fn unfinished(name: &Path) -> PathBuf {
    let mut file = name.as_os_str().to_owned();
    file.push(INCOMPLETE_SUFFIX);
    file.into()
}

impl Sink for FileSink {
    fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> PluginResult<()> {
        if total(pieces) == 0 {
            return Ok(());
        }
        if self.name == self.current && offset > self.end {
            // On a device a gap is what was there before, and writers of sparse formats mean zeros.
            self.zero_device(self.end, offset)?;
        }
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|p| IoSlice::new(p)).collect();
        let mut rest = slices.as_mut_slice();
        let mut at = offset;
        while !rest.is_empty() {
            let now = rest.get(..PIECES_MAX.min(rest.len())).unwrap_or_default();
            match rustix::io::pwritev(&self.file, now, at) {
                Ok(0) => return Err(self.full("the device takes no more bytes")),
                Ok(n) => {
                    at += n as u64;
                    IoSlice::advance_slices(&mut rest, n);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(self.failed(e, at)),
            }
        }
        self.end = self.end.max(at);
        Ok(())
    }

    fn reserve(&mut self, len: u64) -> PluginResult<()> {
        if self.name == self.current {
            self.zero_device(self.end, len)?;
        } else {
            let reserved = self.has_room_for(len) && rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), 0, len).is_ok();
            // The file system cannot or will not: a hole does as well, only without the promise.
            if !reserved {
                rustix::fs::ftruncate(&self.file, len).map_err(|e| self.failed(e, len))?;
            }
        }
        self.end = self.end.max(len);
        Ok(())
    }

    fn positioned(&self) -> bool {
        true
    }
}

impl Output for FileSink {
    fn written(&self) -> u64 {
        self.end
    }

    fn finish(&mut self) -> Result<()> {
        self.file.sync_all().map_err(|e| Error::io("cannot make durable", &self.current, &e))?;
        if self.current == self.name {
            return Ok(());
        }
        let ours = self.file.metadata().and_then(|m| Ok((m, std::fs::symlink_metadata(&self.current)?)));
        if !ours.is_ok_and(|(a, b)| (a.dev(), a.ino()) == (b.dev(), b.ino())) {
            let message = format!("{} was taken away or replaced while it was written", self.current.display());
            return Err(Error::failed(message).hint("another run with --force writes to the same name: give each its own"));
        }
        // Somebody else's file may have come up since the check: without --force it stays, and so does ours.
        let flags = if self.force { rustix::fs::RenameFlags::empty() } else { rustix::fs::RenameFlags::NOREPLACE };
        let here = rustix::fs::CWD;
        let renamed = match rustix::fs::renameat_with(here, &self.current, here, &self.name, flags) {
            // Some network file systems know no flags.
            Err(rustix::io::Errno::INVAL) if !self.name.exists() => rustix::fs::rename(&self.current, &self.name),
            other => other,
        };
        renamed.map_err(|e| Error::io("the dump is whole but cannot be given its name", &self.name, &e.into()))?;
        self.current = self.name.clone();
        // The name is durable where the file system can do that; where it cannot, the dump is as good.
        let _ = File::open(folder_of(&self.name)).and_then(|f| f.sync_all());
        Ok(())
    }

    fn place(&self) -> Option<&Path> {
        Some(&self.current)
    }

    fn discard(&self) {
        // A device's node is not ours, and neither is a finished dump.
        if self.current != self.name {
            let _ = std::fs::remove_file(&self.current);
        }
    }
}
