//! A sink for what can only be written in order: a pipe, standard output.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use coresift_sdk::{Error as PluginError, ErrorKind, Result as PluginResult, Sink};

use super::{Output, total};
use crate::error::{Error, Result, plain};

/// The pipe.
#[derive(Debug)]
pub struct Pipe {
    file: File,
    name: PathBuf,
    at: u64,
}

impl Pipe {
    /// Standard output.
    ///
    /// # Errors
    /// It is closed.
    pub fn stdout() -> Result<Self> {
        let name = PathBuf::from("standard output");
        let fd = std::io::stdout().as_fd().try_clone_to_owned().map_err(|e| Error::io("cannot write to", &name, &e))?;
        Ok(Self { file: File::from(fd), name, at: 0 })
    }

    /// A named pipe or character device; waits until somebody reads it.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options().write(true).open(path).map_err(|e| Error::io("cannot write to", path, &e))?;
        Ok(Self { file, name: path.to_owned(), at: 0 })
    }
}

impl Sink for Pipe {
    fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> PluginResult<()> {
        if offset != self.at {
            return Err(PluginError::new(ErrorKind::Other, "a pipe is written in order; use a flattened stream").at_offset(offset));
        }
        for piece in pieces {
            self.file.write_all(piece).map_err(|e| {
                let message = format!("cannot write to {}: {}", self.name.display(), plain(&e));
                PluginError { message, ..PluginError::from(e) }.at_offset(self.at)
            })?;
            self.at += piece.len() as u64;
        }
        debug_assert!(self.at >= offset + total(pieces));
        Ok(())
    }

    fn reserve(&mut self, _: u64) -> PluginResult<()> {
        Ok(())
    }

    fn positioned(&self) -> bool {
        false
    }
}

impl Output for Pipe {
    fn written(&self) -> u64 {
        self.at
    }

    fn finish(&mut self) -> Result<()> {
        self.file.flush().map_err(|e| Error::io("cannot write to", &self.name, &e))
    }

    fn place(&self) -> Option<&Path> {
        None
    }
}
