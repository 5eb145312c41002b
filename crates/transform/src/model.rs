//! What runs payloads: a model as the server would run it.

use bytes::Bytes;

use tensorserve_codec::formats::RecordFormat;
use tensorserve_codec::row_text::OutputText;
use tensorserve_tensor::error::Result;

/// One request.
#[derive(Clone, Debug)]
pub enum Payload {
    /// The body of a request of this content type.
    Body {
        /// Its bytes.
        body: Bytes,
        /// Its media type.
        content_type: &'static str,
    },
    /// The body of a request of the content type of the job.
    Document(Bytes),
    /// Image files, one for each row.
    Images(Vec<Bytes>),
}

/// A model that is loaded. Calls block, and may come from many threads.
pub trait Model: Send + Sync {
    /// Runs a payload of records, for the rows of its outputs in this format.
    ///
    /// # Errors
    /// As the server would report them.
    fn rows(&self, payload: Payload, format: RecordFormat) -> Result<OutputText>;

    /// Runs a payload, for the response as a whole, in the form that the job accepts.
    ///
    /// # Errors
    /// As the server would report them.
    fn document(&self, payload: Payload) -> Result<Bytes>;

    /// The body that SageMaker's container would respond with, also for an error.
    fn respond(&self, body: Bytes) -> Bytes;

    /// Whether the first record of an object of CSV, `first`, has the names of columns, where the job does not
    /// say so.
    ///
    /// # Errors
    /// If that cannot be told.
    fn has_header(&self, first: &[u8]) -> Result<bool>;

    /// The media type of CSV whose first line has the names of columns, or of CSV without such a line.
    fn csv_type(&self, has_header: bool) -> &'static str;

    /// Whether requests pass through handlers (`inference.py`), which see payloads as they are.
    fn has_handlers(&self) -> bool;
}
