//! Drops pages of zero bytes: for everybody who wants a small dump, since half of a machine's RAM is often zero.
//!
//! The filter only says what a page is; a writer whose format can share one zero page keeps such pages readable.
//! It has no configuration keys.

use coresift_sdk::page::is_zero;
use coresift_sdk::{ClassSet, Filter, Manifest, PageBatch, Result, Setup, Stages, Verdict};

/// What the plugin is.
pub fn manifest() -> Manifest {
    Manifest::filter("zero", env!("CARGO_PKG_VERSION"), "drops pages that hold only zero bytes", Stages::INSPECT)
}

/// Makes the filter.
///
/// # Errors
/// None: there is nothing to configure.
pub fn open(_: Setup) -> Result<Box<dyn Filter>> {
    Ok(Box::new(Zero))
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: filter, name: "zero", manifest: manifest, open: open }

struct Zero;

impl Filter for Zero {
    fn excludes(&self) -> ClassSet {
        ClassSet::default().with(Verdict::ZERO)
    }

    fn inspect(&self, batch: &PageBatch<'_>, verdicts: &mut [Verdict]) -> Result<()> {
        for (page, verdict) in batch.pages().zip(verdicts) {
            if is_zero(page) {
                *verdict = Verdict::ZERO;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use coresift_sdk::{Verdict, testkit};

    use super::{manifest, open};

    #[test]
    fn a_zero_page_is_dropped_and_any_other_left_undecided() {
        let filter = open(testkit::setup(&manifest(), &[]).unwrap()).unwrap();
        for page_shift in [12, 14, 16] {
            let size = 1 << page_shift;
            let mut one = vec![0; size];
            one[size / 2] = 1;
            let verdicts = testkit::inspect(filter.as_ref(), page_shift, &[vec![0; size], vec![7; size], one, vec![0; size]]);
            assert_eq!(verdicts.unwrap(), [Verdict::ZERO, Verdict::UNDECIDED, Verdict::UNDECIDED, Verdict::ZERO]);
        }
    }
}
