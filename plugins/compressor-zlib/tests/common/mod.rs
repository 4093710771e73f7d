//! What every codec of kdump files is tested for: one set of scenarios, run by each compressor crate against the C
//! library that crash and libkdumpfile decode its pages with.

use coresift_sdk::{Compressor, PackBuffer, PageList, testkit};
use libloading::Library;

/// 4 KiB (x86_64, s390x), 16 KiB (arm64, loongarch64), 64 KiB (ppc64le, arm64).
pub const PAGE_SHIFTS: [u32; 3] = [12, 14, 16];

/// Decompresses a stream as crash does: to at most so many bytes; `None` if the library refuses.
type Decode = Box<dyn Fn(&[u8], usize) -> Option<Vec<u8>>>;
/// Compresses a page.
type Encode = Box<dyn Fn(&[u8]) -> Vec<u8>>;

/// The C library of a codec.
pub struct Peer {
    pub decode: Decode,
    pub encode: Encode,
}

/// Loads a C library, or says which Debian package has it.
pub fn library(file: &str, package: &str) -> Library {
    // SAFETY: a system library without constructors that do more than set up its own tables.
    unsafe { Library::new(file) }.unwrap_or_else(|e| panic!("{file} is needed as a peer: apt install {package} ({e})"))
}

/// Pseudo-random bytes (xorshift64), the same in every run.
pub fn noise(seed: u64) -> impl Iterator<Item = u8> {
    std::iter::successors(Some(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1), |&x| {
        let x = x ^ (x << 13);
        let x = x ^ (x >> 7);
        Some(x ^ (x << 17))
    })
    .map(|x| (x >> 32) as u8)
}

/// A page that no codec can shrink.
pub fn random_page(size: usize) -> Vec<u8> {
    noise(size as u64).take(size).collect()
}

/// Pages that every codec shrinks: zero, text, a repeating pattern, slab objects with kernel pointers, mostly zero, and
/// noise for half of the page.
pub fn soft_pages(size: usize) -> Vec<Vec<u8>> {
    let text = (0..).flat_map(|i| format!("[{i:5}.{:06}] usb {}-1: new device number {i}\n", i * 7919 % 1_000_000, i % 4).into_bytes());
    let slab = (0..size as u64 / 8).flat_map(|i| match i % 8 {
        0 | 1 => (0xffff_8880_0000_0000 | (i / 8 * 0x340)).to_le_bytes(),
        2 => (i / 8).to_le_bytes(),
        3 => 0xffff_ffff_8123_4560u64.to_le_bytes(),
        _ => [0; 8],
    });
    let mut sparse = vec![0; size];
    sparse.iter_mut().step_by(509).zip(noise(3)).for_each(|(byte, n)| *byte = n);
    let mut half = vec![0xaa; size];
    half.iter_mut().zip(noise(4)).take(size / 2).for_each(|(byte, n)| *byte = n);
    vec![
        vec![0; size],
        text.take(size).collect(),
        b"\xde\xad\xbe\xef\x00".iter().copied().cycle().take(size).collect(),
        slab.collect(),
        sparse,
        half,
    ]
}

/// Compresses pages as the host does, in one batch.
pub fn pack(compressor: &mut dyn Compressor, page_shift: u32, pages: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
    let mut list = PageList::with_capacity(pages.len());
    for (pfn, page) in (0..).zip(pages) {
        list.push(pfn, page);
    }
    let mut buffer = PackBuffer::default();
    compressor.compress(&list.batch(page_shift).unwrap(), &mut buffer.lend(pages.len(), 1 << page_shift)).unwrap();
    buffer.pages().map(|page| page.map(<[u8]>::to_vec)).collect()
}

/// Pages come back, whatever came before them in the batch; what does not shrink is left raw.
pub fn pages_come_back(compressor: &mut dyn Compressor) {
    for page_shift in PAGE_SHIFTS {
        let size = 1 << page_shift;
        let mut pages = vec![random_page(size)];
        for page in soft_pages(size) {
            pages.extend([page, random_page(size)]);
        }
        let lens = testkit::round_trip(compressor, page_shift, &pages).unwrap();
        for (i, len) in lens.iter().enumerate() {
            match i % 2 {
                0 => assert_eq!(*len, None, "random page {i} of {size} bytes"),
                _ => assert!(len.is_some_and(|len| len < size * 3 / 4), "page {i} of {size} bytes: {len:?}"),
            }
        }
    }
}

/// The C library reads what we write.
pub fn the_c_library_reads_ours(compressor: &mut dyn Compressor, peer: &Peer) {
    for page_shift in PAGE_SHIFTS {
        let pages = soft_pages(1 << page_shift);
        for (i, (page, packed)) in pages.iter().zip(pack(compressor, page_shift, &pages)).enumerate() {
            let back = (peer.decode)(&packed.unwrap(), page.len());
            assert!(back.as_ref() == Some(page), "page {i} of {} bytes, refused: {}", page.len(), back.is_none());
        }
    }
}

/// We read what the C library writes, pages that do not shrink included.
pub fn we_read_the_c_librarys(compressor: &mut dyn Compressor, peer: &Peer) {
    for page_shift in PAGE_SHIFTS {
        let size = 1 << page_shift;
        let mut pages = soft_pages(size);
        pages.push(random_page(size));
        let streams: Vec<Vec<u8>> = pages.iter().map(|page| (peer.encode)(page)).collect();
        let stored: Vec<&[u8]> = streams.iter().map(Vec::as_slice).collect();
        let mut out = vec![0xff; size * pages.len()];
        compressor.decompress(&stored, size, &mut out).unwrap();
        assert!(out == pages.concat(), "pages of {size} bytes");
    }
}

/// A cut stream is an error; a changed one is an error or other bytes; neither panics nor leaves the page's bounds, and
/// the next page is read as ever.
pub fn damage_stays_an_error(compressor: &mut dyn Compressor) {
    let (page_shift, size) = (12, 4096);
    let pages = soft_pages(size);
    let mut out = vec![0; size];
    for (page, packed) in pages.iter().zip(pack(compressor, page_shift, &pages)) {
        let packed = packed.unwrap();
        for len in 0..packed.len() {
            assert!(compressor.decompress(&[&packed[..len]], size, &mut out).is_err(), "{len} of {} bytes", packed.len());
        }
        let mut dice = noise(packed.len() as u64);
        for _ in 0..2000 {
            let mut bad = packed.clone();
            for _ in 0..dice.next().unwrap() % 4 + 1 {
                let at = usize::from(dice.next().unwrap()) << 8 | usize::from(dice.next().unwrap());
                let at = at % bad.len();
                bad[at] = dice.next().unwrap();
            }
            let _ = compressor.decompress(&[&bad], size, &mut out);
        }
        for _ in 0..200 {
            let junk: Vec<u8> = dice.by_ref().take(64).collect();
            let _ = compressor.decompress(&[&junk], size, &mut out);
        }
        compressor.decompress(&[&packed], size, &mut out).unwrap();
        assert!(out == *page, "a sound page after damaged ones");
    }
}

/// A stream must make exactly a page, and the output must have a page for each.
pub fn lengths_are_checked(compressor: &mut dyn Compressor) {
    let packed = pack(compressor, 12, &[vec![7; 4096]]).remove(0).unwrap();
    let mut out = vec![0; 16384];
    for page_size in [0, 2048, 4095, 4097, 16384] {
        assert!(compressor.decompress(&[&packed], page_size, &mut out[..page_size]).is_err(), "as a page of {page_size} bytes");
    }
    assert!(compressor.decompress(&[&packed, &packed], 4096, &mut out[..4096]).is_err(), "two pages into room for one");
}

/// The scenarios as tests. `open` makes a compressor of a level; where a codec has no levels it gets one to ignore.
macro_rules! codec_tests {
    (open: $open:expr, levels: $levels:expr, peer: $peer:expr) => {
        fn each(mut scenario: impl FnMut(&mut dyn coresift_sdk::Compressor)) {
            for level in $levels {
                scenario($open(level).as_mut());
            }
        }

        #[test]
        fn pages_come_back() {
            each(common::pages_come_back);
        }

        #[test]
        fn the_c_library_reads_our_pages() {
            each(|compressor| common::the_c_library_reads_ours(compressor, &$peer));
        }

        #[test]
        fn we_read_the_c_librarys_pages() {
            each(|compressor| common::we_read_the_c_librarys(compressor, &$peer));
        }

        #[test]
        fn damage_stays_an_error() {
            each(common::damage_stays_an_error);
        }

        #[test]
        fn lengths_are_checked() {
            each(common::lengths_are_checked);
        }
    };
}
