//! Several files that hold one machine's memory between them: the parts of a split dump.

use crate::{Error, ErrorKind, Extent, ExtentKind, Machine, PageState, Reader, Result, Source, StoredPage};

/// A reader made of one reader for each file. For formats whose files know nothing of each other (ELF, LiME): each part
/// is a dump of its own, with other pages in it.
///
/// A part that is not given cannot be missed: its pages look like a hole in the machine's memory.
pub struct Parts {
    images: Vec<Box<dyn Reader>>,
    machine: Machine,
    /// ascending, disjoint
    extents: Vec<Part>,
}

/// An extent, and which image has it.
#[derive(Debug, Clone, Copy)]
struct Part {
    extent: Extent,
    image: usize,
}

impl Parts {
    /// Joins opened parts, in any order: image `i` reads `sources[i]` and nothing else. One part is handed back as it is.
    ///
    /// # Errors
    /// They are parts of different dumps, or have the same pages.
    pub fn join(sources: &[Source], mut images: Vec<Box<dyn Reader>>) -> Result<Box<dyn Reader>> {
        if images.len() == 1
            && let Some(only) = images.pop()
        {
            return Ok(only);
        }
        let name = |i: usize| sources.get(i).map_or_else(|| format!("part {i}"), |s| s.name().to_owned());
        let machines: Vec<Machine> = images.iter().map(|image| image.machine()).collect();
        // A part whose notes cannot be read is a part all the same, but does not speak for the others.
        let told = |m: &Machine| !m.vmcoreinfo.is_empty();
        let first = machines.iter().position(told).unwrap_or(0);
        let mut machine = machines.get(first).cloned().ok_or_else(|| Error::new(ErrorKind::Other, "no part at all"))?;
        for (i, other) in machines.into_iter().enumerate().filter(|(i, _)| *i != first) {
            let same = |m: &Machine| (m.elf_machine, m.word_bits, m.big_endian, m.page_shift);
            if same(&other) != same(&machine) || told(&other) && other.vmcoreinfo != machine.vmcoreinfo {
                let (a, b) = (name(first.min(i)), name(first.max(i)));
                let error = Error::unsupported(format!("{a} and {b} are parts of different dumps"));
                return Err(error.hint("give the parts of one split dump"));
            }
            machine.max_pfn = machine.max_pfn.max(other.max_pfn);
            machine.incomplete |= other.incomplete;
            let new: Vec<String> = other.warnings.into_iter().filter(|w| !machine.warnings.contains(w)).collect();
            machine.warnings.extend(new);
        }
        let extents = lay_out(&images, &name)?;
        Ok(Box::new(Self { images, machine, extents }))
    }

    /// The image that has a page, and how many of `pfns` from the first on it has in a row.
    fn owner(&self, pfns: &[u64]) -> Option<(&dyn Reader, usize)> {
        let of = |pfn: u64| {
            let part = self.extents.get(self.extents.partition_point(|p| p.extent.end_pfn() <= pfn))?;
            (part.extent.first_pfn <= pfn && part.extent.kind != ExtentKind::ABSENT).then_some(part.image)
        };
        let first = of(*pfns.first()?)?;
        let count = pfns.iter().take_while(|pfn| of(**pfn) == Some(first)).count();
        self.images.get(first).map(|image| (&**image, count))
    }
}

/// The extents of all parts. A page that some part has is not absent, whatever the others say.
fn lay_out(images: &[Box<dyn Reader>], name: &dyn Fn(usize) -> String) -> Result<Vec<Part>> {
    let (mut data, mut absent) = (Vec::new(), Vec::new());
    for (image, reader) in images.iter().enumerate() {
        for mut extent in reader.extents() {
            if extent.kind == ExtentKind::ABSENT {
                absent.push(Part { extent, image });
                continue;
            }
            extent.source = u32::try_from(image).unwrap_or(u32::MAX);
            data.push(Part { extent, image });
        }
    }
    data.sort_by_key(|part| part.extent.first_pfn);
    absent.sort_by_key(|part| part.extent.first_pfn);
    for (a, b) in data.iter().zip(data.iter().skip(1)) {
        if b.extent.first_pfn < a.extent.end_pfn() {
            let message = format!("{} and {} both have a page", name(a.image), name(b.image));
            return Err(Error::unsupported(message).at_pfn(b.extent.first_pfn).hint("give each part of one split dump once"));
        }
    }

    let mut extents = Vec::with_capacity(data.len());
    let mut gaps = absent.into_iter().peekable();
    // All pages below are laid out.
    let mut done = 0;
    let mut fill = |extents: &mut Vec<Part>, done: &mut u64, until: u64| {
        while let Some(gap) = gaps.peek() {
            let (first, end) = (gap.extent.first_pfn.max(*done), gap.extent.end_pfn().min(until));
            if first < end {
                match extents.last_mut() {
                    Some(Part { extent: last, .. }) if last.kind == ExtentKind::ABSENT && last.end_pfn() == first => {
                        last.pages += end - first;
                    }
                    _ => extents.push(Part { extent: Extent::absent(first, end - first), image: gap.image }),
                }
                *done = end;
            }
            if gap.extent.end_pfn() > until {
                break;
            }
            gaps.next();
        }
    };
    for part in data {
        fill(&mut extents, &mut done, part.extent.first_pfn);
        done = part.extent.end_pfn();
        extents.push(part);
    }
    fill(&mut extents, &mut done, u64::MAX);
    Ok(extents)
}

impl Reader for Parts {
    fn machine(&self) -> Machine {
        self.machine.clone()
    }

    fn extents(&self) -> Vec<Extent> {
        self.extents.iter().map(|part| part.extent).collect()
    }

    fn read_pages(&self, pfns: &[u64], out: &mut [u8], states: &mut [PageState]) -> Result<()> {
        let page_size = self.machine.page_size();
        let (mut pfns, mut out, mut states) = (pfns, out, states);
        let (mut failure, mut any) = (None, false);
        while !pfns.is_empty() {
            let Some((image, count)) = self.owner(pfns) else {
                // A page that nobody has stays missing.
                (pfns, states) = (pfns.get(1..).unwrap_or_default(), states.get_mut(1..).unwrap_or_default());
                out = out.get_mut(page_size..).unwrap_or_default();
                continue;
            };
            let (here, rest) = pfns.split_at(count);
            let (pages, out_rest) = out.split_at_mut((count * page_size).min(out.len()));
            let (settled, states_rest) = states.split_at_mut(count.min(states.len()));
            match image.read_pages(here, pages, settled) {
                Ok(()) => any = true,
                Err(e) => failure = failure.or(Some(e)),
            }
            (pfns, out, states) = (rest, out_rest, states_rest);
        }
        // One part that fails is missing pages; all of them are an error.
        match failure {
            Some(e) if !any => Err(e),
            _ => Ok(()),
        }
    }

    fn read_stored(&self, pfns: &[u64], buf: &mut [u8], pages: &mut [StoredPage]) -> Result<usize> {
        match self.owner(pfns) {
            Some((image, count)) => {
                let here = pfns.get(..count).unwrap_or_default();
                image.read_stored(here, buf, pages.get_mut(..count).unwrap_or_default())
            }
            // Settled as missing.
            None => Ok(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit;

    /// A part whose pages all hold its number.
    struct Fixed(u8, Vec<Extent>, &'static str);

    impl Reader for Fixed {
        fn machine(&self) -> Machine {
            let max_pfn = self.1.last().map_or(0, Extent::end_pfn);
            Machine { page_shift: 12, vmcoreinfo: self.2.into(), max_pfn, ..Machine::default() }
        }
        fn extents(&self) -> Vec<Extent> {
            self.1.clone()
        }
        fn read_pages(&self, pfns: &[u64], out: &mut [u8], states: &mut [PageState]) -> Result<()> {
            assert_eq!((out.len(), states.len()), (pfns.len() * 4096, pfns.len()));
            if pfns.iter().any(|pfn| !self.1.iter().any(|e| (e.first_pfn..e.end_pfn()).contains(pfn))) {
                return Err(Error::format("not mine"));
            }
            out.fill(self.0);
            states.fill(PageState::PRESENT);
            Ok(())
        }
    }

    fn parts(list: Vec<Fixed>) -> Result<Box<dyn Reader>> {
        let sources: Vec<Source> = (0..list.len()).map(|_| testkit::source("part", Vec::new())).collect();
        Parts::join(&sources, list.into_iter().map(|part| Box::new(part) as Box<dyn Reader>).collect())
    }

    #[test]
    fn pages_come_from_the_part_that_has_them() {
        let first = Fixed(1, vec![Extent::encoded(0, 10), Extent::absent(10, 30)], "A=1");
        let second = Fixed(2, vec![Extent::absent(5, 15), Extent::mapped(20, 4, 0, 4096), Extent::encoded(24, 2)], "A=1");
        let reader = parts(vec![second, first]).unwrap();
        let expected = [
            Extent { source: 1, ..Extent::encoded(0, 10) },
            Extent::absent(10, 10),
            Extent::mapped(20, 4, 0, 4096),
            Extent::encoded(24, 2),
            Extent::absent(26, 14),
        ];
        assert_eq!(reader.extents(), expected);
        assert_eq!(reader.machine().max_pfn, 40);
        let pfns = [8, 9, 15, 24, 25, 99];
        let (mut out, mut states) = (vec![0; 6 * 4096], vec![PageState::MISSING; 6]);
        reader.read_pages(&pfns, &mut out, &mut states).unwrap();
        let bytes: Vec<u8> = out.chunks(4096).map(|page| page[0]).collect();
        assert_eq!(bytes, [1, 1, 0, 2, 2, 0]);
        assert_eq!(states.iter().filter(|s| **s == PageState::PRESENT).count(), 4);
    }

    #[test]
    fn parts_that_overlap_or_differ_are_refused() {
        let part = |n, first, info| Fixed(n, vec![Extent::encoded(first, 10)], info);
        let error = |list| parts(list).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error(vec![part(1, 0, "A=1"), part(2, 9, "A=1")]).contains("both have a page"));
        assert!(error(vec![part(1, 0, "A=1"), part(2, 10, "A=2")]).contains("different dumps"));
        assert!(parts(vec![part(1, 0, "A=1"), part(2, 10, "A=1")]).is_ok());
        assert!(parts(Vec::new()).is_err());
    }
}
