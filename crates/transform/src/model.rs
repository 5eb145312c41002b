//! What runs payloads: a model as the server would run it.

use bytes::Bytes;

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

/// The form of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseForm {
    /// A line for each row: JSON.
    JsonLines,
    /// A line for each row: comma-separated values.
    CsvLines,
    /// What the job accepts, for the whole payload.
    Document,
}

/// A model that is loaded. Calls block, and may come from many threads.
pub trait Model: Send + Sync {
    /// Runs `payload`.
    ///
    /// # Errors
    /// As the server would report them.
    fn infer(&self, payload: Payload, form: ResponseForm) -> Result<Bytes>;

    /// The body that SageMaker's container would respond with, also for an error.
    fn respond(&self, body: Bytes) -> Bytes;

    /// Whether requests pass through handlers (`inference.py`), which see payloads as they are.
    fn has_handlers(&self) -> bool;
}
