//! `Hello`: the plain C symbol that the host reads before anything else of a library.
//!
//! It makes a refusal one line: a library of another ABI, one built with `panic=abort` or something that is no plugin
//! is told apart here, before `abi_stable` compares layouts (its own reports run to hundreds of lines).

/// First bytes of every plugin's `CORESIFT_HELLO`.
pub const MAGIC: [u8; 8] = *b"CORESIFT";

/// Major number of the plugin ABI. From 1 on the surface of a major is frozen.
pub const ABI_MAJOR: u32 = 0;

/// Minor number of the plugin ABI; while the major is 0, it rises with every change of the surface.
pub const ABI_MINOR: u32 = 3;

/// Name of the symbol, as a C string.
pub const SYMBOL: &[u8] = b"CORESIFT_HELLO\0";

/// What a library says about itself in plain C.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// [`MAGIC`]
    pub magic: [u8; 8],
    /// [`ABI_MAJOR`] of the SDK it was built with
    pub abi_major: u32,
    /// [`ABI_MINOR`] of the SDK it was built with
    pub abi_minor: u32,
    /// 1 if a panic unwinds and can be contained, 0 for `panic=abort`
    pub panic_unwind: u32,
    /// Kind of plugin, see [`crate::Kind`]
    pub kind: u32,
    /// Name of the plugin, padded with zero bytes
    pub name: [u8; 32],
}

impl Hello {
    /// The Hello of a plugin built with this SDK. Called by [`crate::export_plugin!`] in a constant.
    pub const fn new(name: &str, kind: u32, panic_unwind: bool) -> Self {
        let bytes = name.as_bytes();
        assert!(!bytes.is_empty() && bytes.len() < 32, "a plugin's name has 1 to 31 bytes");
        let mut rest = bytes;
        while let Some((byte, tail)) = rest.split_first() {
            assert!(matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'), "a plugin's name has lower-case letters, digits and `-`");
            rest = tail;
        }
        let mut padded = [0u8; 32];
        padded.split_at_mut(bytes.len()).0.copy_from_slice(bytes);
        Self { magic: MAGIC, abi_major: ABI_MAJOR, abi_minor: ABI_MINOR, panic_unwind: panic_unwind as u32, kind, name: padded }
    }

    /// The name without its padding; bytes that are not UTF-8 are replaced.
    pub fn name(&self) -> String {
        let end = self.name.iter().position(|&b| b == 0).unwrap_or(self.name.len());
        String::from_utf8_lossy(self.name.split_at(end).0).into_owned()
    }
}
