//! Intervals of numbers, open or closed at each end.

use super::xml::Element;
use tensorserve_tensor::error::Result;

#[derive(Debug)]
pub(super) struct Interval {
    low: f64,
    high: f64,
    has_low: bool,
    has_high: bool,
}

impl Interval {
    /// The one that `element`, an `Interval`, says.
    pub(super) fn of(element: Element) -> Result<Self> {
        let (has_low, has_high) = match element.need("closure")? {
            "openOpen" => (false, false),
            "openClosed" => (false, true),
            "closedOpen" => (true, false),
            "closedClosed" => (true, true),
            other => return Err(element.damaged(format!("closure={other:?} is not known"))),
        };
        let low = element.number_or("leftMargin", f64::NEG_INFINITY)?;
        let high = element.number_or("rightMargin", f64::INFINITY)?;
        Ok(Interval { low, high, has_low, has_high })
    }

    /// The one that holds nothing but `value`.
    pub(super) fn point(value: f64) -> Self {
        Interval { low: value, high: value, has_low: true, has_high: true }
    }

    #[inline]
    pub(super) fn contains(&self, value: f64) -> bool {
        let above = if self.has_low { value >= self.low } else { value > self.low };
        let below = if self.has_high { value <= self.high } else { value < self.high };
        above && below
    }
}
