//! Field ids and enumerations of Parquet's metadata, under the names of
//! <https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift>.

/// The fields of `FileMetaData`.
pub(super) mod file_metadata {
    pub(in super::super) const SCHEMA: i16 = 2;
    pub(in super::super) const NUM_ROWS: i16 = 3;
    pub(in super::super) const ROW_GROUPS: i16 = 4;
}

/// The fields of `SchemaElement`.
pub(super) mod schema_element {
    pub(in super::super) const TYPE: i16 = 1;
    pub(in super::super) const REPETITION_TYPE: i16 = 3;
    pub(in super::super) const NAME: i16 = 4;
    pub(in super::super) const NUM_CHILDREN: i16 = 5;
}

/// The fields of `RowGroup`.
pub(super) mod row_group {
    pub(in super::super) const COLUMNS: i16 = 1;
}

/// The fields of `ColumnChunk`.
pub(super) mod column_chunk {
    pub(in super::super) const META_DATA: i16 = 3;
}

/// The fields of `ColumnMetaData`.
pub(super) mod column_metadata {
    pub(in super::super) const PATH_IN_SCHEMA: i16 = 3;
    pub(in super::super) const CODEC: i16 = 4;
    pub(in super::super) const NUM_VALUES: i16 = 5;
    pub(in super::super) const DATA_PAGE_OFFSET: i16 = 9;
    pub(in super::super) const DICTIONARY_PAGE_OFFSET: i16 = 11;
}

/// The fields of `PageHeader`.
pub(super) mod page_header {
    pub(in super::super) const TYPE: i16 = 1;
    pub(in super::super) const UNCOMPRESSED_PAGE_SIZE: i16 = 2;
    pub(in super::super) const COMPRESSED_PAGE_SIZE: i16 = 3;
    pub(in super::super) const DATA_PAGE_HEADER: i16 = 5;
    pub(in super::super) const DICTIONARY_PAGE_HEADER: i16 = 7;
    pub(in super::super) const DATA_PAGE_HEADER_V2: i16 = 8;
}

/// The fields of `DataPageHeader`.
pub(super) mod data_page_header {
    pub(in super::super) const NUM_VALUES: i16 = 1;
    pub(in super::super) const ENCODING: i16 = 2;
}

/// The fields of `DictionaryPageHeader`.
pub(super) mod dictionary_page_header {
    pub(in super::super) const NUM_VALUES: i16 = 1;
}

/// The fields of `DataPageHeaderV2`.
pub(super) mod data_page_header_v2 {
    pub(in super::super) const NUM_VALUES: i16 = 1;
    pub(in super::super) const ENCODING: i16 = 4;
    pub(in super::super) const DEFINITION_LEVELS_BYTE_LENGTH: i16 = 5;
    pub(in super::super) const REPETITION_LEVELS_BYTE_LENGTH: i16 = 6;
    pub(in super::super) const IS_COMPRESSED: i16 = 7;
}

/// `Type`: the physical types of values.
pub(super) mod physical_type {
    pub(in super::super) const BOOLEAN: i64 = 0;
    pub(in super::super) const INT32: i64 = 1;
    pub(in super::super) const INT64: i64 = 2;
    pub(in super::super) const FLOAT: i64 = 4;
    pub(in super::super) const DOUBLE: i64 = 5;
    pub(in super::super) const BYTE_ARRAY: i64 = 6;
}

/// `FieldRepetitionType`.
pub(super) mod repetition_type {
    pub(in super::super) const REQUIRED: i64 = 0;
    pub(in super::super) const OPTIONAL: i64 = 1;
    pub(in super::super) const REPEATED: i64 = 2;
}

/// `Encoding`.
pub(super) mod encoding {
    pub(in super::super) const PLAIN: i64 = 0;
    pub(in super::super) const PLAIN_DICTIONARY: i64 = 2;
    pub(in super::super) const RLE: i64 = 3;
    pub(in super::super) const RLE_DICTIONARY: i64 = 8;
}

/// `CompressionCodec`.
pub(super) mod codec {
    pub(in super::super) const UNCOMPRESSED: i64 = 0;
    pub(in super::super) const SNAPPY: i64 = 1;
    pub(in super::super) const GZIP: i64 = 2;
    pub(in super::super) const ZSTD: i64 = 6;
}

/// `PageType`.
pub(super) mod page_type {
    pub(in super::super) const DATA_PAGE: i64 = 0;
    pub(in super::super) const DICTIONARY_PAGE: i64 = 2;
    pub(in super::super) const DATA_PAGE_V2: i64 = 3;
}
