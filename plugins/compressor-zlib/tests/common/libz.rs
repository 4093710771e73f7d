//! The zlib of the system, for the two compressors of its format.

use std::ffi::{c_int, c_ulong};

use crate::common::{Peer, library};

type Uncompress = unsafe extern "C" fn(*mut u8, *mut c_ulong, *const u8, c_ulong) -> c_int;
type Compress2 = unsafe extern "C" fn(*mut u8, *mut c_ulong, *const u8, c_ulong, c_int) -> c_int;

/// `uncompress()`, as crash calls it, and `compress2()`, as makedumpfile does.
pub fn peer() -> Peer {
    let z = library("libz.so.1", "zlib1g");
    // SAFETY: the types are those of zlib.h; the pointers are used only as long as the closures keep the library.
    let (uncompress, compress2) = unsafe { (*z.get::<Uncompress>(b"uncompress").unwrap(), *z.get::<Compress2>(b"compress2").unwrap()) };
    let z = std::sync::Arc::new(z);
    let kept = z.clone();
    Peer {
        decode: Box::new(move |stream, page_size| {
            let _ = &kept;
            let mut page = vec![0u8; page_size];
            let mut len = page_size as c_ulong;
            // SAFETY: both buffers have the lengths given.
            let code = unsafe { uncompress(page.as_mut_ptr(), &raw mut len, stream.as_ptr(), stream.len() as c_ulong) };
            page.truncate(len as usize);
            (code == 0).then_some(page)
        }),
        encode: Box::new(move |page| {
            let _ = &z;
            let mut stream = vec![0u8; page.len() * 2 + 64];
            let mut len = stream.len() as c_ulong;
            // SAFETY: as above.
            let code = unsafe { compress2(stream.as_mut_ptr(), &raw mut len, page.as_ptr(), page.len() as c_ulong, 1) };
            assert_eq!(code, 0, "compress2");
            stream.truncate(len as usize);
            stream
        }),
    }
}
