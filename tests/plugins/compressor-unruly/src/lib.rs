//! A compressor that misbehaves on request: what the tests of containment load. It says that it makes LZO.
#![allow(clippy::panic)] // panicking is what it is for

use coresift_sdk::{Compressor, Error, Key, Manifest, Packed, PageBatch, Result, Setup, codec, export_plugin};

const MODES: [&str; 5] = ["garbage", "long", "panic", "error", "panic-drop"];

fn manifest() -> Manifest {
    Manifest::compressor("unruly", "0.1.0", "misbehaves on request, for tests", codec::LZO).key(Key::choice(
        "mode",
        "garbage",
        &MODES,
        "what it does",
    ))
}

struct Unruly(String);

fn open(setup: Setup) -> Result<Box<dyn Compressor>> {
    Ok(Box::new(Unruly(setup.config.text("mode")?.to_owned())))
}

impl Compressor for Unruly {
    fn compress(&mut self, batch: &PageBatch<'_>, out: &mut Packed<'_>) -> Result<()> {
        match self.0.as_str() {
            "panic" => panic!("as asked for: compress"),
            "error" => Err(Error::unsupported("as asked for")),
            // Longer than a page, where the room of the batch allows it.
            "long" => batch.pages().take(batch.len() / 2).try_for_each(|page| out.push(&[page, &[1]].concat())),
            "panic-drop" => batch.pages().try_for_each(|_| out.push(&[])),
            _ => batch.pages().try_for_each(|_| out.push(b"garbage")),
        }
    }

    fn decompress(&mut self, stored: &[&[u8]], page_size: usize, out: &mut [u8]) -> Result<()> {
        for (stored, page) in stored.iter().zip(out.chunks_exact_mut(page_size)) {
            if let (true, Some(bytes)) = (self.0 == "long", stored.get(..page_size)) {
                page.copy_from_slice(bytes);
            }
        }
        Ok(())
    }
}

impl Drop for Unruly {
    fn drop(&mut self) {
        if self.0 == "panic-drop" {
            panic!("as asked for: drop");
        }
    }
}

export_plugin! { kind: compressor, name: "unruly", manifest: manifest, open: open }
