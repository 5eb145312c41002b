//! Intervals of numbers, open or closed at each end.

use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::Result;

#[derive(Debug)]
pub(super) struct Interval {
    low: f64,
    high: f64,
    includes_low: bool,
    includes_high: bool,
}

impl Interval {
    /// Reads an `Interval` element.
    pub(super) fn read(element: XmlElement) -> Result<Self> {
        let (includes_low, includes_high) = match element.required("closure")? {
            "openOpen" => (false, false),
            "openClosed" => (false, true),
            "closedOpen" => (true, false),
            "closedClosed" => (true, true),
            other => return Err(element.damaged(format!("closure={other:?} is not valid"))),
        };
        let low = element.number_or("leftMargin", f64::NEG_INFINITY)?;
        let high = element.number_or("rightMargin", f64::INFINITY)?;
        Ok(Interval { low, high, includes_low, includes_high })
    }

    /// The interval that contains only `value`.
    pub(super) fn point(value: f64) -> Self {
        Interval { low: value, high: value, includes_low: true, includes_high: true }
    }

    #[inline]
    pub(super) fn contains(&self, value: f64) -> bool {
        let above = if self.includes_low { value >= self.low } else { value > self.low };
        let below = if self.includes_high { value <= self.high } else { value < self.high };
        above && below
    }
}
