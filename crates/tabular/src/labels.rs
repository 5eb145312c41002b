//! The labels of the classes of a classifier.

use tensorserve_pickle::{NumpyArray, PickleValue, dtype_kind};
use tensorserve_tensor::error::Error;
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{DType, Shape, StringsBuilder, Tensor, aligned_vec};

/// Bytes to reserve for each label that is text.
const TYPICAL_LABEL_BYTES: usize = 8;

/// The most bytes of all labels that are text. Values of a pickle are shared, so that a small file
/// could expand to gigabytes.
const MAX_TEXT_BYTES: usize = 1 << 24;

/// The labels of the classes of a classifier.
#[derive(Clone, Debug, PartialEq)]
pub enum ClassLabels {
    /// Integers.
    Ints(Vec<i64>),
    /// Floating-point numbers.
    Floats(Vec<f64>),
    /// Strings.
    Texts(Vec<String>),
    /// 0 for false, 1 for true.
    Bools(Vec<i64>),
}

impl ClassLabels {
    /// The number of classes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // A classifier has classes.
    pub fn len(&self) -> usize {
        match self {
            ClassLabels::Ints(labels) | ClassLabels::Bools(labels) => labels.len(),
            ClassLabels::Floats(labels) => labels.len(),
            ClassLabels::Texts(labels) => labels.len(),
        }
    }

    /// The integers from 0 to `count` - 1.
    pub fn range(count: usize) -> Self {
        ClassLabels::Ints((0..).take(count).collect())
    }

    /// The labels in a pickled array or list.
    pub fn read(value: PickleValue) -> Result<Self> {
        let array = value.array().filter(|array| array.kind() != dtype_kind::OBJECT);
        let labels = match array {
            Some(array) => ClassLabels::of_array(array),
            None => ClassLabels::of_objects(&value.items().unwrap_or_default()),
        };
        labels.ok_or_else(|| {
            let found = value.type_name();
            let message = format!(
                "the labels of the classes are {found}, not an array of numbers or strings"
            );
            Error::unsupported(message)
        })
    }

    /// The labels in an array whose elements are not Python objects.
    pub fn of_array(array: &NumpyArray) -> Option<Self> {
        Some(match array.kind() {
            dtype_kind::BOOL => ClassLabels::Bools(array.i64s()?),
            dtype_kind::INT | dtype_kind::UINT => ClassLabels::Ints(array.i64s()?),
            dtype_kind::FLOAT => ClassLabels::Floats(array.f64s()?),
            _ => ClassLabels::Texts(array.strings()?),
        })
    }

    /// Labels that are Python objects: strings or integers.
    pub fn of_objects(items: &[PickleValue]) -> Option<Self> {
        let mut bytes = 0_usize;
        let mut text = |item: &PickleValue| {
            let text = item.text()?;
            bytes = bytes.saturating_add(text.len());
            (bytes <= MAX_TEXT_BYTES).then(|| text.to_owned())
        };
        let texts: Option<Vec<String>> = items.iter().map(&mut text).collect();
        if let Some(texts) = texts.filter(|texts| !texts.is_empty()) {
            return Some(ClassLabels::Texts(texts));
        }
        let ints: Option<Vec<i64>> = items.iter().map(|item| item.int()).collect();
        ints.filter(|ints| !ints.is_empty()).map(ClassLabels::Ints)
    }

    /// The bytes of all labels that are text.
    pub fn text_bytes(&self) -> usize {
        match self {
            ClassLabels::Texts(labels) => labels.iter().map(String::len).sum(),
            ClassLabels::Ints(_) | ClassLabels::Floats(_) | ClassLabels::Bools(_) => 0,
        }
    }

    /// The dtype of a tensor of labels.
    pub fn dtype(&self) -> DType {
        match self {
            ClassLabels::Ints(_) => DType::Int64,
            ClassLabels::Floats(_) => DType::Double,
            ClassLabels::Texts(_) => DType::String,
            ClassLabels::Bools(_) => DType::Bool,
        }
    }

    /// The labels of `classes`, which are indices.
    pub fn tensor(&self, classes: &[usize]) -> Result<Tensor> {
        let shape = Shape::vector(classes.len());
        match self {
            ClassLabels::Ints(labels) => {
                let mut out = aligned_vec::<i64>(classes.len());
                classes.iter().for_each(|class| out.push(labels.get(*class).copied().unwrap_or(0)));
                Tensor::from_vec(shape, out)
            }
            ClassLabels::Floats(labels) => {
                let mut out = aligned_vec::<f64>(classes.len());
                classes
                    .iter()
                    .for_each(|class| out.push(labels.get(*class).copied().unwrap_or(0.0)));
                Tensor::from_vec(shape, out)
            }
            ClassLabels::Bools(labels) => {
                let mut out = aligned_vec::<u8>(classes.len());
                classes.iter().for_each(|class| out.push(u8::from(labels.get(*class) == Some(&1))));
                Tensor::from_bools(shape, out)
            }
            ClassLabels::Texts(labels) => {
                let bytes = classes.len() * TYPICAL_LABEL_BYTES;
                let mut out = StringsBuilder::with_capacity(classes.len(), bytes);
                for class in classes {
                    out.push(labels.get(*class).map_or(&[], |label| label.as_bytes()));
                }
                Tensor::from_strings(shape, out)
            }
        }
    }
}

impl ClassLabels {
    /// The index of a label.
    #[must_use]
    pub fn index_of(&self, label: PickleValue) -> Option<usize> {
        match self {
            ClassLabels::Ints(labels) | ClassLabels::Bools(labels) => {
                labels.iter().position(|known| label.int() == Some(*known))
            }
            ClassLabels::Floats(labels) => {
                labels.iter().position(|known| label.float() == Some(*known))
            }
            ClassLabels::Texts(labels) => {
                labels.iter().position(|known| label.text() == Some(known))
            }
        }
    }

    /// The label of `class` as a number; of a text, the index of the class.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // As NumPy converts them.
    pub fn number(&self, class: usize) -> f64 {
        let number = match self {
            ClassLabels::Ints(labels) | ClassLabels::Bools(labels) => {
                labels.get(class).map(|label| *label as f64)
            }
            ClassLabels::Floats(labels) => labels.get(class).copied(),
            ClassLabels::Texts(_) => None,
        };
        number.unwrap_or(class as f64)
    }

    /// The place in `all` of each label; `None` if one is not there.
    pub fn places_in(&self, all: &ClassLabels) -> Option<Vec<usize>> {
        fn places<T: PartialEq>(own: &[T], all: &[T]) -> Option<Vec<usize>> {
            own.iter().map(|own| all.iter().position(|other| other == own)).collect()
        }
        match (self, all) {
            (ClassLabels::Ints(own), ClassLabels::Ints(all))
            | (ClassLabels::Bools(own), ClassLabels::Bools(all)) => places(own, all),
            (ClassLabels::Floats(own), ClassLabels::Floats(all)) => places(own, all),
            (ClassLabels::Texts(own), ClassLabels::Texts(all)) => places(own, all),
            _ => None,
        }
    }

    /// The labels of the classes of several outputs, each with labels of the same type: `classes` has an
    /// index for each row and output.
    pub fn matrix(labels: &[ClassLabels], rows: usize, classes: &[usize]) -> Result<Tensor> {
        let shape = Shape::new(&[dimension_of(rows), dimension_of(labels.len())])?;
        // The labels of all outputs in one list, and where those of each begin.
        let Some((first, others)) = labels.split_first() else {
            return Err(Error::internal("a classifier without outputs"));
        };
        let mut all = first.clone();
        let mut starts = vec![0];
        for other in others {
            starts.push(all.len());
            all.extend(other);
        }
        let places = classes.chunks_exact(labels.len()).flat_map(|row| row.iter().zip(&starts));
        let places: Vec<usize> = places.map(|(class, start)| class + start).collect();
        all.tensor(&places)?.reshaped(shape)
    }

    /// Adds labels of the same type.
    fn extend(&mut self, more: &ClassLabels) {
        match (self, more) {
            (ClassLabels::Ints(all), ClassLabels::Ints(more))
            | (ClassLabels::Bools(all), ClassLabels::Bools(more)) => all.extend(more),
            (ClassLabels::Floats(all), ClassLabels::Floats(more)) => all.extend(more),
            (ClassLabels::Texts(all), ClassLabels::Texts(more)) => all.extend_from_slice(more),
            _ => {}
        }
    }
}

fn dimension_of(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
