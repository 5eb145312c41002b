//! Dates and times: their text in ISO 8601, and the calendar.

use super::field::ValueKind;

pub(super) const SECONDS_PER_DAY: f64 = 86_400.0;

/// The parts of a date and a time.
pub(super) struct CivilTime {
    pub(super) year: i64,
    /// From 1.
    pub(super) month: i64,
    /// From 1.
    pub(super) day: i64,
    pub(super) hour: i64,
    pub(super) minute: i64,
    pub(super) second: i64,
    /// The day of the week, 0 for Sunday.
    pub(super) weekday: i64,
    /// The day of the year, from 1.
    pub(super) year_day: i64,
}

/// The days from the start of 1970 to a date of the Gregorian calendar.
pub(super) fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // Years that start in March end with the day that a leap year has more.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The date and time of a value: seconds since the start of 1970.
#[allow(clippy::cast_possible_truncation)] // Years from 0 to 9999.
pub(super) fn civil(seconds: f64) -> CivilTime {
    let total = seconds.floor() as i64;
    let (days, rest) = (total.div_euclid(86_400), total.rem_euclid(86_400));
    let shifted = days.saturating_add(719_468);
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    CivilTime {
        year,
        month,
        day,
        hour: rest / 3600,
        minute: rest / 60 % 60,
        second: rest % 60,
        weekday: (days + 4).rem_euclid(7),
        year_day: days - days_since_1970(year, 1, 1) + 1,
    }
}

/// The value of a date, a time or both in ISO 8601, such as `2004-08-20T15:32:01`; `None` if it is not
/// one. A time zone is not accepted.
pub(super) fn parse(text: &str, kind: ValueKind) -> Option<f64> {
    let text = text.trim();
    match kind {
        ValueKind::Date => parse_date(text),
        ValueKind::Time => parse_time(text),
        ValueKind::DateTime => {
            let (date, time) = text.split_once(['T', ' '])?;
            Some(parse_date(date)? + parse_time(time)?)
        }
        ValueKind::Number | ValueKind::Text | ValueKind::Boolean => None,
    }
}

#[allow(clippy::cast_precision_loss)] // Years from 0 to 9999.
fn parse_date(text: &str) -> Option<f64> {
    let mut parts = text.split('-');
    let year = digits(parts.next()?, 4)?;
    let month = digits(parts.next()?, 2)?;
    let day = digits(parts.next()?, 2)?;
    if parts.next().is_some() || !(1..=12).contains(&month) {
        return None;
    }
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let is_valid = (1..=days).contains(&day);
    is_valid.then(|| days_since_1970(year, month, day) as f64 * SECONDS_PER_DAY)
}

#[allow(clippy::cast_precision_loss)] // Less than a day.
fn parse_time(text: &str) -> Option<f64> {
    let (text, fraction) = match text.split_once('.') {
        Some((text, fraction)) if fraction.bytes().all(|byte| byte.is_ascii_digit()) => {
            (text, format!("0.{fraction}").parse::<f64>().ok()?)
        }
        Some(_) => return None,
        None => (text, 0.0),
    };
    let mut parts = text.split(':');
    let hour = digits(parts.next()?, 2)?;
    let minute = digits(parts.next()?, 2)?;
    let second = match parts.next() {
        Some(second) => digits(second, 2)?,
        None => 0,
    };
    let is_valid = parts.next().is_none() && hour < 24 && minute < 60 && second < 60;
    is_valid.then(|| (hour * 3600 + minute * 60 + second) as f64 + fraction)
}

/// A number of exactly `count` digits.
fn digits(text: &str, count: usize) -> Option<i64> {
    let is_valid = text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_valid { text.parse().ok() } else { None }
}

/// The text of a value in ISO 8601.
pub(super) fn format(seconds: f64, kind: ValueKind) -> String {
    let CivilTime { year, month, day, hour, minute, second, .. } = civil(seconds);
    let date = format!("{year:04}-{month:02}-{day:02}");
    let time = format!("{hour:02}:{minute:02}:{second:02}");
    match kind {
        ValueKind::Date => date,
        ValueKind::Time => time,
        ValueKind::DateTime | ValueKind::Number | ValueKind::Text | ValueKind::Boolean => {
            format!("{date}T{time}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_survive_the_calendar() {
        for (year, month, day) in [(1970, 1, 1), (2000, 2, 29), (1900, 3, 1), (0, 12, 31)] {
            let text = format!("{year:04}-{month:02}-{day:02}");
            let value = parse(&text, ValueKind::Date).expect("a date");
            assert_eq!(format(value, ValueKind::Date), text);
        }
        let value = parse("2004-08-20T15:32:01", ValueKind::DateTime).expect("a time");
        assert_eq!(value, 1_093_015_921.0);
        assert_eq!(format(value, ValueKind::DateTime), "2004-08-20T15:32:01");
        assert_eq!((civil(value).weekday, civil(value).year_day), (5, 233));
        for bad in ["2001-02-29", "2001-13-01", "01-01-01", "2001-01-01-01", ""] {
            assert_eq!(parse(bad, ValueKind::Date), None, "{bad}");
        }
    }
}
