//! Sizes of dimensions and small integers, as far as they are known before a request.

use std::cell::Cell;

/// A product of a number and of symbols, each of which stands for a number that is the same for every
/// row of a batch and for every number of rows: the length of a dimension that requests of one batch share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    factor: i64,
    /// Sorted.
    symbols: Vec<u32>,
}

/// The most symbols of a product. Graphs that square a size again and again would have billions.
const MAX_SYMBOLS: usize = 32;

impl Product {
    fn number(factor: i64) -> Self {
        Product { factor, symbols: Vec::new() }
    }

    /// The number, if there is no symbol in it.
    #[must_use]
    pub fn as_number(&self) -> Option<i64> {
        self.symbols.is_empty().then_some(self.factor)
    }

    fn times(&self, other: &Self) -> Option<Self> {
        if self.symbols.len().saturating_add(other.symbols.len()) > MAX_SYMBOLS {
            return None;
        }
        let mut symbols = [&self.symbols[..], &other.symbols].concat();
        symbols.sort_unstable();
        Some(Product { factor: self.factor.checked_mul(other.factor)?, symbols })
    }

    /// The quotient, if it is a whole number whatever the symbols stand for.
    fn divided_by(&self, other: &Self) -> Option<Self> {
        if other.factor == 0 || self.factor.checked_rem(other.factor)? != 0 {
            return None;
        }
        let mut symbols = self.symbols.clone();
        for symbol in &other.symbols {
            let index = symbols.iter().position(|its| its == symbol)?;
            symbols.remove(index);
        }
        Some(Product { factor: self.factor.checked_div(other.factor)?, symbols })
    }
}

/// The size of a dimension, or an element of a small tensor of integers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Size {
    /// A size that is the same for every number of rows.
    Fixed(Product),
    /// The number of rows, times this.
    Rows(Product),
    /// A size that depends on the number of rows in another way.
    Other,
}

impl Size {
    /// The number of rows.
    #[must_use]
    pub fn rows() -> Self {
        Size::Rows(Product::number(1))
    }

    /// A number.
    #[must_use]
    pub fn number(number: i64) -> Self {
        Size::Fixed(Product::number(number))
    }

    /// The number, if it is one.
    #[must_use]
    pub fn as_number(&self) -> Option<i64> {
        match self {
            Size::Fixed(product) => product.as_number(),
            Size::Rows(_) | Size::Other => None,
        }
    }

    /// Whether it is this number.
    #[must_use]
    pub fn is(&self, number: i64) -> bool {
        self.as_number() == Some(number)
    }

    /// Whether it is the same for every number of rows.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        matches!(self, Size::Fixed(_))
    }

    /// Whether it is a multiple of the number of rows.
    #[must_use]
    pub fn is_rows(&self) -> bool {
        matches!(self, Size::Rows(_))
    }

    /// The least that a multiple of the number of rows can be: a batch has at least one.
    pub(crate) fn least_rows(&self) -> Option<i64> {
        match self {
            Size::Rows(product) => product.as_number().filter(|factor| *factor > 0),
            Size::Fixed(_) | Size::Other => None,
        }
    }

    /// The product.
    #[must_use]
    pub fn times(&self, other: &Self) -> Self {
        let product = match (self, other) {
            (Size::Fixed(a), Size::Fixed(b)) => a.times(b).map(Size::Fixed),
            (Size::Fixed(a), Size::Rows(b)) | (Size::Rows(a), Size::Fixed(b)) => {
                a.times(b).map(Size::Rows)
            }
            _ => None,
        };
        product.unwrap_or(Size::Other)
    }

    /// The quotient, if it is a whole number in any case.
    #[must_use]
    pub fn divided_by(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Size::Fixed(a), Size::Fixed(b)) | (Size::Rows(a), Size::Rows(b)) => {
                a.divided_by(b).map(Size::Fixed)
            }
            (Size::Rows(a), Size::Fixed(b)) => a.divided_by(b).map(Size::Rows),
            _ => None,
        }
    }

    /// The sum.
    #[must_use]
    pub fn plus(&self, other: &Self, symbols: &Symbols) -> Self {
        self.combine(other, symbols, i64::checked_add)
    }

    /// The difference.
    #[must_use]
    pub fn minus(&self, other: &Self, symbols: &Symbols) -> Self {
        self.combine(other, symbols, i64::checked_sub)
    }

    fn combine(
        &self,
        other: &Self,
        symbols: &Symbols,
        combine: impl Fn(i64, i64) -> Option<i64>,
    ) -> Self {
        if other.is(0) {
            return self.clone();
        }
        let same = |a: &Product, b: &Product| -> Option<Product> {
            let factor = combine(a.factor, b.factor)?;
            match factor {
                0 if a.symbols == b.symbols => Some(Product::number(0)),
                _ => {
                    (a.symbols == b.symbols).then(|| Product { factor, symbols: a.symbols.clone() })
                }
            }
        };
        match (self, other) {
            (Size::Fixed(a), Size::Fixed(b)) => {
                same(a, b).map_or_else(|| symbols.fresh(), Size::Fixed)
            }
            (Size::Rows(a), Size::Rows(b)) => match same(a, b) {
                Some(Product { factor: 0, .. }) => Size::number(0),
                Some(product) => Size::Rows(product),
                None => Size::Other,
            },
            (zero, Size::Rows(b)) if zero.is(0) => match combine(0, b.factor) {
                Some(factor) if factor > 0 => other.clone(),
                _ => Size::Other,
            },
            _ => Size::Other,
        }
    }

    /// The quotient rounded down; a number of its own where it is not known.
    #[must_use]
    pub fn floor_divided_by(&self, other: &Self, symbols: &Symbols) -> Self {
        if let Some(quotient) = self.divided_by(other) {
            return quotient;
        }
        match (self, other) {
            (Size::Fixed(_), Size::Fixed(_)) => self.map_numbers(other, symbols, |a, b| {
                (b != 0).then(|| a.div_euclid(b)).filter(|_| a >= 0 && b > 0)
            }),
            _ => Size::Other,
        }
    }

    /// `f` of two fixed numbers; a number of its own where they are not known.
    #[must_use]
    pub fn map_numbers(
        &self,
        other: &Self,
        symbols: &Symbols,
        f: impl Fn(i64, i64) -> Option<i64>,
    ) -> Self {
        match (self, other) {
            (Size::Fixed(_), Size::Fixed(_)) => {
                let numbers = self.as_number().zip(other.as_number());
                let number = numbers.and_then(|(a, b)| f(a, b));
                number.map_or_else(|| symbols.fresh(), Size::number)
            }
            _ => Size::Other,
        }
    }
}

/// The product of sizes.
pub fn product<'a>(sizes: impl IntoIterator<Item = &'a Size>) -> Size {
    sizes.into_iter().fold(Size::number(1), |all, size| all.times(size))
}

/// Makes symbols.
#[derive(Debug, Default)]
pub struct Symbols {
    next: Cell<u32>,
}

impl Symbols {
    /// A fixed size that is not known.
    #[must_use]
    pub fn fresh(&self) -> Size {
        Size::Fixed(Product { factor: 1, symbols: vec![self.fresh_number()] })
    }

    /// A number that names something else.
    pub(crate) fn fresh_number(&self) -> u32 {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_divide_only_if_the_quotient_is_whole_for_any_symbol() {
        let symbols = Symbols::default();
        let (s, d) = (symbols.fresh(), symbols.fresh());
        let all = Size::rows().times(&s).times(&d).times(&Size::number(6));
        assert_eq!(
            all.divided_by(&s.times(&Size::number(3))),
            Some(Size::rows().times(&d).times(&Size::number(2)))
        );
        assert_eq!(all.divided_by(&Size::number(4)), None);
        assert_eq!(s.divided_by(&d), None);
        assert_eq!(all.divided_by(&Size::rows()), Some(s.times(&d).times(&Size::number(6))));
        assert_eq!(Size::rows().times(&Size::rows()), Size::Other);
    }

    #[test]
    fn sums_with_the_number_of_rows_are_no_multiple_of_it() {
        let symbols = Symbols::default();
        let rows = Size::rows();
        assert_eq!(rows.plus(&Size::number(1), &symbols), Size::Other);
        assert_eq!(rows.plus(&rows, &symbols), rows.times(&Size::number(2)));
        assert_eq!(rows.minus(&rows, &symbols), Size::number(0));
        assert_eq!(rows.minus(&Size::number(0), &symbols), rows);
        assert_eq!(Size::number(0).minus(&rows, &symbols), Size::Other);
        assert!(symbols.fresh().plus(&Size::number(1), &symbols).is_fixed());
    }
}
