//! What runs payloads: a model as the server would run it.

use bytes::Bytes;

use tensorserve_codec::formats::{PayloadFormat, RecordFormat};
use tensorserve_codec::row_text::OutputText;
use tensorserve_tensor::error::Result;

/// One request.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Records, as the body of a request.
    Records {
        /// Its bytes.
        body: Bytes,
        /// What they are.
        format: PayloadFormat,
    },
    /// A record that is the body of a request, of the content type of the job.
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

    /// Whether requests pass through handlers (`inference.py`), which see payloads as they are.
    fn has_handlers(&self) -> bool;
}
