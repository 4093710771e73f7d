//! Keeps or drops what a site knows better than any rule: physical ranges, by number or by their name in `/proc/iomem`, and
//! pages that match a pattern.
//!
//! It is also the SDK's example of a filter that does something useful; `README.md` is a tutorial that builds one.

use coresift_sdk::{Config, Filter, Key, Manifest, PageBatch, RangeVerdict, Result, Setup, Stages, Survey, Verdict};

use patterns::Pattern;
use ranges::{Iomem, pages_inside, pages_touched};

mod patterns;
mod ranges;

/// Classes of this plugin, in the order of the manifest.
const RANGE: Verdict = Verdict::plugin_class(0);
const PATTERN: Verdict = Verdict::plugin_class(1);

/// What the plugin is.
pub fn manifest() -> Manifest {
    let about = "keeps or drops physical ranges, and pages that match a pattern";
    Manifest::filter("ranges", env!("CARGO_PKG_VERSION"), about, Stages::SURVEY.and(Stages::INSPECT))
        .class("range")
        .class("pattern")
        .key(Key::list("keep", "ranges to keep: 0x1000-0x1fff, 0x1000+64KiB, or a name of /proc/iomem"))
        .key(Key::list("exclude", "ranges to drop, written the same way"))
        .key(Key::text("iomem", "", "a saved copy of /proc/iomem, for names"))
        .key(Key::list(
            "keep_pattern",
            "pages to keep by their bytes, if none drops them unread: text:WORD, hex:DEAD??EF, @OFFSET for a place",
        ))
        .key(Key::list("exclude_pattern", "pages to drop by their bytes, written the same way"))
}

/// Makes the filter.
///
/// # Errors
/// A range or pattern that makes no sense, or a name that the saved `/proc/iomem` does not have.
pub fn open(setup: Setup) -> Result<Box<dyn Filter>> {
    let config = &setup.config;
    let page_shift = setup.machine.map_or(12, |m| m.page_shift);
    let mut iomem = Iomem::new(config.text("iomem")?);
    let mut ranges = Vec::new();
    for range in iomem.ranges(config, "keep")? {
        ranges.push(RangeVerdict { run: pages_touched(range, page_shift), verdict: Verdict::KEEP });
    }
    for range in iomem.ranges(config, "exclude")? {
        ranges.extend(pages_inside(range, page_shift).map(|run| RangeVerdict { run, verdict: RANGE }));
    }
    let patterns = |key: &str, verdict: Verdict, config: &Config| -> Result<Vec<(Pattern, Verdict)>> {
        let list = config.list(key)?.iter();
        list.map(|text| Pattern::parse(text, 1 << page_shift).map(|p| (p, verdict)).map_err(|e| ranges::setting_error(key, text, &e)))
            .collect()
    };
    let mut list = patterns("keep_pattern", Verdict::KEEP, config)?;
    list.extend(patterns("exclude_pattern", PATTERN, config)?);
    Ok(Box::new(Ranges { ranges, patterns: list }))
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: filter, name: "ranges", manifest: manifest, open: open }

struct Ranges {
    ranges: Vec<RangeVerdict>,
    patterns: Vec<(Pattern, Verdict)>,
}

impl Filter for Ranges {
    fn stages(&self) -> Stages {
        // Without patterns no page need be read for this filter.
        if self.patterns.is_empty() { Stages::SURVEY } else { Stages::SURVEY.and(Stages::INSPECT) }
    }

    fn survey(&self, out: &mut dyn Survey) -> Result<()> {
        out.ranges(&self.ranges);
        Ok(())
    }

    fn inspect(&self, batch: &PageBatch<'_>, verdicts: &mut [Verdict]) -> Result<()> {
        for (page, verdict) in batch.pages().zip(verdicts) {
            // Those to keep stand first: keep beats exclude here as everywhere.
            if let Some((_, said)) = self.patterns.iter().find(|(pattern, _)| pattern.matches(page)) {
                *verdict = *said;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coresift_sdk::{Run, Value, testkit};

    fn list(texts: &[&str]) -> Value {
        Value::List(texts.iter().map(|t| (*t).to_owned()).collect())
    }

    #[test]
    fn exclude_takes_whole_pages_and_keep_protects_every_page_touched() {
        let settings = [("exclude", list(&["0x1800-0x47ff"])), ("keep", list(&["0x5fff+2"]))];
        let filter = open(testkit::setup(&manifest(), &settings).unwrap()).unwrap();
        let mut found = testkit::Surveyed::default();
        filter.survey(&mut found).unwrap();
        let run = |first_pfn, pages, verdict| RangeVerdict { run: Run { first_pfn, pages }, verdict };
        assert_eq!(found.ranges, [run(5, 2, Verdict::KEEP), run(2, 2, RANGE)]);
        assert_eq!(filter.stages(), Stages::SURVEY, "pages need not be read");
    }

    #[test]
    fn patterns_decide_page_by_page_and_keep_wins() {
        let settings = [("exclude_pattern", list(&["text:SECRET"])), ("keep_pattern", list(&["hex:7f454c46@0"]))];
        let filter = open(testkit::setup(&manifest(), &settings).unwrap()).unwrap();
        let mut secret = vec![0u8; 4096];
        secret[4000..4006].copy_from_slice(b"SECRET");
        let mut both = secret.clone();
        both[..4].copy_from_slice(b"\x7fELF");
        let verdicts = testkit::inspect(filter.as_ref(), 12, &[vec![1; 4096], secret, both]).unwrap();
        assert_eq!(verdicts, [Verdict::UNDECIDED, PATTERN, Verdict::KEEP]);
    }

    #[test]
    fn settings_that_make_no_sense_are_refused_with_the_setting_and_the_remedy() {
        for (key, text, says) in [
            ("exclude", "0x2000-0x1000", "ends before it begins"),
            ("exclude", "0x1000-0xzz", "0x1000-0x1fff"),
            ("exclude", "00100000-001fffff", "begin with 0x"),
            ("keep", "Kernel code", "iomem"),
            ("exclude_pattern", "SECRET", "text:SECRET"),
            ("exclude_pattern", "hex:abc", "two digits"),
            ("exclude_pattern", "text:", "empty"),
            ("keep_pattern", "hex:00@4096", "beyond the page"),
        ] {
            let e = open(testkit::setup(&manifest(), &[(key, list(&[text]))]).unwrap()).err().unwrap();
            let said = format!("{} {}", e.message, e.hint);
            assert!(said.contains(key) && said.contains(says), "{text}: {said}");
        }
    }
}
