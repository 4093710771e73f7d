//! Time stamps; expected values are those of `date -u -d … +%s`.

use reader_sadump::time::EfiTime;

fn seconds(year: u16, fields: [u8; 5], zone: i16) -> Option<u64> {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&year.to_le_bytes());
    bytes[2..7].copy_from_slice(&fields);
    bytes[12..14].copy_from_slice(&zone.to_le_bytes());
    EfiTime::at(&bytes, 0).unix_seconds()
}

#[test]
fn dates_are_those_of_the_calendar() {
    const UNSPECIFIED: i16 = 2047;
    assert_eq!(seconds(1970, [1, 1, 0, 0, 0], UNSPECIFIED), Some(0));
    assert_eq!(seconds(2000, [2, 29, 12, 0, 0], UNSPECIFIED), Some(951_825_600));
    assert_eq!(seconds(2024, [12, 31, 23, 59, 59], UNSPECIFIED), Some(1_735_689_599));
    assert_eq!(seconds(2026, [11, 30, 20, 30, 15], UNSPECIFIED), Some(1_796_070_615));
    assert_eq!(seconds(2100, [3, 1, 0, 0, 0], UNSPECIFIED), Some(4_107_542_400));
}

#[test]
fn the_time_zone_is_in_minutes_and_local_time_is_utc_less_it() {
    // Japan, UTC+9: TimeZone is -540.
    assert_eq!(seconds(2026, [12, 1, 5, 30, 15], -540), Some(1_796_070_615));
    assert_eq!(seconds(2026, [11, 30, 15, 30, 15], 300), Some(1_796_070_615));
}

#[test]
fn what_is_no_time_is_none() {
    for (year, fields, zone) in [
        (0, [0; 5], 0),
        (2026, [13, 1, 0, 0, 0], 0),
        (2026, [1, 0, 0, 0, 0], 0),
        (2026, [1, 1, 24, 0, 0], 0),
        (2026, [1, 1, 0, 60, 0], 0),
        (2026, [1, 1, 0, 0, 0], 1441),
        (1970, [1, 1, 0, 0, 0], -1),
        (u16::MAX, [1, 1, 0, 0, 0], 0),
    ] {
        assert_eq!(seconds(year, fields, zone), None, "{year} {fields:?} {zone}");
    }
}
