//! Values with units, as users write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A duration: `250ms`, `30s`, `1.5m`, `2h`; a number without a unit is seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanDuration(pub Duration);

/// A size: `64MiB`, `512KiB`, `1GiB`; a number without a unit is bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub usize);

/// An amount of memory: a size, or a percentage of all memory (`80%`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// A number of bytes.
    Bytes(usize),
    /// A percentage of all memory.
    Percent(u8),
}

/// A port to listen on: a number, 0 for any that is free, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Do not listen.
    Off,
    /// Listen on this port.
    Number(u16),
}

impl Port {
    /// The number, if it is on.
    #[must_use]
    pub fn number(self) -> Option<u16> {
        match self {
            Port::Off => None,
            Port::Number(number) => Some(number),
        }
    }
}

/// A list of values separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommaSeparated<T>(pub Vec<T>);

impl HumanDuration {
    /// So many seconds.
    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        HumanDuration(Duration::from_secs(seconds))
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HumanDuration(time) = *self;
        let seconds = time.as_secs();
        if !time.subsec_nanos().is_multiple_of(1_000_000) {
            write!(formatter, "{}us", time.as_micros())
        } else if time.subsec_nanos() > 0 {
            write!(formatter, "{}ms", time.as_millis())
        } else if seconds > 60 && seconds.is_multiple_of(60) {
            write!(formatter, "{}m", seconds / 60)
        } else {
            write!(formatter, "{seconds}s")
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ByteSize(size) = *self;
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        let divides = |(shift, _): &(u32, &str)| size > 0 && size.is_multiple_of(1 << shift);
        match units.into_iter().find(divides) {
            Some((shift, unit)) => write!(formatter, "{}{unit}", size >> shift),
            None => write!(formatter, "{size}"),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Bytes(size) => ByteSize(*size).fmt(formatter),
            Amount::Percent(percent) => write!(formatter, "{percent}%"),
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Port::Off => formatter.write_str("off"),
            Port::Number(number) => number.fmt(formatter),
        }
    }
}

impl<T: fmt::Display> fmt::Display for CommaSeparated<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CommaSeparated(items) = self;
        for (at, item) in items.iter().enumerate() {
            let separator = if at == 0 { "" } else { "," };
            write!(formatter, "{separator}{item}")?;
        }
        Ok(())
    }
}

impl FromStr for HumanDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let number: f64 = number
            .parse()
            .map_err(|_| format!("{text:?} is not a duration; write, for example, 250ms or 30s"))?;
        let seconds = match unit {
            "us" => 1e-6,
            "ms" => 1e-3,
            "" | "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            _ => return Err(format!("{text:?} has an unknown unit; use us, ms, s, m or h")),
        };
        Duration::try_from_secs_f64(number * seconds)
            .map(HumanDuration)
            .map_err(|_| format!("{text:?} is out of range"))
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let number: u128 = number.parse().map_err(|_| {
            format!("{text:?} is not a size; write, for example, 64MiB, or a number of bytes")
        })?;
        let factor = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" | "kib" => 1 << 10,
            "m" | "mb" | "mib" => 1 << 20,
            "g" | "gb" | "gib" => 1 << 30,
            _ => return Err(format!("{text:?} has an unknown unit; use KiB, MiB or GiB")),
        };
        let bytes = number.checked_mul(factor).and_then(|bytes| bytes.try_into().ok());
        bytes.map(ByteSize).ok_or_else(|| format!("{text:?} is out of range"))
    }
}

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(percent) = text.trim().strip_suffix('%') else {
            return text.parse().map(|ByteSize(size)| Amount::Bytes(size));
        };
        let percent = percent.trim().parse().ok().filter(|percent| (1..=100).contains(percent));
        percent.map(Amount::Percent).ok_or_else(|| format!("{text:?} is not from 1% to 100%"))
    }
}

impl FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Port::Off);
        }
        let number = text
            .parse()
            .map_err(|_| format!("{text:?} is not a port; write a number from 0 to 65535, or off"));
        number.map(Port::Number)
    }
}

impl<T: FromStr> FromStr for CommaSeparated<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts
            .map(|part| part.parse().map_err(|_| format!("{part:?} is not valid in this list")))
            .collect::<Result<_, _>>()
            .map(CommaSeparated)
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number.trim(), unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        let span = |text: &str| text.parse::<HumanDuration>().map(|s| s.0);
        assert_eq!(span("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(span("30"), Ok(Duration::from_secs(30)));
        assert_eq!(span("1.5 m"), Ok(Duration::from_secs(90)));
        assert!(span("soon").is_err());
        assert!(span("-1s").is_err());
        assert!(span("1 fortnight").is_err());
    }

    #[test]
    fn sizes() {
        let size = |text: &str| text.parse::<ByteSize>().map(|b| b.0);
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("1024"), Ok(1024));
        assert!(size("1.5MiB").is_err());
        assert!(size("99999999999999999999").is_err());
        assert!(size("64 furlongs").is_err());
    }

    #[test]
    fn amounts() {
        assert_eq!("2GiB".parse(), Ok(Amount::Bytes(2 << 30)));
        assert_eq!(" 80 %".parse(), Ok(Amount::Percent(80)));
        for wrong in ["0%", "101%", "1.5%", "%", "-1%", "much"] {
            assert!(wrong.parse::<Amount>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn ports() {
        assert_eq!("off".parse(), Ok(Port::Off));
        assert_eq!("0".parse(), Ok(Port::Number(0)));
        assert!("65536".parse::<Port>().is_err());
        assert!("on".parse::<Port>().is_err());
    }

    #[test]
    fn values_are_shown_as_users_write_them() {
        fn same<T: FromStr + fmt::Display>(texts: &[&str]) {
            for text in texts {
                let shown = text.parse::<T>().map(|value| value.to_string());
                assert_eq!(shown.ok().as_deref(), Some(*text));
            }
        }
        same::<HumanDuration>(&["0s", "250ms", "1500us", "60s", "75s", "10m"]);
        same::<ByteSize>(&["0", "1000", "512KiB", "64MiB", "64GiB"]);
        same::<Amount>(&["25%", "8GiB"]);
        same::<Port>(&["8500", "0", "off"]);
        same::<CommaSeparated<i64>>(&["1,2,4", ""]);
    }

    #[test]
    fn lists() {
        assert_eq!("1, 2,4".parse(), Ok(CommaSeparated(vec![1, 2, 4])));
        assert!("1,x".parse::<CommaSeparated<i64>>().is_err());
    }
}
