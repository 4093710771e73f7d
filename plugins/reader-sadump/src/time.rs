//! Time stamps of the firmware: `EFI_TIME` (UEFI specification, section 8.3 "Time Services").

use crate::header::{u8_at, u16_at};

/// Bytes of an `EFI_TIME`.
pub const SIZE: usize = 16;

/// `TimeZone` of a clock that does not say in which it runs (`EFI_UNSPECIFIED_TIMEZONE`).
const UNSPECIFIED_TIMEZONE: i16 = 0x07ff;

/// Largest `TimeZone` in either direction: a day in minutes.
const TIMEZONE_MAX: i16 = 1440;

/// Seconds of a day.
const DAY: i64 = 86_400;

/// A time stamp, as it stands in a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EfiTime([u8; SIZE]);

impl EfiTime {
    /// The time stamp at offset `at` of a header.
    pub fn at(bytes: &[u8], at: usize) -> Self {
        Self(crate::header::array_at(bytes, at))
    }

    /// Seconds since 1970; `None` if it is no time. A clock without time zone is taken to run in UTC.
    pub fn unix_seconds(&self) -> Option<u64> {
        let year = i64::from(u16_at(&self.0, 0));
        let [month, day, hour, minute, second] = [2, 3, 4, 5, 6].map(|at| i64::from(u8_at(&self.0, at)));
        let sound = (1970..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && (0..24).contains(&hour)
            && (0..60).contains(&minute)
            && (0..=60).contains(&second);
        if !sound {
            return None;
        }
        let zone = u16_at(&self.0, 12).cast_signed();
        // Local time = UTC - TimeZone, in minutes. (makedumpfile 1.7 adds it as hours.)
        let zone = match zone {
            UNSPECIFIED_TIMEZONE => 0,
            zone if zone.unsigned_abs() <= TIMEZONE_MAX.unsigned_abs() => i64::from(zone) * 60,
            _ => return None,
        };
        let local = days_since_1970(year, month, day) * DAY + hour * 3600 + minute * 60 + second;
        u64::try_from(local + zone).ok()
    }

    /// The date for people.
    pub fn text(&self) -> String {
        let [month, day, hour, minute, second] = [2, 3, 4, 5, 6].map(|at| u8_at(&self.0, at));
        format!("{:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}", u16_at(&self.0, 0))
    }
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. Years begin in March here, so that leap days come last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    // 153 days are five months from March on; 719,468 days lie between 0000-03-01 and 1970-01-01.
    year * 365 + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468
}
