//! Dates as `strftime_now` writes them. It goes by a `datetime` without a zone, whose name and
//! offset are empty.
//!
//! The crate `jiff`, which has a `strftime`, would make the filter 300 KB larger, by a tenth.

use std::fmt::Write;

/// Formats a moment, in seconds since 1970 by a clock that UTC's is taken for (see
/// [`crate::clock::Clock::local`]); unknown signs stay as they are.
pub(crate) fn strftime(format: &str, unix: i64) -> String {
    const DAYS: [&str; 7] =
        ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let day_number = unix.div_euclid(86_400);
    let second = unix.rem_euclid(86_400);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let (year, month, day) = civil(day_number);
    let week_day = (day_number + 4).rem_euclid(7);
    let year_day = day_number - days_before(year) + 1;
    let day_name = usize::try_from(week_day).ok().and_then(|d| DAYS.get(d)).copied().unwrap_or("");
    let month_name =
        usize::try_from(month - 1).ok().and_then(|m| MONTHS.get(m)).copied().unwrap_or("");
    let short = |name: &'static str| name.get(..3).unwrap_or(name);
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let half = if hour < 12 { "AM" } else { "PM" };

    let mut out = String::new();
    let mut signs = format.chars();
    while let Some(sign) = signs.next() {
        if sign != '%' {
            out.push(sign);
            continue;
        }
        let mut sign = signs.next();
        // glibc's way to leave out the zeros in front.
        let bare = sign == Some('-');
        if bare {
            sign = signs.next();
        }
        let pad = |number: i64, width: usize| {
            if bare { number.to_string() } else { format!("{number:0width$}") }
        };
        match sign {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&pad(year.rem_euclid(100), 2)),
            Some('m') => out.push_str(&pad(month, 2)),
            Some('d') => out.push_str(&pad(day, 2)),
            Some('e') if bare => out.push_str(&day.to_string()),
            Some('e') => {
                let _ = write!(out, "{day:2}");
            }
            Some('H') => out.push_str(&pad(hour, 2)),
            Some('I') => out.push_str(&pad(hour12, 2)),
            Some('M') => out.push_str(&pad(minute, 2)),
            Some('S') => out.push_str(&pad(second % 60, 2)),
            Some('j') => out.push_str(&pad(year_day, 3)),
            Some('p') => out.push_str(half),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(short(day_name)),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(short(month_name)),
            Some('F') => {
                let _ = write!(out, "{year}-{month:02}-{day:02}");
            }
            Some('T') => {
                let _ = write!(out, "{hour:02}:{minute:02}:{:02}", second % 60);
            }
            Some('w') => out.push_str(&week_day.to_string()),
            Some('Z' | 'z') => {}
            Some('%') | None => out.push('%'),
            Some(other) => {
                out.push('%');
                out.push(other);
            }
        }
    }
    out
}

/// Year, month and day of a day since 1970 (H. Hinnant, "chrono-compatible date algorithms").
fn civil(day: i64) -> (i64, i64, i64) {
    let day = day + 719_468;
    let era = day.div_euclid(146_097);
    let of_era = day.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Days from 1970 to the first of January of a year.
fn days_before(year: i64) -> i64 {
    let past = year - 1;
    past * 365 + past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400) - 719_162
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_glibcs() {
        // `date -u -d @N +…` says the same.
        let all = "%A %a %d %-d %e %B %b %Y %y %m %H:%M:%S %I %p %j %w %F %T %% %Q";
        assert_eq!(
            strftime(all, 1_795_966_337),
            "Sunday Sun 29 29 29 November Nov 2026 26 11 15:32:17 03 PM 333 0 2026-11-29 15:32:17 % %Q"
        );
        assert_eq!(strftime("%d %b %Y %j", 1_709_164_800), "29 Feb 2024 060");
        assert_eq!(strftime("%-d/%-m %e", 0), "1/1  1");
        assert_eq!(strftime("%F", -1), "1969-12-31");
        // Python 3.12: `datetime.now().strftime("a%Zb%z")`.
        assert_eq!(strftime("a%Zb%z", 0), "ab");
        let _ = strftime("%F %j %a", i64::MAX);
        let _ = strftime("%F %j %a", i64::MIN);
    }
}
