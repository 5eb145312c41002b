//! The columns that a file's schema declares.

use std::sync::Arc;

use parquet::basic::{Repetition, Type as PhysicalType};
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor, Type};

/// A column of values, as the schema declares it.
pub(super) struct LeafColumn {
    pub(super) descriptor: ColumnDescPtr,
    /// The definition level from which on there is an element, for each group around the column that is
    /// repeated, from the outermost on.
    pub(super) repeated: Vec<i16>,
}

impl LeafColumn {
    /// The columns of a schema, in its order, which is that of the columns of a row group. It calls itself as deep
    /// as the schema, which is bounded.
    pub(super) fn all(schema: &SchemaDescriptor) -> Vec<LeafColumn> {
        let mut repeated = Vec::with_capacity(schema.num_columns());
        for field in schema.root_schema().get_fields() {
            add_repeated(field, 0, &[], &mut repeated);
        }
        let columns = schema.columns().iter().zip(repeated);
        let leaves = columns.map(|(descriptor, repeated)| {
            let descriptor = Arc::clone(descriptor);
            LeafColumn { descriptor, repeated }
        });
        leaves.collect()
    }

    /// The names of the groups around it, and its own.
    pub(super) fn path(&self) -> &[String] {
        self.descriptor.path().parts()
    }

    /// Whether its values are texts, and not numbers; `None` if they are of a type that models do not have.
    pub(super) fn is_text(&self) -> Option<bool> {
        match self.descriptor.physical_type() {
            PhysicalType::BYTE_ARRAY => Some(true),
            PhysicalType::BOOLEAN
            | PhysicalType::INT32
            | PhysicalType::INT64
            | PhysicalType::FLOAT
            | PhysicalType::DOUBLE => Some(false),
            PhysicalType::INT96 | PhysicalType::FIXED_LEN_BYTE_ARRAY => None,
        }
    }

    /// The definition level of a value that is not null.
    pub(super) fn max_definition(&self) -> i16 {
        self.descriptor.max_def_level()
    }

    /// How deep its values are in lists.
    pub(super) fn depth(&self) -> usize {
        self.repeated.len()
    }
}

/// Adds [`LeafColumn::repeated`] of the columns in `field`. The definition level around it is `definition`.
fn add_repeated(field: &Type, definition: i16, around: &[i16], columns: &mut Vec<Vec<i16>>) {
    let (mut definition, mut repeated) = (definition, around.to_vec());
    match field.get_basic_info().repetition() {
        Repetition::REQUIRED => {}
        Repetition::OPTIONAL => definition += 1,
        Repetition::REPEATED => {
            definition += 1;
            repeated.push(definition);
        }
    }
    if !field.is_group() {
        columns.push(repeated);
        return;
    }
    for inner in field.get_fields() {
        add_repeated(inner, definition, &repeated, columns);
    }
}
