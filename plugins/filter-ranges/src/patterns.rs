//! Patterns of bytes in a page.

use coresift_sdk::{Error, ErrorKind, Result};
use memchr::memmem::Finder;

/// How patterns are written, for errors.
const FORMS: &str = "write text:SECRET or hex:deadbeef (?? = any byte), with @OFFSET for a fixed place in the page, e.g. hex:7f454c46@0";

/// A pattern of bytes.
pub enum Pattern {
    /// these bytes anywhere
    Anywhere(Box<Finder<'static>>),
    /// bytes with gaps, anywhere
    Gaps(Vec<Option<u8>>),
    /// bytes, gaps allowed, at a place
    At(usize, Vec<Option<u8>>),
}

fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, message.into()).hint(FORMS)
}

impl Pattern {
    /// Reads a pattern for pages of this size.
    ///
    /// # Errors
    /// It is no pattern, or can match no page.
    pub fn parse(text: &str, page_size: usize) -> Result<Self> {
        let (kind, rest) = text.split_once(':').ok_or_else(|| wrong(format!("is no pattern; did you mean text:{text}?")))?;
        let (body, place) = match rest.rsplit_once('@') {
            // A text may hold an @ itself: only a number behind it is a place.
            Some((body, place)) => match offset(place) {
                Some(place) => (body, Some(place)),
                None if kind == "hex" => return Err(wrong(format!("`{place}` is no offset"))),
                None => (rest, None),
            },
            None => (rest, None),
        };
        let bytes = match kind {
            "text" => body.bytes().map(Some).collect(),
            "hex" => hex(body)?,
            _ => return Err(wrong(format!("`{kind}:` is no kind of pattern"))),
        };
        if bytes.iter().all(Option::is_none) {
            return Err(wrong("is empty: it would match every page"));
        }
        if place.unwrap_or(0).saturating_add(bytes.len()) > page_size {
            return Err(wrong(format!("reaches beyond the page of {page_size} bytes")));
        }
        Ok(match (place, bytes.iter().copied().collect::<Option<Vec<u8>>>()) {
            (Some(place), _) => Self::At(place, bytes),
            (None, Some(plain)) => Self::Anywhere(Box::new(Finder::new(&plain).into_owned())),
            (None, None) => Self::Gaps(bytes),
        })
    }

    /// True if the page has it.
    pub fn matches(&self, page: &[u8]) -> bool {
        let same = |window: &[u8], bytes: &[Option<u8>]| window.iter().zip(bytes).all(|(have, want)| want.is_none_or(|w| w == *have));
        match self {
            Self::Anywhere(finder) => finder.find(page).is_some(),
            Self::Gaps(bytes) => page.windows(bytes.len()).any(|window| same(window, bytes)),
            Self::At(place, bytes) => page.get(*place..place + bytes.len()).is_some_and(|window| same(window, bytes)),
        }
    }
}

fn offset(text: &str) -> Option<usize> {
    match text.strip_prefix("0x") {
        Some(hex) => usize::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Pairs of digits, blanks between them allowed; `??` is any byte.
fn hex(text: &str) -> Result<Vec<Option<u8>>> {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    if !digits.len().is_multiple_of(2) {
        return Err(wrong("a byte has two digits"));
    }
    let byte = |pair: &[char]| {
        let pair: String = pair.iter().collect();
        let value = u8::from_str_radix(&pair, 16).ok().filter(|_| pair.chars().all(|c| c.is_ascii_hexdigit()));
        if pair == "??" { Ok(None) } else { value.map(Some).ok_or_else(|| wrong(format!("`{pair}` is no byte"))) }
    };
    digits.chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_where_they_say() {
        let mut page = vec![0u8; 4096];
        page[100..108].copy_from_slice(b"\xde\xad\x01\xefa@b!");
        let matches = |text: &str| Pattern::parse(text, 4096).unwrap().matches(&page);
        for text in ["hex:dead", "hex:de ad ?? ef", "hex:dead@100", "hex:ad??ef@0x65", "text:a@b", "text:a@b!@104"] {
            assert!(matches(text), "{text}");
        }
        for text in ["hex:dead@101", "hex:de??ad", "text:a@c", "hex:dead@4094"] {
            assert!(!matches(text), "{text}");
        }
    }

    #[test]
    fn what_is_no_pattern_or_matches_nothing_or_everything_is_refused() {
        let long = format!("text:{}", "x".repeat(4097));
        for (text, says) in [
            ("hex:??", "every page"),
            ("hex:+f+f", "`+f` is no byte"),
            ("hex:d\u{e9}", "no byte"),
            ("hex:00@x", "`x` is no offset"),
            ("hex:00@4096", "beyond the page"),
            ("hex:00@18446744073709551615", "beyond the page"),
            ("text:@0", "empty"),
            ("word:SECRET", "no kind of pattern"),
            (&long, "beyond the page"),
        ] {
            let e = Pattern::parse(text, 4096).err().unwrap_or_else(|| panic!("{text} is accepted"));
            assert!(e.message.contains(says) && e.hint.contains("text:SECRET"), "{text}: {}", e.message);
        }
        assert!(Pattern::parse(&long, 1 << 16).is_ok(), "a page of 64 KiB has room for it");
    }
}
