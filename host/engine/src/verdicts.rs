//! The verdicts of all filters on one block, joined.

use coresift_sdk::Verdict;

use crate::pageset::{BLOCK_PAGES, BlockBits, set_bits};
use crate::report::Counts;

/// Verdicts on the pages of a block. Reused for the next one.
#[derive(Debug, Default)]
pub struct BlockVerdicts {
    merged: Vec<Verdict>,
    /// filter that a verdict comes from; empty as long as only one has spoken
    said_by: Vec<u8>,
    /// the only filter that has spoken
    only: Option<usize>,
}

impl BlockVerdicts {
    /// Forgets the last block.
    pub fn clear(&mut self) {
        self.merged.clear();
        self.said_by.clear();
        self.only = None;
    }

    /// Joins a filter's verdicts, one a page of the block. `own` is scratch afterwards.
    pub fn join(&mut self, filter: usize, own: &mut Vec<Verdict>) {
        if self.merged.is_empty() {
            std::mem::swap(&mut self.merged, own);
            self.only = Some(filter);
            return;
        }
        if let Some(first) = self.only.take() {
            self.said_by.resize(self.merged.len(), u8::try_from(first).unwrap_or(u8::MAX));
        }
        let filter = u8::try_from(filter).unwrap_or(u8::MAX);
        for ((merged, by), own) in self.merged.iter_mut().zip(&mut self.said_by).zip(own.iter()) {
            let joined = merged.merge(*own);
            if joined != *merged {
                (*merged, *by) = (joined, filter);
            }
        }
    }

    /// Takes the excluded pages out of `has`, puts those to be kept into `pinned`, and counts.
    pub fn take_out(&self, has: &mut BlockBits, pinned: &mut BlockBits, counts: &mut Counts) {
        for (number, (word, verdicts)) in has.iter_mut().zip(self.merged.chunks(64)).enumerate() {
            let Some(first) = verdicts.first() else { continue };
            // Mostly 64 neighbours have one verdict: told without a branch for each, 16 or more at a time.
            let uniform = verdicts.iter().fold(0, |differ, v| differ | (v.0 ^ first.0)) == 0;
            let all = |yes: bool| if yes { u64::MAX } else { 0 };
            let (mut excluded, mut keep) = (all(first.excludes()), all(*first == Verdict::KEEP));
            if !uniform {
                (excluded, keep) = verdicts.iter().enumerate().fold((0, 0), |(excluded, keep), (bit, v)| {
                    (excluded | u64::from(v.excludes()) << bit, keep | u64::from(*v == Verdict::KEEP) << bit)
                });
            }
            if keep != 0 {
                for bit in (0..64).filter(|b| keep >> b & 1 == 1) {
                    let at = number as u64 * 64 + bit;
                    set_bits(pinned, at, at + 1);
                }
            }
            let gone = excluded & *word;
            *word &= !excluded;
            match self.only {
                Some(filter) if uniform => counts.exclude(filter, *first, u64::from(gone.count_ones())),
                _ => self.count(number * 64, gone, verdicts, counts),
            }
        }
    }

    /// Counts the pages of a word that are gone.
    fn count(&self, at: usize, gone: u64, verdicts: &[Verdict], counts: &mut Counts) {
        for (bit, verdict) in verdicts.iter().enumerate().filter(|(bit, _)| gone >> bit & 1 == 1) {
            let by = self.only.or_else(|| self.said_by.get(at + bit).map(|by| usize::from(*by)));
            counts.exclude(by.unwrap_or(0), *verdict, 1);
        }
    }
}

const _: () = assert!(BLOCK_PAGES.is_multiple_of(64));
