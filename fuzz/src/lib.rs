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
mod echo;
mod files;
pub mod hostile;
mod http;
mod memory;
mod messages;
mod models;
mod server;
mod target;

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

use self::memory::MemoryLimit;

/// Decoders whose result is a few times as large as their input.
const SMALL: MemoryLimit = MemoryLimit { fixed: 4 << 20, per_byte: 64, reserves: false };

/// Requests to a server, which holds models and metrics. They reserve their memory before they take it.
const REQUEST: MemoryLimit = MemoryLimit { fixed: 64 << 20, per_byte: 256, reserves: true };

/// Readers of models, which may declare sizes that their file does not contain.
const MODEL: MemoryLimit = MemoryLimit { fixed: 256 << 20, per_byte: 1024, reserves: false };

/// Spark's models, whose sparse vectors may have 2²⁵ coefficients: 256 MiB once they are dense, and a stage
/// has three of them.
const SPARK: MemoryLimit = MemoryLimit { fixed: 1 << 30, per_byte: 4096, reserves: false };

targets! {
    json = codec, SMALL;
    json_tensor = codec, SMALL;
    npy = codec, SMALL;
    csv = codec, SMALL;
    base64 = codec, SMALL;
    tfrecord = codec, SMALL;
    event_stream = codec, SMALL;
    records = batch, MODEL;

    predict = http, REQUEST;
    open_inference = http, REQUEST;
    classify = http, REQUEST;
    invocations = http, REQUEST;
    scoring = http, REQUEST;
    simple = http, REQUEST;
    routes = http, REQUEST;
    multipart = http, REQUEST;
    gzip = http, REQUEST;

    request_messages = messages, REQUEST;
    infer_messages = messages, REQUEST;
    tensor_proto = messages, MODEL;
    text_proto = messages, MODEL;
    warm_up = messages, REQUEST;

    pickle = models, MODEL;
    sklearn = models, MODEL;
    xgboost = models, MODEL;
    lightgbm = models, MODEL;
    catboost = models, MODEL;
    pmml = models, MODEL;
    spark = models, SPARK;
    h2o = models, MODEL;
    torch = models, MODEL;
    executorch = models, MODEL;
    foreign = models, MODEL;
    tflite = models, MODEL;
    onnx = models, MODEL;
    mxnet = models, MODEL;
    saved_model = models, MODEL;

    archive = files, MODEL;
    images = files, MODEL;
    steps = files, MODEL;
    mlmodel = files, MODEL;
    settings = files, MODEL;
    model_list = files, MODEL;
    users = files, MODEL;
}
