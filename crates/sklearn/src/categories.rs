//! The categories of the columns of an encoder: numbers or texts.

use super::columns::ColumnUse;
use super::estimator::Estimator;
use tensorserve_pickle::{PickleNode, PickleValue, dtype_kind};
use tensorserve_tensor::error::{Error, Result};

/// How many categories an error lists.
const MAX_SHOWN: usize = 20;

/// How many characters of a category an error has.
const MAX_SHOWN_CHARS: usize = 40;

/// How many categories are offered to clients.
const MAX_OFFERED: usize = 200;

/// The categories of a column.
pub(super) struct Categories {
    /// The numbers, or the numbers of the texts, in ascending order, with the place of each in the
    /// encoder's list.
    known: Vec<(f64, usize)>,
    /// The place of the missing value, NaN or None.
    missing: Option<usize>,
    /// Whether the missing value is NaN, which has a code of its own in an `OrdinalEncoder`.
    is_missing_nan: bool,
    /// How many there are.
    len: usize,
    /// Whether they are texts.
    are_texts: bool,
    /// What errors say that the categories are.
    shown: String,
    /// The first of them, as clients send them.
    offered: Vec<String>,
}

impl Categories {
    /// The place of the category `value`.
    pub(super) fn find(&self, value: f64) -> Option<usize> {
        if value.is_nan() {
            return self.missing;
        }
        let index = self.known.partition_point(|(number, _)| *number < value);
        let (number, place) = self.known.get(index)?;
        (*number == value).then_some(*place)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The place of NaN, if it is a category.
    pub(super) fn nan(&self) -> Option<usize> {
        self.missing.filter(|_| self.is_missing_nan)
    }

    /// The first of them, as clients send them.
    pub(super) fn offered(&self) -> Vec<String> {
        self.offered.clone()
    }

    /// How a column with these categories is used.
    pub(super) fn column_use(&self) -> ColumnUse {
        if self.are_texts {
            return ColumnUse::Category;
        }
        if self.known.is_empty() { ColumnUse::Either } else { ColumnUse::Number }
    }

    /// The error for a value that is not a category.
    pub(super) fn unknown(&self, column: usize, value: f64, row: usize) -> Error {
        let what = match (value.is_nan(), self.are_texts) {
            (true, _) => "the missing value".to_owned(),
            (false, true) => "the text".to_owned(),
            (false, false) => format!("the value {value}"),
        };
        let shown = &self.shown;
        Error::invalid(format!(
            "{what} in row {row} and column {column} of an encoder is not one of the categories that \
             the model was fitted with: {shown}"
        ))
    }

    /// Reads `categories_`: the categories of each column.
    pub(super) fn read_all(estimator: &Estimator) -> Result<Vec<Categories>> {
        if estimator.find(&["categories_"]).is_none() {
            return Err(estimator.unsupported("one written by scikit-learn before 0.20"));
        }
        let mut all = Vec::new();
        for column in estimator.children(&["categories_"])? {
            all.push(Categories::read(estimator, column.value)?);
        }
        match all.is_empty() {
            true => Err(estimator.damaged("categories_ is empty")),
            false => Ok(all),
        }
    }

    /// Reads the categories of one column.
    fn read(estimator: &Estimator, column: PickleValue) -> Result<Categories> {
        let wrong =
            || estimator.unsupported("a column of categories that are neither numbers nor texts");
        let array = column.array().ok_or_else(wrong)?;
        estimator.charge(array.len())?;
        let mut reader = CategoryReader {
            estimator,
            numbers: 0,
            texts: 0,
            shown: Vec::new(),
            offered: Vec::new(),
        };
        let values: Vec<CategoryValue> = match array.kind() {
            dtype_kind::OBJECT => {
                let items = column.items().ok_or_else(wrong)?;
                items.into_iter().map(|item| reader.object(item)).collect::<Result<_>>()?
            }
            dtype_kind::TEXT | dtype_kind::BYTES => {
                let texts = array.strings().ok_or_else(wrong)?;
                texts.iter().map(|text| reader.text(text)).collect::<Result<_>>()?
            }
            _ => {
                let numbers = array.f64s().ok_or_else(wrong)?;
                numbers.into_iter().map(|number| reader.number(number)).collect()
            }
        };
        if reader.numbers > 0 && reader.texts > 0 {
            return Err(estimator.unsupported("a column with both numbers and texts as categories"));
        }
        Ok(reader.categories(values))
    }
}

/// One category.
enum CategoryValue {
    Known(f64),
    Nan,
    None,
}

/// Reads the categories of a column.
struct CategoryReader<'e, 'a> {
    estimator: &'e Estimator<'a>,
    numbers: usize,
    texts: usize,
    /// The first of them, for errors.
    shown: Vec<String>,
    /// The first of them, for clients.
    offered: Vec<String>,
}

impl CategoryReader<'_, '_> {
    fn show(&mut self, category: impl std::fmt::Display) {
        if self.shown.len() < MAX_SHOWN {
            self.shown.push(category.to_string());
        }
    }

    fn offer(&mut self, category: impl std::fmt::Display) {
        if self.offered.len() < MAX_OFFERED {
            self.offered.push(category.to_string());
        }
    }

    fn number(&mut self, number: f64) -> CategoryValue {
        if number.is_nan() {
            return CategoryValue::Nan;
        }
        self.numbers += 1;
        self.show(number);
        self.offer(number);
        CategoryValue::Known(number)
    }

    fn text(&mut self, text: &str) -> Result<CategoryValue> {
        self.texts += 1;
        self.show(format_args!("{:?}", text.chars().take(MAX_SHOWN_CHARS).collect::<String>()));
        self.offer(text);
        self.estimator.text_number(text).map(CategoryValue::Known)
    }

    fn object(&mut self, item: PickleValue) -> Result<CategoryValue> {
        if let Some(text) = item.text() {
            return self.text(text);
        }
        if let Some(number) = item.float() {
            return Ok(self.number(number));
        }
        if matches!(item.node(), PickleNode::None) {
            return Ok(CategoryValue::None);
        }
        Err(self.estimator.unsupported(format_args!("the category {}", item.description())))
    }

    fn categories(self, values: Vec<CategoryValue>) -> Categories {
        let len = values.len();
        let (mut known, mut nan, mut none) = (Vec::with_capacity(len), None, None);
        for (place, value) in values.into_iter().enumerate() {
            match value {
                CategoryValue::Known(number) => known.push((number, place)),
                CategoryValue::Nan => nan = Some(place),
                CategoryValue::None => none = Some(place),
            }
        }
        known.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut shown = self.shown.join(", ");
        if known.len() > MAX_SHOWN {
            shown.push_str(", …");
        }
        if nan.or(none).is_some() {
            shown.push_str(", and the missing value");
        }
        Categories {
            known,
            missing: nan.or(none),
            is_missing_nan: nan.is_some(),
            len,
            are_texts: self.texts > 0,
            shown,
            offered: self.offered,
        }
    }
}
