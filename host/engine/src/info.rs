//! What an input is: machine, kernel, format, memory, completeness. Nothing is written.

use std::path::PathBuf;
use std::sync::Arc;

use coresift_sdk::{Extent, ExtentKind};
use serde::Serialize;

use crate::error::Result;
use crate::image::{Image, Opening, candidates, open_sources};
use crate::progress::Progress;
use crate::registry::Registry;
use crate::size::{grouped, human};

/// Ranges listed in the text; JSON has all.
const RANGES_SHOWN: usize = 16;

/// A stretch of physical memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Range {
    /// first byte
    pub start: u64,
    /// one behind the last byte
    pub end: u64,
    /// false if the input left it out
    pub present: bool,
}

/// What an input is.
#[derive(Debug, Clone, Serialize)]
pub struct Info {
    /// version of this document's schema
    pub schema: u32,
    /// the files
    pub inputs: Vec<String>,
    /// format and the reader that knows it
    pub format: String,
    /// the reader plugin
    pub reader: String,
    /// why it
    pub reason: String,
    /// codec of the whole file, if it was compressed
    pub compressed: Option<&'static str>,
    /// the file is a flattened stream
    pub flattened: bool,
    /// architecture
    pub arch: String,
    /// 32 or 64
    pub word_bits: u32,
    /// byte order
    pub byte_order: &'static str,
    /// bytes of a page
    pub page_size: usize,
    /// kernel release
    pub release: String,
    /// seconds since 1970, 0 if unknown
    pub crash_time: u64,
    /// CPUs with a register note
    pub cpus: u32,
    /// kernel build id
    pub build_id: Option<String>,
    /// KASLR offset in bytes
    pub kaslr_offset: Option<u64>,
    /// how the kernel's addresses map, if that is known
    pub address_space: Option<String>,
    /// memory model: where the kernel keeps its struct pages
    pub memory_model: Option<&'static str>,
    /// why pages cannot be told by their struct page
    pub kernel_unknown: Option<String>,
    /// bytes of VMCOREINFO
    pub vmcoreinfo: usize,
    /// bytes of all notes
    pub notes: usize,
    /// pages that the input has
    pub pages_present: u64,
    /// pages that it left out
    pub pages_absent: u64,
    /// one behind the highest PFN
    pub max_pfn: u64,
    /// the input says that it is incomplete, or is cut
    pub incomplete: bool,
    /// RAM in order
    pub memory: Vec<Range>,
    /// oddities
    pub warnings: Vec<String>,
    /// what the other readers said
    pub other_readers: Vec<String>,
}

/// Looks at an input.
///
/// # Errors
/// It cannot be opened or no reader knows it.
pub fn info(inputs: &[PathBuf], opening: &Opening, registry: &Registry, progress: &Arc<dyn Progress>) -> Result<Info> {
    let sources = open_sources(inputs, progress.as_ref())?;
    let others = candidates(registry, &sources);
    let image = Image::open(sources, opening, registry, progress)?;
    let other_readers = others
        .iter()
        .filter(|(plugin, _)| plugin.manifest.name != image.plugin.manifest.name)
        .map(|(_, c)| match &c.answer {
            Ok(score) => format!("{}: {} % ({})", c.reader, score.percent, score.reason),
            Err(e) => format!("{}: {}", c.reader, e.message),
        })
        .collect();
    let (machine, vmcoreinfo) = (&image.machine, image.vmcoreinfo());
    let count = |absent: bool| image.extents.iter().filter(|e| (e.kind == ExtentKind::ABSENT) == absent).map(|e| e.pages).sum();
    Ok(Info {
        schema: 1,
        inputs: inputs.iter().map(|p| p.display().to_string()).collect(),
        format: machine.format.clone(),
        reader: image.plugin.manifest.name.clone(),
        reason: image.why.clone(),
        compressed: image.sources.first().and_then(|s| s.spooled()),
        flattened: image.sources.iter().any(|s| s.flattened().is_some()),
        arch: machine.arch.clone(),
        word_bits: machine.word_bits,
        byte_order: if machine.big_endian { "big" } else { "little" },
        page_size: machine.page_size(),
        release: machine.utsname.release.clone(),
        crash_time: machine.crash_time,
        cpus: machine.cpus,
        build_id: vmcoreinfo.build_id().map(str::to_owned),
        kaslr_offset: vmcoreinfo.kaslr_offset(),
        address_space: image.kernel.as_ref().ok().map(|k| k.space().describe().to_owned()),
        memory_model: image.kernel.as_ref().ok().and_then(|k| k.mem_map().ok()).map(|m| m.model),
        kernel_unknown: image.kernel.as_ref().map_or_else(|e| Some(e.clone()), |k| k.mem_map().err().map(str::to_owned)),
        vmcoreinfo: machine.vmcoreinfo.len(),
        notes: machine.notes.len(),
        pages_present: count(false),
        pages_absent: count(true),
        max_pfn: machine.max_pfn,
        incomplete: machine.incomplete,
        memory: ranges(&image.extents, machine.page_shift),
        warnings: machine.warnings.clone(),
        other_readers,
    })
}

/// The name of the reader that knows best what an input is; none does if there is none.
///
/// # Errors
/// The input cannot be opened.
pub fn reader_of(inputs: &[PathBuf], registry: &Registry, progress: &Arc<dyn Progress>) -> Result<Option<String>> {
    let sources = open_sources(inputs, progress.as_ref())?;
    let best = candidates(registry, &sources).into_iter().next();
    Ok(best.filter(|(_, c)| c.answer.as_ref().is_ok_and(|score| score.percent > 0)).map(|(_, c)| c.reader))
}

fn ranges(extents: &[Extent], page_shift: u32) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for e in extents {
        let (start, end, present) = (e.first_pfn << page_shift, e.end_pfn() << page_shift, e.kind != ExtentKind::ABSENT);
        match ranges.last_mut().filter(|r| r.end == start && r.present == present) {
            Some(last) => last.end = end,
            None => ranges.push(Range { start, end, present }),
        }
    }
    ranges
}

impl Info {
    /// The facts as people read them.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |name: &str, value: String| out.push_str(&format!("{name:<14}{value}\n"));
        line("input", self.inputs.join(" "));
        let compressed = self.compressed.map(|c| format!(", compressed with {c}")).unwrap_or_default();
        let flattened = if self.flattened { ", flattened" } else { "" };
        line("format", format!("{}{flattened} (reader {}){compressed}", self.format, self.reader));
        line("kernel", if self.release.is_empty() { "unknown: no VMCOREINFO".into() } else { format!("Linux {}", self.release) });
        line(
            "machine",
            format!("{}, {}-bit, {}-endian, pages of {}", self.arch, self.word_bits, self.byte_order, human(self.page_size as u64)),
        );
        line("CPUs", if self.cpus == 0 { "unknown: no register notes".into() } else { self.cpus.to_string() });
        line("crash time", if self.crash_time == 0 { "unknown".into() } else { utc(self.crash_time) });
        if let Some(id) = &self.build_id {
            line("build id", id.clone());
        }
        if let Some(offset) = self.kaslr_offset {
            line("KASLR offset", format!("{offset:#x}"));
        }
        if let Some(space) = &self.address_space {
            line("addresses", space.clone());
        }
        match (&self.memory_model, &self.kernel_unknown) {
            (Some(model), _) => line("mem_map", (*model).to_owned()),
            (None, Some(why)) => line("mem_map", format!("not found, so pages have no class: {why}")),
            (None, None) => {}
        }
        let size = |pages: u64| format!("{} pages, {}", grouped(pages), human(pages.saturating_mul(self.page_size as u64)));
        line("memory", format!("{} up to {:#x}", size(self.pages_present), self.max_pfn.saturating_mul(self.page_size as u64)));
        if self.pages_absent > 0 {
            line("left out", size(self.pages_absent));
        }
        line("complete", if self.incomplete { "no: this input is cut or was never finished".into() } else { "yes".into() });
        for range in self.memory.iter().take(RANGES_SHOWN) {
            let note = if range.present { "" } else { "  left out" };
            line("", format!("{:#014x}-{:#014x}  {:>10}{note}", range.start, range.end - 1, human(range.end - range.start)));
        }
        if self.memory.len() > RANGES_SHOWN {
            line("", format!("and {} ranges more (--json shows all)", self.memory.len() - RANGES_SHOWN));
        }
        for warning in &self.warnings {
            line("warning", warning.clone());
        }
        out
    }
}

/// A time as `YYYY-MM-DD HH:MM:SS UTC` (civil-from-days, proleptic Gregorian).
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01, so that leap days come last in a year.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn times_are_those_of_date() {
        // `date -u -d @N '+%F %T UTC'`
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59:59 UTC");
        assert_eq!(utc(951_868_800), "2000-03-01 00:00:00 UTC");
        assert_eq!(utc(1_796_076_000), "2026-11-30 22:00:00 UTC");
    }
}
