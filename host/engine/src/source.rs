//! Inputs: random access to the bytes of a file, a block device, `/proc/vmcore`, a compressed file or a flattened stream.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use coresift_sdk::abi::SourceBytes;

use crate::error::{Error, Result, plain};
use crate::progress::Progress;

pub mod flattened;
mod spool;

/// An open input.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    file: File,
    /// `None` where the file does not tell (files under /proc report 0)
    len: Option<u64>,
    /// mapping it failed once; then it is read
    unmappable: AtomicBool,
    /// codec of the whole file, if it was spooled
    spooled: Option<&'static str>,
    /// where the bytes are, if the file is a flattened stream
    flattened: Option<flattened::Index>,
    /// what a person should know: a spooled file that ended too early
    pub warnings: Vec<String>,
    /// bytes are missing at its end, and it says so itself
    pub cut: bool,
}

impl Source {
    /// Opens an input; a whole file compressed with zstd or gzip is unpacked into a temporary file first.
    ///
    /// # Errors
    /// It cannot be opened, is a directory, or is empty.
    pub fn open(path: &Path, progress: &dyn Progress) -> Result<Self> {
        // Looked at before it is opened: opening a pipe waits for its other end.
        let meta = std::fs::metadata(path).map_err(|e| Error::io("cannot open the input", path, &e))?;
        let kind = meta.file_type();
        if kind.is_dir() {
            let hint = "give the vmcore file in it, e.g. /var/crash/…/vmcore";
            return Err(Error::failed(format!("the input {} is a directory", path.display())).hint(hint));
        }
        if kind.is_fifo() || kind.is_socket() {
            let hint = "save it to a file first: a dump needs random access to its input";
            return Err(Error::failed(format!("the input {} is a pipe", path.display())).hint(hint));
        }
        let file = File::open(path).map_err(|e| Error::io("cannot open the input", path, &e))?;
        let mut source = Self {
            path: path.to_owned(),
            len: length(&file, &meta),
            file,
            unmappable: AtomicBool::new(false),
            spooled: None,
            flattened: None,
            warnings: Vec::new(),
            cut: false,
        };
        let mut head = [0u8; 16];
        let n = source.file.read_at(&mut head, 0).map_err(|e| Error::io("cannot read the input", path, &e))?;
        if n == 0 {
            let hint = "the crash left nothing, or the copy failed";
            return Err(Error::failed(format!("the input {} is empty", path.display())).hint(hint));
        }
        if let Some(codec) = head.first_chunk().and_then(spool::codec_of) {
            let spooled = spool::unpack(&source.file, path, codec, progress)?;
            source.len = Some(spooled.len);
            source.file = spooled.file;
            source.warnings.extend(spooled.warning);
            source.spooled = Some(codec.name());
            let _ = source.file.read_at(&mut head, 0);
        }
        if flattened::is_flattened(&head) {
            let index = flattened::Index::read(&source.file, &path.display().to_string());
            source.len = Some(index.len);
            source.cut = index.cut;
            source.warnings.extend(index.warnings.iter().cloned());
            // What is mapped is the stream, and its data begin anywhere.
            source.cannot_map();
            source.flattened = Some(index);
        }
        Ok(source)
    }

    /// The path given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file behind it, for mapping.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// True until mapping it failed.
    pub fn maps(&self) -> bool {
        !self.unmappable.load(Ordering::Relaxed)
    }

    /// Notes that mapping it failed.
    pub fn cannot_map(&self) {
        self.unmappable.store(true, Ordering::Relaxed);
    }

    /// True if bytes may stand behind an offset at which a read ended early.
    pub fn may_go_on(&self, offset: u64) -> bool {
        self.len.is_none_or(|len| offset < len)
    }

    /// Name of the codec of the whole file, if it had one.
    pub fn spooled(&self) -> Option<&'static str> {
        self.spooled
    }

    /// The index of a flattened stream, if it is one.
    pub fn flattened(&self) -> Option<&flattened::Index> {
        self.flattened.as_ref()
    }

    fn read_once(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        match &self.flattened {
            Some(index) => index.read_at(&self.file, offset, buf),
            None => self.file.read_at(buf, offset),
        }
    }

    /// True if both are the same file on disk, so that writing one would destroy the other.
    pub fn is_same_file(&self, other: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        match (self.file.metadata(), std::fs::metadata(other), std::fs::metadata(&self.path)) {
            (Ok(a), Ok(b), original) => {
                let device = |m: &std::fs::Metadata| if m.file_type().is_block_device() { m.rdev() } else { 0 };
                let same = |m: &std::fs::Metadata| (m.dev(), m.ino()) == (b.dev(), b.ino()) || device(m) != 0 && device(m) == device(&b);
                same(&a) || original.as_ref().is_ok_and(same)
            }
            _ => false,
        }
    }

    /// Reads until `buf` is full or the input ends; returns how much was read before the end or the first error.
    pub fn read_up_to(&self, offset: u64, buf: &mut [u8]) -> (usize, Option<std::io::Error>) {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|r| !r.is_empty()) {
            match self.read_once(rest, offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return (done, Some(e)),
            }
        }
        (done, None)
    }
}

/// Length of a file or block device; `None` for files that do not tell.
fn length(file: &File, meta: &std::fs::Metadata) -> Option<u64> {
    use std::io::{Seek, SeekFrom};
    if meta.file_type().is_file() {
        return Some(meta.len()).filter(|&len| len > 0);
    }
    let mut file = file;
    let end = file.seek(SeekFrom::End(0)).ok().filter(|&len| len > 0);
    // Positions do not matter to pread, but a spooled file is read from its start.
    let _ = file.seek(SeekFrom::Start(0));
    end
}

impl SourceBytes for Source {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn size(&self) -> Option<u64> {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> coresift_sdk::Result<usize> {
        match self.read_up_to(offset, buf) {
            (n, None) => Ok(n),
            (_, Some(e)) => {
                let message = format!("{}: cannot read: {}", self.path.display(), plain(&e));
                Err(coresift_sdk::Error { message, ..e.into() }.at_offset(offset))
            }
        }
    }
}

/// Copies a reader into a file, leaving holes for zero blocks; used by the spool.
fn copy_sparse(from: &mut dyn Read, to: &File, mut each: impl FnMut(u64)) -> std::io::Result<(u64, Option<std::io::Error>)> {
    // One block of the page cache's usual size for large files: zero runs of a vmcore are mostly longer.
    let mut block = vec![0u8; 64 << 10];
    let mut at = 0u64;
    loop {
        let mut n = 0;
        let mut broken = None;
        while let Some(room) = block.get_mut(n..).filter(|r| !r.is_empty()) {
            match from.read(room) {
                Ok(0) => break,
                Ok(m) => n += m,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => {
                    broken = Some(e);
                    break;
                }
            }
        }
        let data = block.get(..n).unwrap_or_default();
        if data.iter().fold(0, |s, b| s | b) != 0 {
            to.write_all_at(data, at)?;
        }
        at += n as u64;
        each(n as u64);
        if n < block.len() {
            to.set_len(at)?;
            return Ok((at, broken));
        }
    }
}
