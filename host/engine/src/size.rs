//! Sizes as people write them: `4MiB`, `2GiB`, `4096`.

/// Reads a size: a number of bytes, or one with a unit (K, M, G, T, with or without `iB` or `B`; all powers of 1024, as
/// everywhere in this field).
///
/// # Errors
/// What is wrong with the text.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("`{text}` is not a size such as 4MiB"))?;
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        other => return Err(format!("`{other}` is not a unit of size (KiB, MiB, GiB, TiB)")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is too large"))
}

/// Writes a size for people, three digits or so: `14.2 MiB`.
pub fn human(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = units.iter();
    let mut name = unit.next().unwrap_or(&"B");
    while value >= 1024.0 {
        let Some(next) = unit.next() else { break };
        value /= 1024.0;
        name = next;
    }
    if *name == "B" { format!("{bytes} B") } else { format!("{value:.1} {name}") }
}

/// Writes a count with thousands apart: `524,256`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse("4MiB"), Ok(4 << 20));
        assert_eq!(parse("2g"), Ok(2 << 30));
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse(" 512 KB "), Ok(512 << 10));
        assert!(parse("4 Moo").is_err());
        assert!(parse("-1").is_err());
        assert!(parse("99999999999TiB").is_err());
    }

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(999), "999 B");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(12), "12");
    }
}
