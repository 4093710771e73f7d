//! Reads raw memory images: nothing but memory, each byte at its physical address.
//!
//! ```text
//! offset 0                       physical address `base` (a setting, 0 if it is not set)
//! offset n                       physical address `base` + n
//! ```
//!
//! Such files come from LiME (`format=padded`), QEMU's `pmemsave`, and coresift's writer raw.
//!
//! Others have the same bytes without the holes of the machine's memory: LiME's `format=raw`, and memory files of virtual
//! machines (VMware's `.vmem`) with more memory than lies below the hole for devices. The setting `regions` says where the
//! parts of such a file belong, e.g. the `System RAM` of `/proc/iomem`:
//!
//! ```toml
//! [input]
//! reader = "raw"
//! regions = ["0x0+3GiB", "0x100000000+1GiB"]
//! ```
//!
//! No byte of the file says what it is, so the reader never offers itself: `--set input.reader=raw` names it, and the
//! settings `arch`, `base` and `page_size` say what the file cannot. All of the file counts as memory: holes that the
//! writer filled with zeros cannot be told from pages of zeros, and filters that leave out zero pages take care of both.
//!
//! | module | does |
//! |---|---|
//! | [`regions`] | the setting of that name |
//! | [`image`] | the reader |

pub mod image;
pub mod regions;

use coresift_sdk::{Error, ErrorKind, Key, Machine, Manifest, Reader, Result, Score, Setup, Source, arch};

use crate::image::RawImage;

/// What this plugin says about itself.
pub fn manifest() -> Manifest {
    Manifest::reader("raw", env!("CARGO_PKG_VERSION"), "reads raw memory images; has to be named", &["raw image"])
        .key(Key::size("base", 0, 0, i64::MAX.cast_unsigned(), "physical address of the file's first byte"))
        .key(Key::list("regions", "physical ranges that stand in the file one behind the other, e.g. 0x0+3GiB; none = no holes"))
        .key(arch::arch_key())
        .key(arch::page_size_key())
}

/// Never sure: any file could be a raw image.
///
/// # Errors
/// None.
pub fn probe(_: &[Source]) -> Result<Score> {
    Ok(Score::no("a raw image has no sign of its own: if it is one, give --set input.reader=raw and, if needed, input.base and input.arch"))
}

/// Opens a raw image.
///
/// # Errors
/// A setting makes no sense, or the file has not one page.
pub fn open(setup: Setup) -> Result<Box<dyn Reader>> {
    let [source] = setup.sources.as_slice() else {
        return Err(Error::unsupported(format!("a raw image is one file, not {}", setup.sources.len())));
    };
    let machine = machine(&setup)?;
    let (base, regions) = (setup.config.size("base")?, regions::parse(setup.config.list("regions")?)?);
    Ok(Box::new(match (base, regions.as_slice()) {
        (base, []) => RawImage::open(source.clone(), machine, base)?,
        (0, regions) => RawImage::open_regions(source.clone(), machine, regions)?,
        _ => {
            let message = "keys `base` and `regions`: the regions say where the file begins";
            return Err(Error::new(ErrorKind::Config, message).hint("take one of them out"));
        }
    }))
}

/// What the settings say of the machine; the file says nothing.
fn machine(setup: &Setup) -> Result<Machine> {
    let named = arch::by_name(setup.config.text("arch")?);
    let Some(taken) = named.or_else(|| arch::usual(false)) else { return Ok(Machine::default()) };
    let mut machine = taken.machine(arch::page_size(&setup.config)?);
    if named.is_none() {
        let warning = format!("the image does not tell its architecture: {} is taken (--set input.arch=NAME)", taken.name);
        machine.warnings.insert(0, warning);
    }
    Ok(machine)
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: reader, name: "raw", manifest: manifest, probe: probe, open: open }
