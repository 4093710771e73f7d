//! Drops pages that hold one byte value only: the example of the SDK's front page, as a library that is kept.

use coresift_sdk::{Filter, Key, Manifest, PageBatch, Result, Setup, Stages, Verdict, export_plugin};

struct Pinned {
    byte: u8,
}

fn manifest() -> Manifest {
    Manifest::filter("pinned", "0.1.0", "drops pages that hold one byte value only", Stages::INSPECT)
        .class("pinned")
        .key(Key::integer("byte", 0xff, 0, 255, "the byte value"))
}

fn open(setup: Setup) -> Result<Box<dyn Filter>> {
    Ok(Box::new(Pinned { byte: setup.config.integer("byte")? as u8 }))
}

impl Filter for Pinned {
    fn inspect(&self, batch: &PageBatch<'_>, verdicts: &mut [Verdict]) -> Result<()> {
        for (page, verdict) in batch.pages().zip(verdicts) {
            if page.chunks(64).all(|c| c.iter().all(|&b| b == self.byte)) {
                *verdict = Verdict::plugin_class(0);
            }
        }
        Ok(())
    }
}

export_plugin! { kind: filter, name: "pinned", manifest: manifest, open: open }
