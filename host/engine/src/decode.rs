//! Decompresses stored pages of an input with the compressor plugins: a site's own codec reads what it wrote.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use coresift_sdk::{Compressor, Host, Kind, Setup, StoredPage};

use crate::registry::{Plugin, Registry};

/// The compressors that can be found, by codec.
#[derive(Default)]
pub struct Decoders {
    plugins: Vec<Arc<Plugin>>,
    host: Option<Host>,
    /// made and not in use at the moment
    idle: Mutex<BTreeMap<u32, Vec<Box<dyn Compressor>>>>,
}

/// Pages to decompress: what was read of them, and where they go.
pub struct Stored<'a> {
    /// the bytes as they are stored
    pub bytes: &'a [u8],
    /// for each page where its bytes are
    pub pages: &'a [StoredPage],
    /// bytes of a page
    pub page_size: usize,
}

impl Decoders {
    /// Looks for all compressors. For inputs with stored pages only: it loads them.
    pub fn find(registry: &Registry, host: Host) -> Self {
        Self { plugins: registry.all(Kind::Compressor).0, host: Some(host), idle: Mutex::default() }
    }

    /// True if there is a plugin for pages of this codec.
    pub fn has(&self, codec: u32) -> bool {
        codec == 0 || self.plugins.iter().any(|plugin| plugin.manifest.codec == codec)
    }

    /// Decompresses pages into `out`, a page size for each, and says for each whether it is there. Returns why one is not,
    /// if it has bytes.
    pub fn decode(&self, stored: &Stored<'_>, out: &mut [u8], good: &mut [bool]) -> Option<String> {
        let (mut from, mut failure) = (0, None);
        let key = |page: &StoredPage| (page.state, page.codec);
        while let Some(first) = stored.pages.get(from) {
            let n = stored.pages.iter().skip(from).take_while(|page| key(page) == key(first)).count();
            let pages = stored.pages.get(from..from + n).unwrap_or_default();
            let room = out.get_mut(from * stored.page_size..(from + n) * stored.page_size).unwrap_or_default();
            let good = good.get_mut(from..from + n).unwrap_or_default();
            let part = Stored { pages, ..*stored };
            match (first.state, first.codec) {
                (StoredPage::ZERO, _) => {
                    room.fill(0);
                    good.fill(true);
                }
                (StoredPage::STORED, 0) => part.copy(room, good),
                (StoredPage::STORED, codec) => failure = failure.or(self.decompress(codec, &part, room, good)),
                _ => good.fill(false),
            }
            from += n;
        }
        failure
    }

    fn decompress(&self, codec: u32, stored: &Stored<'_>, out: &mut [u8], good: &mut [bool]) -> Option<String> {
        let mut decoder = match self.take(codec) {
            Ok(decoder) => decoder,
            Err(why) => {
                good.fill(false);
                return Some(why);
            }
        };
        let bytes: Vec<&[u8]> = stored.pages.iter().map(|page| page.bytes(stored.bytes).unwrap_or_default()).collect();
        let mut failure = None;
        if decoder.decompress(&bytes, stored.page_size, out).is_ok() {
            good.fill(true);
        } else {
            // One damaged page must not cost its neighbours.
            for ((bytes, page), good) in bytes.iter().zip(out.chunks_exact_mut(stored.page_size)).zip(good) {
                let outcome = decoder.decompress(std::slice::from_ref(bytes), stored.page_size, page);
                *good = outcome.is_ok();
                failure = failure.or(outcome.err().map(|e| e.message));
            }
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.entry(codec).or_default().push(decoder);
        failure
    }

    fn take(&self, codec: u32) -> Result<Box<dyn Compressor>, String> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(decoder) = idle.get_mut(&codec).and_then(Vec::pop) {
            return Ok(decoder);
        }
        drop(idle);
        let none = || format!("no compressor plugin for codec {codec:#x} ({}): put it beside the others", name(codec));
        let plugin = self.plugins.iter().find(|p| p.manifest.codec == codec).ok_or_else(none)?;
        let host = self.host.clone().ok_or_else(none)?;
        let config = plugin.manifest.configure(&[]).map_err(|e| e.message)?;
        plugin.library.compressor(Setup { config, host, machine: None, sources: Vec::new() }).map_err(|e| e.message)
    }
}

fn name(codec: u32) -> &'static str {
    use coresift_sdk::codec::{LZO, SNAPPY, ZLIB, ZSTD};
    match codec {
        ZLIB => "zlib",
        LZO => "lzo",
        SNAPPY => "snappy",
        ZSTD => "zstd",
        _ => "unknown",
    }
}

impl Stored<'_> {
    /// Pages that are stored raw.
    fn copy(&self, out: &mut [u8], good: &mut [bool]) {
        for ((page, room), good) in self.pages.iter().zip(out.chunks_exact_mut(self.page_size)).zip(good) {
            let bytes = page.bytes(self.bytes).filter(|bytes| bytes.len() == room.len());
            *good = bytes.is_some();
            if let Some(bytes) = bytes {
                room.copy_from_slice(bytes);
            }
        }
    }
}
