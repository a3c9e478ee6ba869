//! Time zones by name, as the clocks of engines go by them: from the tables in this binary, so that
//! relays of one build agree.

use jiff::Timestamp;
use jiff::civil::date;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use warmpath_prompt::{Clock, Offset};

/// Years of which the changes of the clocks are told.
const YEARS: std::ops::Range<i16> = 2020..2060;

/// The clock of a time zone of the IANA's, like `America/Los_Angeles`; none if there is none of this
/// name.
pub fn clock(name: &str) -> Option<Clock> {
    let zone = TimeZoneDatabase::bundled().get(name).ok()?;
    let day = |year| date(year, 1, 1).to_zoned(TimeZone::UTC).ok().map(|day| day.timestamp());
    let (start, end) = (day(YEARS.start)?, day(YEARS.end)?);
    let offset = |from: Timestamp| Offset {
        from_unix: u64::try_from(from.as_second()).unwrap_or(0),
        seconds: zone.to_offset(from).seconds(),
    };
    let later = zone.following(start).map(|change| change.timestamp());
    let later = later.take_while(|change| *change < end).map(offset);
    Some(Clock::new(std::iter::once(offset(start)).chain(later)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `TZ=America/Los_Angeles date -d @N` says the same.
    #[test]
    fn zones_are_known_by_their_names() {
        let of = |name: &str, unix: i64| clock(name).unwrap().local(unix) - unix;
        // Either side of 2026-11-01, and the last winter that is told.
        for (unix, hours) in [(1_793_523_599, -7), (1_793_523_600, -8), (2_840_000_000, -8)] {
            assert_eq!(of("America/Los_Angeles", unix), hours * 3600, "{unix}");
        }
        assert_eq!(of("Asia/Kolkata", 1_793_523_600), 19_800);
        assert_eq!(clock("Etc/UTC"), Some(Clock::default()));
        assert_eq!(clock("Mars/Olympus"), None);
    }
}
