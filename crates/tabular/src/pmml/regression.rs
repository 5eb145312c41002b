//! Regression: a sum of terms for the predicted number or for each class, and what is made of it.

use super::field::{Kind, Row};
use super::model::{Classes, Place, Verdict};
use super::schema::Builder;
use super::xml::Element;
use tensorserve_tensor::error::Result;

pub(super) struct Regression {
    tables: Box<[Table]>,
    classes: Option<Classes>,
    normalization: Normalization,
    /// Whether classes have an order, and each sum is about it and all before it.
    is_ordinal: bool,
}

struct Table {
    intercept: f64,
    /// Number of the class that it is for.
    class: u32,
    linear: Box<[(u32, f64)]>,
    powers: Box<[(u32, i32, f64)]>,
    /// Of categorical fields: those of one field lie side by side, sorted by value.
    categories: Box<[Category]>,
    products: Box<[(Box<[u32]>, f64)]>,
}

struct Category {
    slot: u32,
    values: Box<[(f64, f64)]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Normalization {
    None,
    Simplemax,
    Softmax,
    Logit,
    Probit,
    Cloglog,
    Exp,
    Loglog,
    Cauchit,
}

impl Table {
    fn sum(&self, row: &Row) -> f64 {
        let mut sum = self.intercept;
        for (slot, coefficient) in &self.linear {
            sum += coefficient * row.get(*slot);
        }
        for (slot, exponent, coefficient) in &self.powers {
            let value = row.get(*slot);
            // What is missing stays so, even to the power of 0.
            sum += if value.is_nan() { value } else { coefficient * value.powi(*exponent) };
        }
        for category in &self.categories {
            sum += category.coefficient(row.get(category.slot));
        }
        for (slots, coefficient) in &self.products {
            sum += slots.iter().map(|slot| row.get(*slot)).product::<f64>() * coefficient;
        }
        sum
    }
}

impl Category {
    /// 0 for a value that is missing or has none.
    #[allow(clippy::float_cmp)]
    fn coefficient(&self, value: f64) -> f64 {
        let at = self.values.partition_point(|(known, _)| *known < value);
        match self.values.get(at) {
            Some((known, coefficient)) if *known == value => *coefficient,
            _ => 0.0,
        }
    }
}

impl Normalization {
    fn named(element: Element) -> Result<Self> {
        Ok(match element.attribute("normalizationMethod").unwrap_or("none") {
            "none" => Normalization::None,
            "simplemax" => Normalization::Simplemax,
            "softmax" => Normalization::Softmax,
            "logit" => Normalization::Logit,
            "probit" => Normalization::Probit,
            "cloglog" => Normalization::Cloglog,
            "exp" => Normalization::Exp,
            "loglog" => Normalization::Loglog,
            "cauchit" => Normalization::Cauchit,
            other => {
                let message = format!("normalizationMethod={other:?} is not known");
                return Err(element.damaged(message));
            }
        })
    }

    /// What it makes of one sum.
    fn of(self, sum: f64) -> f64 {
        match self {
            Normalization::None | Normalization::Simplemax => sum,
            Normalization::Softmax | Normalization::Logit => 1.0 / (1.0 + (-sum).exp()),
            Normalization::Probit => normal_cdf(sum),
            Normalization::Cloglog => 1.0 - (-sum.exp()).exp(),
            Normalization::Exp => sum.exp(),
            Normalization::Loglog => (-(-sum).exp()).exp(),
            Normalization::Cauchit => 0.5 + sum.atan() / std::f64::consts::PI,
        }
    }
}

/// The share of a normal distribution that is below `x`.
pub(super) fn normal_cdf(x: f64) -> f64 {
    0.5 * erfc(-x / std::f64::consts::SQRT_2)
}

/// The complementary error function: a series near 0, a continued fraction further out, each to
/// the last digits.
fn erfc(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let size = x.abs();
    if size < 2.5 {
        return 1.0 - erf_series(x);
    }
    let tail = erfc_fraction(size);
    if x > 0.0 { tail } else { 2.0 - tail }
}

fn erf_series(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..100 {
        let n = f64::from(n);
        term *= -x * x / n;
        let next = term / (2.0 * n + 1.0);
        sum += next;
        if next.abs() < sum.abs() * 1e-17 {
            break;
        }
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

fn erfc_fraction(x: f64) -> f64 {
    if x > 27.0 {
        return 0.0;
    }
    let mut fraction = x;
    for n in (1..=60).rev() {
        fraction = x + f64::from(n) / 2.0 / fraction;
    }
    (-x * x).exp() / fraction * std::f64::consts::FRAC_2_SQRT_PI / 2.0
}

impl Regression {
    pub(super) fn score(&self, row: &mut Row) -> Verdict {
        let Some(classes) = &self.classes else {
            let sum = self.tables.first().map_or(f64::NAN, |table| table.sum(row));
            return Verdict::number(self.normalization.of(sum));
        };
        let count = classes.len();
        row.range(classes.slot, count).fill(0.0);
        for table in &self.tables {
            let sum = table.sum(row);
            if sum.is_nan() {
                return Verdict::MISSING;
            }
            row.set(classes.slot + table.class, sum);
        }
        self.normalize(row.range(classes.slot, count));
        classes.likeliest(row)
    }

    /// Makes probabilities of the sums.
    fn normalize(&self, sums: &mut [f64]) {
        if self.is_ordinal {
            return self.cumulate(sums);
        }
        match self.normalization {
            Normalization::Softmax => softmax(sums),
            Normalization::Simplemax => divide_by_total(sums),
            Normalization::None
            | Normalization::Logit
            | Normalization::Probit
            | Normalization::Cloglog
            | Normalization::Exp
            | Normalization::Loglog
            | Normalization::Cauchit => self.leave_rest_to_last(sums),
        }
    }

    /// The class of the last table gets what the others leave.
    fn leave_rest_to_last(&self, sums: &mut [f64]) {
        let Some((last, others)) = self.tables.split_last() else {
            return;
        };
        let mut rest = 1.0;
        for table in others {
            if let Some(sum) = sums.get_mut(table.class as usize) {
                *sum = self.normalization.of(*sum);
                rest -= *sum;
            }
        }
        if let Some(sum) = sums.get_mut(last.class as usize) {
            *sum = rest;
        }
    }

    fn cumulate(&self, sums: &mut [f64]) {
        let mut below = 0.0;
        let last = self.tables.len().saturating_sub(1);
        for (index, table) in self.tables.iter().enumerate() {
            if let Some(sum) = sums.get_mut(table.class as usize) {
                let up_to = if index == last { 1.0 } else { self.normalization.of(*sum) };
                *sum = up_to - below;
                below = up_to;
            }
        }
    }
}

pub(super) fn softmax(sums: &mut [f64]) {
    // The largest is taken off first, so that no power overflows.
    let most = sums.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    sums.iter_mut().for_each(|sum| *sum = (*sum - most).exp());
    divide_by_total(sums);
}

pub(super) fn divide_by_total(values: &mut [f64]) {
    let total: f64 = values.iter().sum();
    values.iter_mut().for_each(|value| *value /= total);
}

impl Regression {
    pub(super) fn read<'d>(
        builder: &mut Builder<'d>,
        element: Element<'d>,
        place: &Place,
    ) -> Result<Self> {
        let normalization = Normalization::named(element)?;
        let mut tables = Vec::new();
        for table in element.all("RegressionTable") {
            tables.push(read_table(builder, table, place)?);
        }
        let classes = place.classes.clone();
        match (&classes, tables.len()) {
            (None, 1) => {}
            (None, count) => {
                return Err(element.damaged(format!("has {count} RegressionTables instead of 1")));
            }
            (Some(classes), count) => {
                let mut numbers: Vec<u32> = tables.iter().map(|table| table.class).collect();
                numbers.sort_unstable();
                numbers.dedup();
                if numbers.len() != count || count != classes.len() || count < 2 {
                    return Err(element.damaged("needs one RegressionTable for each class"));
                }
            }
        }
        let target = super::schema::target_of(element).and_then(|name| builder.data_field(name));
        let is_ordinal = classes.is_some()
            && target.is_some_and(|field| field.attribute("optype") == Some("ordinal"));
        if is_ordinal && matches!(normalization, Normalization::Softmax | Normalization::Simplemax)
        {
            return Err(element.unsupported("this normalizationMethod for an ordinal target"));
        }
        let is_for_any = matches!(
            normalization,
            Normalization::None | Normalization::Softmax | Normalization::Simplemax
        );
        let is_for_two = normalization != Normalization::Exp && tables.len() == 2;
        if classes.is_some() && !is_ordinal && !is_for_any && !is_for_two {
            return Err(element.unsupported("this normalizationMethod for so many classes"));
        }
        Ok(Regression { tables: tables.into(), classes, normalization, is_ordinal })
    }
}

fn read_table(builder: &mut Builder, element: Element, place: &Place) -> Result<Table> {
    let class = match &place.classes {
        None => 0,
        Some(classes) => classes.number(builder, element, element.need("targetCategory")?)?,
    };
    let (mut linear, mut powers) = (Vec::new(), Vec::new());
    for term in element.all("NumericPredictor") {
        let slot = numeric(place, term, "name")?;
        let coefficient = term.need_number("coefficient")?;
        match term.attribute("exponent").map(str::trim).unwrap_or("1") {
            "1" => linear.push((slot, coefficient)),
            exponent => {
                let exponent = exponent.parse().map_err(|_| {
                    term.damaged(format!("exponent={exponent:?} is not an integer"))
                })?;
                powers.push((slot, exponent, coefficient));
            }
        }
    }
    let mut products = Vec::new();
    for term in element.all("PredictorTerm") {
        let mut slots = Vec::new();
        for part in term.all("FieldRef") {
            slots.push(numeric(place, part, "field")?);
        }
        if slots.is_empty() {
            return Err(term.damaged("has no FieldRef"));
        }
        products.push((slots.into(), term.need_number("coefficient")?));
    }
    Ok(Table {
        intercept: element.need_number("intercept")?,
        class,
        linear: linear.into(),
        powers: powers.into(),
        categories: read_categories(builder, element, place)?,
        products: products.into(),
    })
}

fn read_categories(
    builder: &mut Builder,
    element: Element,
    place: &Place,
) -> Result<Box<[Category]>> {
    let mut entries = Vec::new();
    for term in element.all("CategoricalPredictor") {
        let field = place.scope.field(term, "name")?;
        let text = term.need("value")?;
        let value = builder.symbols.constant(term, field.kind, field.single, text)?;
        entries.push((field.slot, value, term.need_number("coefficient")?));
    }
    entries.sort_by(|(a, x, _), (b, y, _)| a.cmp(b).then(x.total_cmp(y)));
    let category = |group: &[(u32, f64, f64)]| Category {
        slot: group.first().map_or(0, |(slot, ..)| *slot),
        values: group.iter().map(|(_, value, coefficient)| (*value, *coefficient)).collect(),
    };
    Ok(entries.chunk_by(|(a, ..), (b, ..)| a == b).map(category).collect())
}

/// The place of a field of numbers (or truth values, which count as 0 and 1).
fn numeric(place: &Place, element: Element, attribute: &str) -> Result<u32> {
    let field = place.scope.field(element, attribute)?;
    match field.kind {
        Kind::Number | Kind::Flag => Ok(field.slot),
        Kind::Text => Err(element.damaged("needs a field of numbers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_normal_distribution_is_exact_to_many_digits() {
        // From scipy.stats.norm.cdf.
        let known = [
            (-8.0, 6.220_960_574_271_785e-16),
            (-3.6, 1.591_085_901_575_338_8e-4),
            (-1.0, 0.158_655_253_931_457_05),
            (0.0, 0.5),
            (0.3, 0.617_911_422_188_952_6),
            (2.0, 0.977_249_868_051_820_8),
            (5.0, 0.999_999_713_348_428_1),
        ];
        for (x, expected) in known {
            let got = normal_cdf(x);
            assert!((got / expected - 1.0).abs() < 1e-12, "{x}: {got} {expected}");
        }
        assert_eq!((normal_cdf(-40.0), normal_cdf(40.0)), (0.0, 1.0));
    }
}
