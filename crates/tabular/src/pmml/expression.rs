//! Expressions: values computed from a row's fields, for derived fields and outputs.

use super::apply::Apply;
use super::field::{Field, Kind, MISSING, Row, Scope, Symbols, rounded};
use super::interval::Interval;
use super::xml::{Element, MAX_DEPTH, parse_number};
use tensorserve_tensor::error::Result;

#[derive(Debug)]
pub(super) enum Expression {
    Constant(f64),
    Field(u32),
    /// That field, or another value where it is missing.
    Replaced {
        slot: u32,
        missing: f64,
    },
    /// Piecewise linear.
    Linear {
        slot: u32,
        missing: f64,
        line: Line,
    },
    /// Whether a field has this value.
    Indicator {
        slot: u32,
        missing: f64,
        value: f64,
    },
    /// The value of the first interval that holds the field's.
    Bins {
        slot: u32,
        missing: f64,
        other: f64,
        bins: Box<[(Interval, f64)]>,
    },
    /// A table's value for those of some fields.
    Table {
        missing: f64,
        other: f64,
        table: Table,
    },
    Apply(Box<Apply>),
    /// A number of single precision.
    Single(Box<Expression>),
}

/// An expression, and what its values are.
pub(super) struct Typed {
    pub(super) expression: Expression,
    pub(super) kind: Kind,
}

impl Expression {
    pub(super) fn value(&self, row: &Row) -> f64 {
        match self {
            Expression::Constant(value) => *value,
            Expression::Field(slot) => row.get(*slot),
            Expression::Replaced { slot, missing } => unless_missing(row.get(*slot), *missing),
            Expression::Linear { slot, missing, line } => {
                let value = row.get(*slot);
                if value.is_nan() { *missing } else { line.at(value) }
            }
            Expression::Indicator { slot, missing, value } => {
                let given = row.get(*slot);
                #[allow(clippy::float_cmp)]
                let same = given == *value;
                if given.is_nan() { *missing } else { f64::from(u8::from(same)) }
            }
            Expression::Bins { slot, missing, other, bins } => {
                let value = row.get(*slot);
                if value.is_nan() {
                    return *missing;
                }
                let bin = bins.iter().find(|(interval, _)| interval.contains(value));
                bin.map_or(*other, |(_, result)| *result)
            }
            Expression::Table { missing, other, table } => match table.find(row) {
                None => *missing,
                Some(None) => *other,
                Some(Some(result)) => result,
            },
            Expression::Apply(apply) => apply.value(row),
            Expression::Single(inner) => rounded(inner.value(row), true),
        }
    }
}

fn unless_missing(value: f64, otherwise: f64) -> f64 {
    if value.is_nan() { otherwise } else { value }
}

/// A line through points, which are in the order of their first coordinate.
#[derive(Debug)]
pub(super) struct Line {
    points: Box<[(f64, f64)]>,
    outside: Outside,
}

/// What a value beyond the first or last point becomes.
#[derive(Clone, Copy, Debug)]
enum Outside {
    /// Where the line would go on.
    AsIs,
    Missing,
    /// That of the nearest point.
    Extreme,
}

impl Line {
    fn of(element: Element) -> Result<Self> {
        Line::through(element, points(element)?)
    }

    /// The line that leads from normalised numbers back.
    pub(super) fn inverse(element: Element) -> Result<Self> {
        let mut points: Vec<_> = points(element)?.into_iter().map(|(x, y)| (y, x)).collect();
        points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        Line::through(element, points)
    }

    fn through(element: Element, points: Vec<(f64, f64)>) -> Result<Self> {
        let rises = points.windows(2).all(|pair| match pair {
            [(a, _), (b, _)] => a < b,
            _ => true,
        });
        if points.len() < 2 || !rises {
            return Err(element.damaged("needs two or more LinearNorm with rising orig"));
        }
        let outside = match element.attribute("outliers").unwrap_or("asIs") {
            "asIs" => Outside::AsIs,
            "asMissingValues" => Outside::Missing,
            "asExtremeValues" => Outside::Extreme,
            other => return Err(element.damaged(format!("outliers={other:?} is not known"))),
        };
        Ok(Line { points: points.into(), outside })
    }

    pub(super) fn at(&self, value: f64) -> f64 {
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else {
            return MISSING;
        };
        if value < first.0 || value > last.0 {
            match self.outside {
                Outside::AsIs => {}
                Outside::Missing => return MISSING,
                Outside::Extreme => return if value < first.0 { first.1 } else { last.1 },
            }
        }
        // The piece that ends at or behind the value; the first or last one beyond the points.
        let end = self.points.partition_point(|(orig, _)| *orig < value);
        let end = end.clamp(1, self.points.len() - 1);
        match self.points.get(end - 1..=end) {
            Some([(x0, y0), (x1, y1)]) => y0 + (value - x0) / (x1 - x0) * (y1 - y0),
            _ => MISSING,
        }
    }
}

fn points(element: Element) -> Result<Vec<(f64, f64)>> {
    let point = |point: Element| Ok((point.need_number("orig")?, point.need_number("norm")?));
    element.all("LinearNorm").map(point).collect()
}

/// Rows of keys and a result each, sorted by keys.
#[derive(Debug)]
pub(super) struct Table {
    slots: Box<[u32]>,
    /// `slots.len()` for each row, end to end.
    keys: Box<[f64]>,
    results: Box<[f64]>,
}

impl Table {
    /// `None` if a key is missing, `Some(None)` if there is no such row.
    fn find(&self, row: &Row) -> Option<Option<f64>> {
        if self.slots.iter().any(|slot| row.get(*slot).is_nan()) {
            return None;
        }
        let (mut low, mut high) = (0, self.results.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.compare(middle, row).is_lt() { low = middle + 1 } else { high = middle }
        }
        let found = low < self.results.len() && self.compare(low, row).is_eq();
        Some(self.results.get(low).copied().filter(|_| found))
    }

    fn compare(&self, index: usize, row: &Row) -> std::cmp::Ordering {
        let width = self.slots.len();
        let keys = self.keys.get(index * width..(index + 1) * width).unwrap_or_default();
        // Adding 0 makes the two zeros one.
        let wanted = self.slots.iter().map(|slot| row.get(*slot) + 0.0);
        let pairs = keys.iter().zip(wanted);
        let mut orders = pairs.map(|(key, value)| key.total_cmp(&value));
        orders.find(|order| order.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
    }
}

const NAMES: [&str; 10] = [
    "Constant",
    "FieldRef",
    "NormContinuous",
    "NormDiscrete",
    "Discretize",
    "MapValues",
    "Apply",
    "TextIndex",
    "Aggregate",
    "Lag",
];

/// The expression among the children of `element`, a field of this kind.
pub(super) fn of(
    element: Element,
    kind: Kind,
    single: bool,
    scope: &Scope,
    symbols: &mut Symbols,
) -> Result<Expression> {
    let found = element.children().find(|child| NAMES.contains(&child.name()));
    let child = found.ok_or_else(|| element.damaged("has no expression"))?;
    let mut reader = Reader { scope, symbols, wanted: Some((kind, single)) };
    let typed = reader.read(child, 0)?;
    if typed.kind == kind || matches!((typed.kind, kind), (Kind::Flag, Kind::Number)) {
        return Ok(match single && kind == Kind::Number {
            true => Expression::Single(Box::new(typed.expression)),
            false => typed.expression,
        });
    }
    let (from, to) = (typed.kind, kind);
    Err(element.unsupported(format!("making a value of kind {to:?} of one of kind {from:?}")))
}

/// Reads an expression and those in it.
pub(super) struct Reader<'a, 's> {
    pub(super) scope: &'a Scope<'s>,
    pub(super) symbols: &'a mut Symbols,
    /// What the whole is to be: how constants without a type, and the results of tables, are read.
    wanted: Option<(Kind, bool)>,
}

impl Reader<'_, '_> {
    pub(super) fn read(&mut self, element: Element, depth: usize) -> Result<Typed> {
        if depth >= MAX_DEPTH {
            return Err(element.damaged("is nested too deeply"));
        }
        match element.name() {
            "Constant" => self.constant(element),
            "FieldRef" => self.field(element),
            "NormContinuous" => self.linear(element),
            "NormDiscrete" => self.indicator(element),
            "Discretize" => self.bins(element),
            "MapValues" => self.table(element),
            "Apply" => Apply::read(self, element, depth),
            _ => Err(element.unsupported("this expression")),
        }
    }

    fn constant(&mut self, element: Element) -> Result<Typed> {
        if element.is("missing", false)? {
            let kind = self.wanted.map_or(Kind::Number, |(kind, _)| kind);
            return Ok(Typed { expression: Expression::Constant(MISSING), kind });
        }
        let text = element.text();
        let (kind, single) = match element.attribute("dataType") {
            Some(data_type) => Kind::of_type(element, data_type)?,
            None if parse_number(text).is_some() => (Kind::Number, false),
            None => (Kind::Text, false),
        };
        let value = self.symbols.constant(element, kind, single, text)?;
        Ok(Typed { expression: Expression::Constant(value), kind })
    }

    fn field(&mut self, element: Element) -> Result<Typed> {
        let Field { slot, kind, single } = self.scope.field(element, "field")?;
        let expression = match element.attribute("mapMissingTo") {
            None => Expression::Field(slot),
            Some(text) => {
                let missing = self.symbols.constant(element, kind, single, text)?;
                Expression::Replaced { slot, missing }
            }
        };
        Ok(Typed { expression, kind })
    }

    fn linear(&mut self, element: Element) -> Result<Typed> {
        let slot = self.number_field(element)?;
        let missing = element.number_or("mapMissingTo", MISSING)?;
        let line = Line::of(element)?;
        let expression = Expression::Linear { slot, missing, line };
        Ok(Typed { expression, kind: Kind::Number })
    }

    fn indicator(&mut self, element: Element) -> Result<Typed> {
        let Field { slot, kind, single } = self.scope.field(element, "field")?;
        let value = self.symbols.constant(element, kind, single, element.need("value")?)?;
        let missing = element.number_or("mapMissingTo", MISSING)?;
        let expression = Expression::Indicator { slot, missing, value };
        Ok(Typed { expression, kind: Kind::Number })
    }

    fn bins(&mut self, element: Element) -> Result<Typed> {
        let slot = self.number_field(element)?;
        let (kind, single) = self.result_type(element)?;
        let missing = self.result(element, "mapMissingTo", kind, single)?;
        let other = self.result(element, "defaultValue", kind, single)?;
        let mut bins = Vec::new();
        for bin in element.all("DiscretizeBin") {
            let text = bin.need("binValue")?;
            let value = self.symbols.constant(bin, kind, single, text)?;
            bins.push((Interval::of(bin.need_child("Interval")?)?, value));
        }
        let expression = Expression::Bins { slot, missing, other, bins: bins.into() };
        Ok(Typed { expression, kind })
    }

    fn table(&mut self, element: Element) -> Result<Typed> {
        let (kind, single) = self.result_type(element)?;
        let missing = self.result(element, "mapMissingTo", kind, single)?;
        let other = self.result(element, "defaultValue", kind, single)?;
        let mut columns = Vec::new();
        for pair in element.all("FieldColumnPair") {
            columns.push((self.scope.field(pair, "field")?, pair.need("column")?));
        }
        if columns.is_empty() {
            return Err(element.damaged("has no FieldColumnPair"));
        }
        let output = element.need("outputColumn")?;
        let Some(inline) = element.child("InlineTable") else {
            return Err(element.unsupported("a table that is not in the file"));
        };
        let mut rows = Vec::new();
        for row in inline.all("row") {
            let cell = |name: &str| row.children().find(|cell| local(cell.name()) == local(name));
            let mut keys = Vec::with_capacity(columns.len());
            for (field, column) in &columns {
                let text = cell(column)
                    .map(Element::text)
                    .ok_or_else(|| row.damaged(format!("has no column {column:?}")))?;
                keys.push(self.symbols.constant(row, field.kind, field.single, text)? + 0.0);
            }
            let text = cell(output).map(Element::text);
            let text = text.ok_or_else(|| row.damaged(format!("has no column {output:?}")))?;
            rows.push((keys, self.symbols.constant(row, kind, single, text)?));
        }
        let order = |a: &[f64], b: &[f64]| {
            let mut orders = a.iter().zip(b).map(|(a, b)| a.total_cmp(b));
            orders.find(|order| order.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
        };
        // Stable: the first of several rows with the same keys counts.
        rows.sort_by(|(a, _), (b, _)| order(a, b));
        let table = Table {
            slots: columns.iter().map(|(field, _)| field.slot).collect(),
            keys: rows.iter().flat_map(|(keys, _)| keys.iter().copied()).collect(),
            results: rows.iter().map(|(_, result)| *result).collect(),
        };
        Ok(Typed { expression: Expression::Table { missing, other, table }, kind })
    }

    /// What the results of a table or of bins are: as it says, or as what they are for.
    fn result_type(&self, element: Element) -> Result<(Kind, bool)> {
        match (element.attribute("dataType"), self.wanted) {
            (Some(data_type), _) => Kind::of_type(element, data_type),
            (None, Some(wanted)) => Ok(wanted),
            (None, None) => Ok((Kind::Text, false)),
        }
    }

    fn result(
        &mut self,
        element: Element,
        attribute: &str,
        kind: Kind,
        single: bool,
    ) -> Result<f64> {
        match element.attribute(attribute) {
            Some(text) => self.symbols.constant(element, kind, single, text),
            None => Ok(MISSING),
        }
    }

    fn number_field(&self, element: Element) -> Result<u32> {
        let field = self.scope.field(element, "field")?;
        match field.kind {
            Kind::Number => Ok(field.slot),
            Kind::Text | Kind::Flag => Err(element.damaged("needs a field of numbers")),
        }
    }
}

/// A name without its prefix.
fn local(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or(name)
}
