//! Tables of a request: the form of `pandas.DataFrame`, by columns.

use std::collections::{HashMap, HashSet};

use super::fault::{self, Reason};
use super::node::Node;
use tensorserve_tensor::budget::{self, ALLOCATION, Meter};
use tensorserve_tensor::error::Result;
use tensorserve_tensor::names::quoted;

/// What a column takes besides its values: its name, and its places in lists and in maps of names.
pub(super) const COLUMN_BYTES: usize = 320;

/// A table. All columns have the same number of values.
#[derive(Debug, Default, PartialEq)]
pub(super) struct MlflowTable<'a> {
    pub(super) columns: Vec<TableColumn<'a>>,
    pub(super) rows: usize,
}

/// A column of a table.
#[derive(Debug, PartialEq)]
pub(super) struct TableColumn<'a> {
    pub(super) name: ColumnName,
    pub(super) values: Vec<Node<'a>>,
}

/// The name of a column.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ColumnName {
    /// A name.
    Text(String),
    /// The place of a column without a name.
    Place(usize),
}

impl ColumnName {
    /// As Python shows it.
    pub(super) fn shown(&self) -> String {
        match self {
            ColumnName::Text(name) => format!("'{}'", quoted(name.as_bytes())),
            ColumnName::Place(place) => place.to_string(),
        }
    }
}

impl<'a> MlflowTable<'a> {
    /// A table of columns with these names, whose values are lists of the same length.
    ///
    /// # Errors
    /// The two lengths that differ.
    pub(super) fn of_columns(columns: Vec<(ColumnName, Vec<Node<'a>>)>) -> Result<Self, Reason> {
        let rows = columns.first().map_or(0, |(_, values)| values.len());
        if columns.iter().any(|(_, values)| values.len() != rows) {
            return Err("All arrays must be of the same length".to_owned().into());
        }
        let columns = columns.into_iter().map(|(name, values)| TableColumn { name, values });
        Ok(MlflowTable { columns: columns.collect(), rows })
    }

    /// A table of these rows; shorter rows end with missing values. Columns without `names` are numbered.
    ///
    /// # Errors
    /// Another number of names than of columns, or one name twice.
    pub(super) fn of_rows(
        rows: Vec<Vec<Node<'a>>>,
        names: Option<Vec<ColumnName>>,
    ) -> Result<Self, Reason> {
        let width = rows.iter().map(Vec::len).max();
        let names = match (names, width) {
            (Some(names), Some(width)) if names.len() != width => {
                let count = names.len();
                return Err(
                    format!("{count} columns passed, passed data had {width} columns").into()
                );
            }
            (Some(names), _) => names,
            (None, width) => (0..width.unwrap_or(0)).map(ColumnName::Place).collect(),
        };
        if let Some(twice) = repeated(&names) {
            return Err(format!("the column {} is there twice", twice.shown()).into());
        }
        let mut columns = empty_columns(names.len(), rows.len())?;
        for row in rows {
            let mut fields = row.into_iter();
            for column in &mut columns {
                column.push(fields.next().unwrap_or(Node::Null));
            }
        }
        MlflowTable::of_columns(names.into_iter().zip(columns).collect())
    }

    /// A table of rows of `width` values each.
    pub(super) fn of_matrix(values: Vec<Node<'a>>, width: usize) -> Result<Self, Reason> {
        let mut columns = empty_columns(width, values.len().checked_div(width).unwrap_or(0))?;
        let mut values = values.into_iter();
        while values.len() > 0 {
            columns.iter_mut().zip(&mut values).for_each(|(column, value)| column.push(value));
            if width == 0 {
                break;
            }
        }
        let columns = columns.into_iter().enumerate();
        MlflowTable::of_columns(
            columns.map(|(place, values)| (ColumnName::Place(place), values)).collect(),
        )
    }

    /// The value of `dataframe_split`.
    pub(super) fn of_split(mut value: Node<'a>) -> Result<Self> {
        let Node::Object(members) = &value else {
            let what = typed(&value, "list");
            return Err(fault::invalid_input(format_args!(
                "Dataframe split format must be a dictionary. Got {what}."
            )));
        };
        let has_data = members.iter().any(|(name, _)| name == "data");
        let mut names = members.iter().map(|(name, _)| name.as_str());
        if !has_data || !names.all(|name| matches!(name, "columns" | "data" | "index")) {
            let names = members.iter().map(|(name, _)| format!("'{}'", quoted(name.as_bytes())));
            let names: Vec<String> = names.collect();
            return Err(fault::invalid_input(format_args!(
                "Dataframe split format must have 'data' field and optionally 'columns' and 'index' \
                 fields. Got {{{}}}.'",
                names.join(", ")
            )));
        }
        let (names, index) = (value.take("columns"), value.take("index"));
        let data = value.take("data").unwrap_or(Node::Null);
        MlflowTable::from_split(data, names, index.as_ref()).map_err(|reason| {
            reason.into_error(|why| {
                fault::invalid_input(format_args!(
                "Provided dataframe_split field is not a valid dataframe representation in 'split' \
                 format. Error: '{why}'"
                ))
            })
        })
    }

    fn from_split(
        data: Node<'a>,
        names: Option<Node<'a>>,
        index: Option<&Node<'a>>,
    ) -> Result<Self, Reason> {
        let Node::List(list) = data else {
            return Err(format!("data is of type {} and not a list", data.type_name()).into());
        };
        match index {
            None | Some(Node::Null) => {}
            Some(Node::List(index)) if index.len() == list.len() => {}
            Some(Node::List(index)) => {
                let (rows, count) = (list.len(), index.len());
                return Err(
                    format!("the data has {rows} rows, and the index has {count} labels").into()
                );
            }
            Some(other) => return Err(format!("index is of type {}", other.type_name()).into()),
        }
        let names = match names {
            None | Some(Node::Null) => None,
            Some(Node::List(names)) => Some(column_names(&names)?),
            Some(other) => return Err(format!("columns is of type {}", other.type_name()).into()),
        };
        MlflowTable::of_rows(rows_of(list)?, names)
    }

    /// The value of `dataframe_records`.
    pub(super) fn of_records(value: Node<'a>) -> Result<Self> {
        let Node::List(list) = value else {
            let what = typed(&value, "dictionary");
            return Err(fault::invalid_input(format_args!(
                "Dataframe records format must be a list of records. Got {what}."
            )));
        };
        MlflowTable::from_records(list).map_err(|reason| {
            reason.into_error(|why| {
                fault::invalid_input(format_args!(
                    "Provided dataframe_records field is not a valid dataframe representation in \
                 'records' format. Error: '{why}'"
                ))
            })
        })
    }

    /// A table of objects, or of rows. A member that an object does not have is a missing value.
    pub(super) fn from_records(list: Vec<Node<'a>>) -> Result<Self, Reason> {
        if !list.iter().any(|record| matches!(record, Node::Object(_))) {
            return MlflowTable::of_rows(rows_of(list)?, None);
        }
        let rows = list.len();
        let mut columns = GrowingColumns::default();
        for (row, record) in list.into_iter().enumerate() {
            let Node::Object(members) = record else {
                return Err(
                    format!("record {row} is of type {} and not dict", record.type_name()).into()
                );
            };
            for (name, value) in members {
                let at = columns.place(name)?;
                columns.fill(at, row)?;
                columns.push(at, value)?;
            }
        }
        for at in 0..columns.columns.len() {
            columns.fill(at, rows)?;
        }
        let named = columns.columns.into_iter();
        MlflowTable::of_columns(
            named.map(|(name, values)| (ColumnName::Text(name), values)).collect(),
        )
    }
}

/// Columns whose values arrive one after the other.
#[derive(Default)]
pub(super) struct GrowingColumns<'a> {
    pub(super) columns: Vec<(String, Vec<Node<'a>>)>,
    places: HashMap<String, usize>,
    meter: Meter,
}

impl<'a> GrowingColumns<'a> {
    /// The place of the column `name`, which is added if it is not there.
    pub(super) fn place(&mut self, name: String) -> Result<usize> {
        if let Some(place) = self.places.get(&name) {
            return Ok(*place);
        }
        let place = self.columns.len();
        // In both lists.
        self.meter.add(COLUMN_BYTES.saturating_add(name.len().saturating_mul(2)))?;
        self.places.insert(name.clone(), place);
        self.columns.push((name, Vec::new()));
        Ok(place)
    }

    /// Appends a value to the column at `place`.
    pub(super) fn push(&mut self, place: usize, value: Node<'a>) -> Result<()> {
        match self.columns.get_mut(place) {
            Some((_, values)) => self.meter.push(values, value),
            None => Ok(()),
        }
    }

    /// Ends the column at `place` with missing values, or cuts it, after `rows` rows.
    fn fill(&mut self, place: usize, rows: usize) -> Result<()> {
        if let Some((_, values)) = self.columns.get_mut(place) {
            self.meter.make_room(values, rows.saturating_sub(values.len()))?;
            // The last of two members with one name counts.
            values.resize(rows, Node::Null);
        }
        Ok(())
    }
}

/// Columns with room for `rows` values each.
fn empty_columns<'a>(count: usize, rows: usize) -> Result<Vec<Vec<Node<'a>>>, Reason> {
    reserve_values(rows.saturating_mul(count))?;
    let bytes = count.saturating_mul(COLUMN_BYTES);
    budget::reserve(bytes)?;
    let mut columns = Vec::with_capacity(count);
    columns.resize_with(count, || Vec::with_capacity(rows));
    Ok(columns)
}

/// Rows: lists, or single values.
fn rows_of(list: Vec<Node<'_>>) -> Result<Vec<Vec<Node<'_>>>, Reason> {
    let singles = list.iter().filter(|row| row.list().is_none()).count();
    let bytes = singles.saturating_mul(size_of::<Node>() + ALLOCATION);
    let bytes = bytes.saturating_add(list.len().saturating_mul(size_of::<Vec<Node>>()));
    budget::reserve(bytes)?;
    Ok(list.into_iter().map(into_row).collect())
}

/// The first name that is there twice.
fn repeated(names: &[ColumnName]) -> Option<&ColumnName> {
    let mut known = HashSet::new();
    names.iter().find(|name| !known.insert(*name))
}

/// Reserves memory for `count` values.
pub(super) fn reserve_values(count: usize) -> Result<()> {
    budget::reserve(count.saturating_mul(size_of::<Node>()))
}

fn typed(value: &Node<'_>, known: &str) -> String {
    match (value, known) {
        (Node::List(_), "list") | (Node::Object(_), "dictionary") => known.to_owned(),
        (other, _) => format!("type <class '{}'>", other.type_name()),
    }
}

fn column_names(names: &[Node<'_>]) -> Result<Vec<ColumnName>, Reason> {
    let bytes = names.iter().filter_map(Node::text).map(<[u8]>::len).sum::<usize>();
    // The name itself, in maps of names, and in the text of an error.
    let bytes = bytes.saturating_mul(3).saturating_add(names.len().saturating_mul(COLUMN_BYTES));
    budget::reserve(bytes)?;
    let named = names.iter().enumerate().map(|(place, node)| column_name(place, node));
    Ok(named.collect::<Result<_, String>>()?)
}

/// The name of column number `place`.
fn column_name(place: usize, node: &Node<'_>) -> Result<ColumnName, String> {
    if *node == Node::Int(i64::try_from(place).unwrap_or(i64::MAX)) {
        return Ok(ColumnName::Place(place));
    }
    let name = node.name().map(ColumnName::Text);
    name.ok_or_else(|| format!("column {place} has a name of type {}", node.type_name()))
}

fn into_row(node: Node<'_>) -> Vec<Node<'_>> {
    if let Node::List(row) = node {
        return row;
    }
    vec![node]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Result<MlflowTable<'_>> {
        MlflowTable::of_split(Node::read(text.as_bytes()).expect("JSON"))
    }

    fn records(text: &str) -> Result<MlflowTable<'_>> {
        MlflowTable::of_records(Node::read(text.as_bytes()).expect("JSON"))
    }

    fn brief(table: &MlflowTable<'_>) -> String {
        let column =
            |column: &TableColumn<'_>| format!("{}={:?}", column.name.shown(), column.values);
        table.columns.iter().map(column).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_split_table_has_columns() {
        let table = split(r#"{"columns": ["a", "b"], "index": [7, 8], "data": [[1, 2.5], [3]]}"#);
        let table = table.expect("valid");
        assert_eq!(brief(&table), "'a'=[Int(1), Int(3)] 'b'=[Float(2.5), Null]");
        let table = split(r#"{"data": [[1], [2]]}"#).expect("valid");
        assert_eq!((brief(&table).as_str(), table.rows), ("0=[Int(1), Int(2)]", 2));
        let bad = [
            (r#"[1]"#, "must be a dictionary. Got list."),
            (r#"{"columns": ["a"]}"#, "must have 'data' field"),
            (r#"{"data": [], "extra": 1}"#, "must have 'data' field"),
            (
                r#"{"columns": ["a"], "data": [[1, 2]]}"#,
                "1 columns passed, passed data had 2 columns",
            ),
            (r#"{"columns": ["a", "a"], "data": [[1, 2]]}"#, "'a' is there twice"),
            (r#"{"index": [1], "data": [[1], [2]]}"#, "the index has 1 labels"),
        ];
        for (text, want) in bad {
            let error = split(text).expect_err(text);
            assert!(error.message().contains(want), "{error}");
        }
    }

    #[test]
    fn records_become_columns() {
        let table = records(r#"[{"a": 1, "b": 2}, {"b": 3}, {"c": 4, "a": 5}]"#).expect("valid");
        let want = "'a'=[Int(1), Null, Int(5)] 'b'=[Int(2), Int(3), Null] 'c'=[Null, Null, Int(4)]";
        assert_eq!(brief(&table), want);
        let error = records(r#"{"a": 1}"#).expect_err("an object");
        assert!(error.message().ends_with("must be a list of records. Got dictionary."), "{error}");
        assert!(records(r#"[{"a": 1}, 2]"#).is_err());
    }
}
