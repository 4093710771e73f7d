//! Our encoder and decoder against liblzo2, which makedumpfile, crash and libkdumpfile use.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at what it did not expect"
)]

use std::ffi::{c_int, c_ulong};

use compressor_lzo::decode::decompress;
use compressor_lzo::encode::{Encoder, max_compressed_len};
use libloading::Library;

type Codec = unsafe extern "C" fn(*const u8, c_ulong, *mut u8, *mut c_ulong, *mut u8) -> c_int;

/// LZO1X_999_MEM_COMPRESS of lzo1x.h, the larger of the two encoders' needs: 14 * 16384 * sizeof(short).
const WORK_LEN: usize = 14 * 16384 * 2;

struct Liblzo2 {
    library: Library,
    work: Vec<u64>,
}

impl Liblzo2 {
    fn open() -> Self {
        // SAFETY: liblzo2 runs no code of its own when it is loaded.
        let library = unsafe { Library::new("liblzo2.so.2") }.expect("these tests need liblzo2.so.2 (Debian package liblzo2-2)");
        Self { library, work: vec![0; WORK_LEN / 8] }
    }

    fn call(&mut self, name: &str, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let mut len = dst.len() as c_ulong;
        // SAFETY: the signature is that of lzo1x.h; each function reads `src`, and writes `dst` (the encoders by their
        // documented worst case, which `compress` allows for) and the work memory. All three are valid and apart.
        let code = unsafe {
            let function = self.library.get::<Codec>(name).unwrap();
            function(src.as_ptr(), src.len() as c_ulong, dst.as_mut_ptr(), &mut len, self.work.as_mut_ptr().cast())
        };
        (code == 0).then_some(len as usize)
    }

    fn compress(&mut self, name: &str, data: &[u8]) -> Vec<u8> {
        // The worst case from LZO.FAQ.
        let mut out = vec![0; data.len() + data.len() / 16 + 64 + 3];
        let len = self.call(name, data, &mut out).unwrap();
        out.truncate(len);
        out
    }

    fn decompress(&mut self, stream: &[u8], dst: &mut [u8]) -> Option<usize> {
        self.call("lzo1x_decompress_safe", stream, dst)
    }
}

/// xorshift64* with a fixed seed: every run tests the same.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Distances around the limits of M1 (0x400, 0x801..=0xc00), M2 (0x800), M3 (0x4000) and M4 (0x8000, 0xbfff).
const DISTANCES: [usize; 28] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 0x3ff, 0x400, 0x401, 0x7ff, 0x800, 0x801, 0xbff, 0xc00, 0xc01, 0x3fff, 0x4000, 0x4001, 0x7fff,
    0x8000, 0xbffe, 0xbfff,
];

/// Random bytes in which runs of many lengths repeat at `distance`.
fn repeats(random: &mut Random, distance: usize, len: usize) -> Vec<u8> {
    let mut data = random.bytes(distance.min(len));
    while data.len() < len {
        let n = match random.below(4) {
            0 => 3 + random.below(8),
            1 => 3 + random.below(40),
            2 => random.below(600),
            _ => 8,
        };
        for _ in 0..n {
            data.push(data[data.len() - distance]);
        }
        let most = *random.pick(&[6, 6, 6, 6, 6, 6, 6, 400]);
        let n = random.below(most);
        data.extend(random.bytes(n));
    }
    data.truncate(len);
    data
}

/// What kernel pages are like: 8-byte words, most of them pointers near each other, small numbers and zeros.
fn words(random: &mut Random, len: usize) -> Vec<u8> {
    let mut data = Vec::new();
    while data.len() < len {
        let word = match random.below(5) {
            0 => 0,
            1 => random.next() & 0xff,
            2 => 0xffff_ffff_8120_0000 | (random.next() & 0xf_ffff),
            _ => 0xffff_8a89_c010_0000 | (random.next() & 0xff8),
        };
        data.extend(word.to_le_bytes());
    }
    data.truncate(len);
    data
}

fn text(random: &mut Random, len: usize) -> Vec<u8> {
    const WORDS: [&str; 12] = ["page", "the", "kernel", "of", "memory", "a", "panic", "struct", "list", "in", "cache", "node"];
    let mut data = Vec::new();
    while data.len() < len {
        data.extend(random.pick(&WORDS).as_bytes());
        data.push(if random.below(9) == 0 { b'\n' } else { b' ' });
    }
    data.truncate(len);
    data
}

fn samples() -> Vec<Vec<u8>> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut sizes: Vec<usize> = (0..64).collect();
    sizes.extend([237, 238, 239, 240, 255, 273, 274, 510, 1000, 4095, 4096, 4097, 16384, 0x8000, 0x8001, 0xbfff, 0xc000, 0xc001, 0xc010]);
    sizes.extend([0xc011, 0xc012, 0xc018, 0xffff, 0x10000, 70001, 1 << 20]);
    let mut samples = Vec::new();
    for &n in &sizes {
        samples.push(vec![0; n]);
        samples.push(random.bytes(n));
        samples.push(text(&mut random, n));
        samples.push(words(&mut random, n));
        let distance = *random.pick(&DISTANCES);
        samples.push(repeats(&mut random, distance, n));
        let step = 1 + random.below(7);
        samples.push((0..n).map(|i| (i / 97) as u8 ^ (i % step) as u8).collect());
    }
    for distance in DISTANCES {
        samples.push(repeats(&mut random, distance, 0x10000));
        samples.push(repeats(&mut random, distance, (distance + 4000).min(0x10000)));
    }
    // Literals across the border of the encoder's blocks of 0xc000 bytes.
    for tail in 0..40 {
        let mut data = vec![7; 0xc000 - tail];
        data.extend(random.bytes(tail + 1 + random.0 as usize % 50));
        data.extend(vec![7; 300]);
        samples.push(data);
    }
    samples
}

#[test]
fn liblzo2_reads_what_we_write() {
    let mut liblzo2 = Liblzo2::open();
    let mut encoder = Encoder::new();
    for data in samples() {
        let mut out = vec![0; max_compressed_len(data.len())];
        let len = encoder.compress(&data, &mut out).expect("fits the worst case");
        let mut back = vec![0xaa; data.len()];
        assert_eq!(liblzo2.decompress(&out[..len], &mut back), Some(data.len()));
        assert!(back == data, "{} bytes differ", data.len());
        back.fill(0xaa);
        assert_eq!(decompress(&out[..len], &mut back), Ok(data.len()));
        assert!(back == data, "{} bytes differ", data.len());

        // The same with exactly the room needed, from a fresh table; and not with one byte less.
        let mut exact = vec![0; len];
        assert_eq!(Encoder::new().compress(&data, &mut exact), Some(len));
        assert!(exact == out[..len]);
        assert_eq!(encoder.compress(&data, &mut exact[..len - 1]), None);
    }
}

#[test]
fn we_read_what_liblzo2_writes() {
    let mut liblzo2 = Liblzo2::open();
    for data in samples() {
        for name in ["lzo1x_1_compress", "lzo1x_1_15_compress", "lzo1x_999_compress"] {
            // Level 999 takes seconds for what is long.
            if name == "lzo1x_999_compress" && data.len() > 0x10000 {
                continue;
            }
            let stream = liblzo2.compress(name, &data);
            let mut back = vec![0xaa; data.len()];
            assert_eq!(decompress(&stream, &mut back), Ok(data.len()), "{name}");
            assert!(back == data, "{name}: {} bytes differ", data.len());
        }
    }
}

#[test]
fn streams_are_about_as_small() {
    let mut liblzo2 = Liblzo2::open();
    let mut random = Random(5);
    let mut encoder = Encoder::new();
    for make in [words as fn(&mut Random, usize) -> Vec<u8>, text] {
        let data = make(&mut random, 0x10000);
        let ours = encoder.compress(&data, &mut vec![0; data.len()]).unwrap();
        let theirs = liblzo2.compress("lzo1x_1_compress", &data).len();
        assert!(ours * 100 <= theirs * 103, "{ours} bytes, liblzo2 {theirs}");
    }
}

/// A valid stream of random instructions of every kind, with every form of length.
fn instructions(random: &mut Random) -> Vec<u8> {
    let most = *random.pick(&[3, 30, 238]);
    let run = 1 + random.below(most);
    let mut stream = vec![17 + run as u8];
    stream.extend(random.bytes(run));
    let mut len = run;
    let mut state = run.min(4);
    if random.below(4) == 0 {
        // Enough data for the large distances: an M3 of distance 1.
        let zeros = random.below(190);
        stream.push(32);
        stream.extend(vec![0; zeros]);
        stream.extend([1, 0, 0]);
        len += 33 + 255 * zeros + 1;
        state = 0;
    }
    for _ in 0..random.below(30) {
        let (low, high) = match random.below(5) {
            0 if state == 0 => {
                let more = *random.pick(&[0, 0, 1, 15]);
                stream.push(more as u8);
                let run = if more == 0 { 18 + extend(random, &mut stream) } else { 3 + more };
                stream.extend(random.bytes(run));
                len += run;
                state = 4;
                continue;
            }
            0 if state == 4 => (0x801, 0xc00),
            0 => (1, 0x400),
            1 => (0x4001, 0xbfff),
            2 => (1, 0x4000),
            _ => (1, 0x800),
        };
        let high = high.min(len);
        if low > high {
            continue;
        }
        let distance = match random.below(4) {
            0 => low,
            1 => high,
            2 => low + random.below((high - low + 1).min(16)),
            _ => low + random.below(high - low + 1),
        };
        let after = random.below(4);
        len += match (low, high) {
            (0x4001, _) => {
                let d = distance - 0x4000;
                long_match(random, &mut stream, 16 | (d >> 14 << 3), 7, (d & 0x3fff) << 2 | after)
            }
            (0x801, _) => near_run(&mut stream, distance - 0x801, after, 3),
            _ if state != 0 && distance <= 0x400 && random.below(4) == 0 && state < 4 => near_run(&mut stream, distance - 1, after, 2),
            _ if distance <= 0x800 && random.below(2) == 0 => {
                let n = 3 + random.below(6);
                stream.extend([((n - 1) << 5 | ((distance - 1) & 7) << 2 | after) as u8, ((distance - 1) >> 3) as u8]);
                n
            }
            _ => long_match(random, &mut stream, 32, 31, (distance - 1) << 2 | after),
        };
        stream.extend(random.bytes(after));
        len += after;
        state = after;
    }
    stream.extend([17, 0, 0]);
    stream
}

/// Adds an M1, and gives its length.
fn near_run(stream: &mut Vec<u8>, d: usize, after: usize, len: usize) -> usize {
    stream.extend([((d & 3) << 2 | after) as u8, (d >> 2) as u8]);
    len
}

/// Adds an M3 or M4, and gives its length.
fn long_match(random: &mut Random, stream: &mut Vec<u8>, tag: usize, max: usize, operand: usize) -> usize {
    let bits = random.below(max + 1);
    stream.push((tag | bits) as u8);
    let len = 2 + if bits == 0 { max + extend(random, stream) } else { bits };
    stream.extend((operand as u16).to_le_bytes());
    len
}

/// Adds length bytes, and gives their sum.
fn extend(random: &mut Random, stream: &mut Vec<u8>) -> usize {
    let zeros = if random.below(4) == 0 { random.below(3) } else { 0 };
    let last = 1 + random.below(255);
    stream.extend(vec![0; zeros]);
    stream.push(last as u8);
    zeros * 255 + last
}

fn mutate(random: &mut Random, stream: &mut Vec<u8>) {
    for _ in 0..1 + random.below(3) {
        let at = random.below(stream.len() + 1);
        match random.below(7) {
            0 => stream.truncate(at),
            1 => stream.insert(at, random.next() as u8),
            2 => stream.extend([17, 0, 0]),
            _ if at == stream.len() => {}
            3 => drop(stream.remove(at)),
            4 => stream[at] = [0, 1, 15, 16, 17, 18, 31, 32, 63, 64, 255][random.below(11)],
            5 => stream[at] ^= 1 << random.below(8),
            _ => stream[at] = random.next() as u8,
        }
    }
}

#[test]
fn damaged_streams_are_judged_as_by_liblzo2() {
    let mut liblzo2 = Liblzo2::open();
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut bases: Vec<Vec<u8>> = vec![vec![17, 0, 0]];
    for n in [1, 5, 40, 100, 300, 700, 3000] {
        for data in [text(&mut random, n), words(&mut random, n), vec![9; n], repeats(&mut random, n.div_ceil(3), n)] {
            for name in ["lzo1x_1_compress", "lzo1x_999_compress"] {
                bases.push(liblzo2.compress(name, &data));
            }
        }
    }
    // M4 needs 16 KiB before it.
    for distance in [0x4001, 0x8001, 0xbfff] {
        let data = repeats(&mut random, distance, distance + 300);
        bases.push(liblzo2.compress("lzo1x_999_compress", &data));
    }
    let (mut ours, mut theirs) = (vec![0; 0x2_0000], vec![0; 0x2_0000]);
    let mut accepted = 0;
    for round in 0..300_000 {
        let mut stream = if round % 2 == 0 { instructions(&mut random) } else { random.pick(&bases).clone() };
        if stream.len() > 0x2000 && round % 64 != 1 {
            continue;
        }
        let whole = round % 8 == 0;
        if !whole {
            mutate(&mut random, &mut stream);
        }
        let room = match random.below(8) {
            _ if whole => 0x2_0000,
            0 => random.below(800),
            1 => random.below(4000),
            _ => 0x2_0000,
        };
        let here = decompress(&stream, &mut ours[..room]).ok();
        let there = liblzo2.decompress(&stream, &mut theirs[..room]);
        assert_eq!(here, there, "round {round}, room {room}: {stream:02x?}");
        assert!(here.is_some() || !whole, "round {round}: {stream:02x?}");
        if let Some(len) = here {
            accepted += 1;
            assert!(ours[..len] == theirs[..len], "round {round}: {stream:02x?}");
        }
        // And exactly enough room, then too little.
        if let Some(len) = here.filter(|&len| len > 0) {
            assert_eq!(decompress(&stream, &mut theirs[..len]), Ok(len));
            assert!(ours[..len] == theirs[..len], "round {round}: {stream:02x?}");
            assert!(decompress(&stream, &mut theirs[..len - 1]).is_err());
        }
    }
    assert!((50_000..250_000).contains(&accepted), "{accepted} of 300,000: the streams test too little");
}

#[test]
fn every_cut_of_a_stream_is_refused() {
    let mut liblzo2 = Liblzo2::open();
    let mut random = Random(77);
    let stream = liblzo2.compress("lzo1x_999_compress", &words(&mut random, 3000));
    let mut out = vec![0; 3000];
    for len in 0..stream.len() {
        assert!(decompress(&stream[..len], &mut out).is_err(), "{len} bytes");
    }
    assert_eq!(decompress(&stream, &mut out), Ok(3000));
}
