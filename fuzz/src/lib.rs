//! The fuzz targets: for each decoder, a function that takes any bytes.
//!
//! A target calls the decoder as the server does, and checks what must hold for every input: no panic,
//! memory in proportion to the input, and, where it is cheap, that a decoded value survives encoding
//! and decoding, or that another implementation agrees.
//!
//! `fuzz_targets/` runs these functions under libFuzzer; `tests/fuzz_corpus.rs` includes this file and
//! runs them on the corpora.

mod batch;
mod codec;
mod connections;
mod echo;
mod files;
pub mod hostile;
mod http;
mod memory;
mod messages;
mod models;
mod server;
mod target;
pub mod variants;

pub use self::memory::MemoryUse;
pub use self::target::Target;

/// All targets, each with the name of its function.
macro_rules! targets {
    ($($name:ident = $module:ident, $memory:expr;)*) => {
        $(
            #[doc = concat!("The target `", stringify!($name), "`.")]
            #[allow(non_upper_case_globals)]
            pub const $name: Target =
                Target { name: stringify!($name), run: $module::$name, memory: $memory };
        )*

        /// All targets.
        pub const TARGETS: &[Target] = &[$($name),*];
    };
}

use self::memory::MemoryRule;

/// The decoders of requests, which reserve their memory before they take it.
const REQUEST: MemoryRule = MemoryRule::Reserved;

/// A connection: its buffers, the heads of its calls, and what they have sent.
const CONNECTION: MemoryRule = MemoryRule::OfFile { fixed: 1 << 20, per_byte: 256 };

/// Readers of files: of models, of settings, of recorded requests. What a file declares and does not contain may
/// not take more than the fixed part.
const FILE: MemoryRule = MemoryRule::OfFile { fixed: 8 << 20, per_byte: 128 };

/// Readers of compressed files: a window of the decompressor, and what a page of Parquet and a row may take.
const COMPRESSED: MemoryRule = MemoryRule::OfFile { fixed: 128 << 20, per_byte: 1024 };

/// Spark's models, whose sparse vectors may have 2²⁵ coefficients: 256 MiB once they are dense, and a stage
/// has three of them.
const SPARK: MemoryRule = MemoryRule::OfFile { fixed: 1 << 30, per_byte: 4096 };

targets! {
    json = codec, REQUEST;
    json_tensor = codec, REQUEST;
    npy = codec, REQUEST;
    csv = codec, REQUEST;
    base64 = codec, REQUEST;
    tfrecord = codec, REQUEST;
    event_stream = codec, REQUEST;
    records = batch, COMPRESSED;
    parquet = batch, COMPRESSED;

    predict = http, REQUEST;
    open_inference = http, REQUEST;
    classify = http, REQUEST;
    invocations = http, REQUEST;
    scoring = http, REQUEST;
    simple = http, REQUEST;
    routes = http, REQUEST;
    multipart = http, REQUEST;
    gzip = http, REQUEST;

    http2 = connections, CONNECTION;
    request_messages = messages, REQUEST;
    infer_messages = messages, REQUEST;
    tensor_proto = messages, REQUEST;
    text_proto = messages, FILE;
    warm_up = messages, FILE;

    pickle = models, FILE;
    sklearn = models, FILE;
    xgboost = models, FILE;
    lightgbm = models, FILE;
    catboost = models, FILE;
    pmml = models, FILE;
    spark = models, SPARK;
    h2o = models, FILE;
    torch = models, FILE;
    executorch = models, FILE;
    foreign = models, FILE;
    tflite = models, FILE;
    openvino = models, FILE;
    onnx = models, FILE;
    mxnet = models, FILE;
    saved_model = models, FILE;

    archive = files, FILE;
    images = files, REQUEST;
    steps = files, REQUEST;
    step_file = files, FILE;
    mlmodel = files, FILE;
    settings = files, FILE;
    model_list = files, FILE;
    users = files, FILE;
}
