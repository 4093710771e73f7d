//! The disks of a set: found by their headers, in whatever order they were given.

use coresift_sdk::{Error, Result, Source};

use crate::container::Sighting;
use crate::header::{BLOCK, DISK_SET_HEADER_SIZE, DISKS_MAX, DiskSetHeader, PartHeader};

/// What to do if a disk is missing.
const GIVE_ALL: &str = "give all disks of the set as inputs, in any order";

/// A whole set.
#[derive(Debug)]
pub struct DiskSet {
    /// the disk set header
    pub header: DiskSetHeader,
    /// index of the input and partition header of each disk, in order of their numbers
    pub disks: Vec<(usize, PartHeader)>,
}

impl DiskSet {
    /// The input that is disk 1.
    ///
    /// # Errors
    /// There is none; [`sort`] makes no such set.
    pub fn head<'a>(&self, sources: &'a [Source]) -> Result<&'a Source> {
        self.disks.first().and_then(|(input, _)| sources.get(*input)).ok_or_else(|| Error::format("a disk set without disks"))
    }
}

/// Brings the inputs in order.
///
/// # Errors
/// Disks are missing, there twice, or of another set.
pub fn sort(sources: &[Source], seen: &[Sighting], warnings: &mut Vec<String>) -> Result<DiskSet> {
    let mut parts = Vec::with_capacity(sources.len());
    for (input, (source, sighting)) in sources.iter().zip(seen).enumerate() {
        parts.push((input, source, part_of_a_set(source, sighting)?));
    }
    let first = one_with_number(1, &parts)?.ok_or_else(|| {
        let given: Vec<String> = parts.iter().map(|(_, source, part)| format!("{} is disk {}", source.name(), part.disk_number)).collect();
        Error::format(format!("disk 1 of the sadump disk set is missing, which has the headers of all ({})", given.join(", ")))
            .hint(GIVE_ALL)
    })?;
    let (input, source, head) = first;
    let header = DiskSetHeader::parse(&source.read_vec(BLOCK, DISK_SET_HEADER_SIZE)?);
    let bad = |what: &str| Error::format(format!("{}: {what}", source.name())).at_offset(BLOCK).hint("the disk set header is damaged");
    if !(1..=DISKS_MAX).contains(&header.disks) {
        return Err(bad(&format!("the disk set header counts {} disks; a set has 1 to {DISKS_MAX}", header.disks)));
    }
    if header.blocks == 0 {
        return Err(bad("the disk set header has no blocks"));
    }
    for (_, other, part) in parts.iter().filter(|(i, ..)| *i != input) {
        refuse_foreign(source, &head, &header, other, part)?;
        if part.time != head.time {
            let (one, two) = (head.time.text(), part.time.text());
            let (number, other) = (part.disk_number, other.name());
            warnings.push(format!("the time stamps of disk 1 ({one}) and of disk {number}, {other} ({two}), differ"));
        }
    }
    let mut disks = vec![(input, head)];
    let mut missing = Vec::new();
    for number in 2..=header.disks {
        match one_with_number(number, &parts)? {
            Some((input, _, part)) => disks.push((input, part)),
            None => {
                let volume = header.volumes.get(number as usize - 2).map(ToString::to_string).unwrap_or_default();
                missing.push(format!("disk {number} (volume {volume})"));
            }
        }
    }
    if missing.is_empty() {
        return Ok(DiskSet { header, disks });
    }
    let message = format!("{}: the sadump disk set has {} disks; missing: {}", source.name(), header.disks, missing.join(", "));
    Err(Error::format(message).hint(GIVE_ALL))
}

fn part_of_a_set(source: &Source, sighting: &Sighting) -> Result<PartHeader> {
    let what = match sighting {
        Sighting::Partition(part) if part.disk_number != 0 => return Ok(*part),
        Sighting::Damaged(why) => return Err(why.clone()),
        Sighting::Partition(_) => "a single partition, which is a dump by itself",
        Sighting::Media(..) => "a media backup, which is a dump by itself",
        Sighting::Other(why) => why.as_str(),
    };
    Err(Error::format(format!("{}: not a disk of a sadump disk set: {what}", source.name())).hint("give the disks of one set, or one dump"))
}

fn one_with_number<'a>(number: u32, parts: &[(usize, &'a Source, PartHeader)]) -> Result<Option<(usize, &'a Source, PartHeader)>> {
    let mut found = parts.iter().filter(|(.., part)| part.disk_number == number);
    match (found.next(), found.next()) {
        (Some((_, one, first)), Some((_, two, second))) => {
            let (one, two) = (one.name(), two.name());
            let same = if first.set == second.set { "of the same set" } else { "of different sets" };
            Err(Error::format(format!("{one} and {two} are both disk {number} ({same})")).hint("give each disk of one set once"))
        }
        (found, _) => Ok(found.copied()),
    }
}

/// Refuses a disk that is not of the set of disk 1.
fn refuse_foreign(first: &Source, head: &PartHeader, header: &DiskSetHeader, other: &Source, part: &PartHeader) -> Result<()> {
    let (first, name, number) = (first.name(), other.name(), part.disk_number);
    let foreign = |what: &str, at: u64| {
        let hint = "give the disks of one set only; which ones belong together is in their partition headers";
        Error::format(format!("{name}: not of the sadump disk set of {first}: {what}")).at_offset(at).hint(hint)
    };
    if part.system != head.system {
        return Err(foreign(&format!("it is of system {}, the set of system {}", part.system, head.system), 88));
    }
    if part.set != head.set {
        return Err(foreign(&format!("its disk set ID is {}, that of disk 1 {}", part.set, head.set), 104));
    }
    if number > header.disks {
        return Err(foreign(&format!("it is disk {number}, the set has {} disks", header.disks), 152));
    }
    // Disks 2 to n are listed; disk 1 twice is found later.
    let listed = number.checked_sub(2).and_then(|i| header.volumes.get(i as usize));
    if let Some(listed) = listed.filter(|listed| **listed != part.volume) {
        return Err(foreign(&format!("its volume ID is {}, disk 1 lists {listed} as disk {number}", part.volume), 120));
    }
    Ok(())
}
