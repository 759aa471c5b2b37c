//! `strftime_now` of chat templates.

use minijinja::{Error, ErrorKind};

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
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// The time `seconds` after 1970 in the directives of C's `strftime`, English names.
pub(super) fn strftime(seconds: u64, format: &str) -> Result<String, Error> {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let month_name = MONTHS.get(month as usize - 1).copied().unwrap_or_default();
    let day_name = DAYS.get((days % 7) as usize).copied().unwrap_or_default();
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = rest.next();
        let padded = directive != Some('-');
        if !padded {
            directive = rest.next();
        }
        let number = |value: u64| if padded { format!("{value:02}") } else { value.to_string() };
        out.push_str(&match directive {
            Some('Y') => year.to_string(),
            Some('y') => number(year % 100),
            Some('m') => number(month),
            Some('d') => number(day),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name.get(..3).unwrap_or_default().to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name.get(..3).unwrap_or_default().to_owned(),
            Some('H') => number(hour),
            Some('I') => number((hour + 11) % 12 + 1),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => number(minute),
            Some('S') => number(second % 60),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            Some('%') => "%".to_owned(),
            other => {
                let directive = other.map(String::from).unwrap_or_default();
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now does not know %{directive}"),
                ));
            }
        });
    }
    Ok(out)
}

/// Year, month and day of a day counted from 1970 (Howard Hinnant, chrono-compatible low-level date algorithms).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        assert_eq!(strftime(0, "%A %d %B %Y %H:%M:%S").unwrap(), "Thursday 01 January 1970 00:00:00");
        assert_eq!(
            strftime(1_709_210_096, "%a %-d %b %Y, %F %T %I %p").unwrap(),
            "Thu 29 Feb 2024, 2024-02-29 12:34:56 12 PM"
        );
        assert!(strftime(0, "%Q").is_err());
    }
}
