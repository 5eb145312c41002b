//! Values with units, as users write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error as _, Visitor};

/// A length of time: `250ms`, `30s`, `1.5m`, `2h`; a bare number is seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

/// A size in bytes: `64MiB`, `512KiB`, `1GiB`; a bare number is bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub usize);

/// An amount of memory: a size in bytes, or a part of all there is (`80%`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many bytes.
    Bytes(usize),
    /// So many hundredths.
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
pub struct List<T>(pub Vec<T>);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let seconds = match unit {
            "us" => 1e-6,
            "ms" => 1e-3,
            "" | "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            _ => return Err(format!("{text:?} has no unit of time (us, ms, s, m, h)")),
        };
        let number: f64 = number
            .parse()
            .map_err(|_| format!("{text:?} is no length of time; write 250ms or 30s"))?;
        Duration::try_from_secs_f64(number * seconds)
            .map(Span)
            .map_err(|_| format!("{text:?} is out of range"))
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let factor = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" | "kib" => 1 << 10,
            "m" | "mb" | "mib" => 1 << 20,
            "g" | "gb" | "gib" => 1usize << 30,
            _ => return Err(format!("{text:?} has no unit of size (KiB, MiB, GiB)")),
        };
        let number: usize = number
            .parse()
            .map_err(|_| format!("{text:?} is no size; write 64MiB or a number of bytes"))?;
        number.checked_mul(factor).map(Bytes).ok_or_else(|| format!("{text:?} is out of range"))
    }
}

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(percent) = text.trim().strip_suffix('%') else {
            return text.parse().map(|Bytes(size)| Amount::Bytes(size));
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
        let number = text.parse().map_err(|_| format!("{text:?} is no port (0 to 65535, or off)"));
        number.map(Port::Number)
    }
}

impl<T: FromStr> FromStr for List<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts
            .map(|part| part.parse().map_err(|_| format!("{part:?} does not belong in this list")))
            .collect::<Result<_, _>>()
            .map(List)
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number.trim(), unit)
}

/// Reads a value from a file: text, or a bare number.
struct FromText<T>(std::marker::PhantomData<T>);

impl<T: FromStr<Err = String>> Visitor<'_> for FromText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a number or text with a unit")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(FromText(std::marker::PhantomData))
    }
}

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(FromText(std::marker::PhantomData))
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(FromText(std::marker::PhantomData))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(FromText(std::marker::PhantomData))
    }
}

impl<'de, T: FromStr + Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Either<T> {
            List(Vec<T>),
            Text(String),
        }
        match Either::deserialize(from)? {
            Either::List(list) => Ok(List(list)),
            Either::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        let span = |text: &str| text.parse::<Span>().map(|s| s.0);
        assert_eq!(span("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(span("30"), Ok(Duration::from_secs(30)));
        assert_eq!(span("1.5 m"), Ok(Duration::from_secs(90)));
        assert!(span("soon").is_err());
        assert!(span("-1s").is_err());
        assert!(span("1 fortnight").is_err());
    }

    #[test]
    fn sizes() {
        let size = |text: &str| text.parse::<Bytes>().map(|b| b.0);
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
    fn lists() {
        assert_eq!("1, 2,4".parse(), Ok(List(vec![1, 2, 4])));
        assert!("1,x".parse::<List<i64>>().is_err());
    }
}
