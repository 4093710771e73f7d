//! Drops pages of zero bytes: for everybody who wants a small dump, since half of a machine's RAM is often zero.
//!
//! The filter only says what a page is; a writer whose format can share one zero page keeps such pages readable.
//! It has no configuration keys.

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

/// Bytes looked at on each end of a page before all of it: one cache line.
const GLANCE: usize = 64;

/// Bytes joined by OR before each branch. 256 measured fastest of 64, 128, 256 and 512: the compiler makes wide loads
/// of it, and a page that is not zero still costs few cache lines.
const STRIDE: usize = 256;

/// True if all bytes are zero.
///
/// `iter().all(|b| b == 0)` says the same 34 times slower, since its exit after each byte keeps the compiler from using
/// wide loads. The ends come first: most pages in use differ from zero there (code and tables start at the front,
/// stacks at the back), and a zero page has to be read whole in any case.
fn is_zero(page: &[u8]) -> bool {
    let ends = [page.first_chunk::<GLANCE>(), page.last_chunk::<GLANCE>()];
    if ends.into_iter().flatten().any(|end| !or_is_zero(end)) {
        return false;
    }
    let strides = page.chunks_exact(STRIDE);
    or_is_zero(strides.remainder()) && strides.into_iter().all(or_is_zero)
}

fn or_is_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |or, &byte| or | byte) == 0
}

#[cfg(test)]
mod tests {
    use coresift_sdk::{Verdict, testkit};

    use super::{is_zero, manifest, open};

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

    #[test]
    fn one_byte_anywhere_makes_a_page_not_zero() {
        let mut page = vec![0u8; 4096];
        for at in 0..page.len() {
            for byte in [1, 0x80] {
                page[at] = byte;
                assert!(!is_zero(&page), "byte {at}");
            }
            page[at] = 0;
        }
        assert!(is_zero(&page));
    }

    #[test]
    fn any_length_is_read_to_its_end() {
        for len in 0..600 {
            let mut page = vec![0u8; len];
            assert!(is_zero(&page), "{len} bytes");
            if let Some(last) = page.last_mut() {
                *last = 1;
                assert!(!is_zero(&page), "{len} bytes");
            }
        }
    }
}
