//! The filter over hypervisors' images made from Xen's headers; expected verdicts are by hand.

mod damage;
mod frames;
mod synth;
mod versions;
