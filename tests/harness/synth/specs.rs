//! The images there are.

use super::arch::Arch::{I386, Ppc32, Ppc64, S390x, X86_64};
use super::layout::Layout;
use super::model::Model::{Discontig, Extreme, Flat, Static, Vmemmap};
use super::model::Root::{Address, Array, Pointer};
use super::{Spec, Twist};

impl Spec {
    /// Name of the image.
    pub fn name(&self) -> String {
        let twist = match self.twist {
            Twist::None => "",
            Twist::Half => "-half",
            Twist::Crossing => "-crossing",
            Twist::Optimised => "-optimised",
            Twist::Sound => "-sound",
        };
        format!("{}-{}-{}{twist}", self.layout.arch.name(), self.layout.name(), self.model.name())
    }

    /// Every image.
    pub fn all() -> Vec<Self> {
        use Twist::{Crossing, Half, None, Optimised, Sound};
        let list = [
            (X86_64, (2, 6, 18), "", Flat, None),
            (X86_64, (2, 6, 18), "", Discontig, None),
            (X86_64, (2, 6, 18), "", Static, None),
            (X86_64, (2, 6, 32), "", Extreme(Array), None),
            (X86_64, (2, 6, 32), "", Vmemmap(Array), None),
            (X86_64, (3, 10, 0), "", Flat, None),
            (X86_64, (3, 10, 0), "", Discontig, None),
            (X86_64, (3, 10, 0), "", Vmemmap(Array), None),
            (X86_64, (3, 18, 0), "", Extreme(Array), None),
            (X86_64, (4, 4, 0), "", Vmemmap(Array), None),
            (X86_64, (4, 18, 0), "", Vmemmap(Address), None),
            (X86_64, (4, 18, 0), "", Extreme(Pointer), None),
            (X86_64, (5, 4, 0), "", Vmemmap(Pointer), None),
            (X86_64, (6, 1, 0), "", Vmemmap(Address), Half),
            (X86_64, (6, 1, 0), "", Vmemmap(Address), Crossing),
            (X86_64, (6, 3, 0), "", Vmemmap(Address), None),
            (X86_64, (6, 6, 0), "", Vmemmap(Address), None),
            (X86_64, (6, 6, 0), "", Vmemmap(Address), Optimised),
            (X86_64, (6, 9, 0), "", Vmemmap(Address), None),
            (X86_64, (6, 11, 0), "", Vmemmap(Address), None),
            (X86_64, (6, 12, 0), "", Vmemmap(Address), None),
            (X86_64, (6, 12, 0), "", Flat, Sound),
            (X86_64, (6, 16, 0), "", Vmemmap(Address), None),
            (X86_64, (7, 1, 0), "", Vmemmap(Address), None),
            (X86_64, (7, 1, 0), "mask", Vmemmap(Address), Optimised),
            (X86_64, (7, 1, 0), "mask", Vmemmap(Address), Sound),
            (I386, (2, 6, 32), "", Flat, None),
            (I386, (3, 10, 0), "", Static, None),
            (I386, (4, 4, 0), "", Static, None),
            (I386, (6, 12, 0), "", Flat, None),
            (Ppc64, (3, 10, 0), "", Extreme(Array), None),
            (Ppc64, (4, 18, 0), "", Extreme(Pointer), None),
            (Ppc64, (6, 1, 0), "", Extreme(Address), None),
            (S390x, (4, 4, 0), "", Extreme(Array), None),
            (S390x, (5, 4, 0), "", Extreme(Address), None),
            (S390x, (6, 12, 0), "", Extreme(Pointer), None),
            (Ppc32, (3, 10, 0), "", Flat, None),
            (Ppc32, (5, 4, 0), "", Flat, None),
            (Ppc32, (6, 12, 0), "", Flat, None),
        ];
        let spec = |(arch, version, variant, model, twist)| Self { layout: Layout::of(arch, version, variant), model, twist };
        list.map(spec).into()
    }
}
