//! Page sharing: a page whose stored bytes were written before points to these. All readers take it: descriptors may point
//! anywhere, and the page of all zero pages is shared in every dump.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use crate::descriptors::Descriptor;

/// Pages remembered. A later page with the same slot takes the place of an earlier one, so memory is bounded: 8 MiB.
const SLOTS: usize = 1 << 18;

/// What was written, by a hash of 128 bits of its bytes.
pub struct Sharing {
    /// keys of their own for each run, so that nobody can prepare pages that collide
    keys: [RandomState; 2],
    seen: Vec<(u128, Descriptor)>,
}

impl Sharing {
    /// Nothing is known yet.
    pub fn new() -> Self {
        Self { keys: [RandomState::new(), RandomState::new()], seen: vec![(0, Descriptor::default()); SLOTS] }
    }

    /// Where the same bytes stand already; if nowhere, `new` is where they will.
    pub fn find(&mut self, data: &[u8], new: Descriptor) -> Option<Descriptor> {
        let half = |key: &RandomState| {
            let mut hasher = key.build_hasher();
            hasher.write(data);
            hasher.finish()
        };
        let [low, high] = [half(&self.keys[0]), half(&self.keys[1])];
        let hash = u128::from(high) << 64 | u128::from(low);
        let slot = self.seen.get_mut(low as usize % SLOTS)?;
        let same = slot.0 == hash && slot.1.offset != 0 && (slot.1.size, slot.1.flags) == (new.size, new.flags);
        if same {
            return Some(slot.1);
        }
        *slot = (hash, new);
        None
    }
}
