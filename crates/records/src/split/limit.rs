//! The largest record.

use tensorserve_tensor::error::Error;

/// The most bytes of one record, without its line ending or framing.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    pub(super) bytes: usize,
}

impl Limit {
    /// For the line `number`, which starts at byte `at`.
    pub(super) fn line_error(self, number: u64, at: u64) -> Error {
        self.error(&format!("the record at line {number} (byte {at})"))
    }

    /// For the record `number` of a binary format, which starts at byte `at`.
    pub(super) fn record_error(self, number: u64, at: u64) -> Error {
        self.error(&format!("record {number} (byte {at})"))
    }

    /// For an object that is one record.
    pub(super) fn object_error(self) -> Error {
        self.error("the object, which is not split,")
    }

    fn error(self, what: &str) -> Error {
        let bytes = self.bytes;
        Error::invalid(format!(
            "{what} is longer than a record may be, which is {bytes} bytes: raise --max-record-mb, \
             or check that --split is the object's format"
        ))
    }
}
