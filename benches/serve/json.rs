//! The JSON reader and writer alone.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensorserve_codec::base64::Alphabet;
use tensorserve_codec::json::read::{ReadOptions, TensorReader};
use tensorserve_codec::json::scan::Cursor;
use tensorserve_codec::json::write::{self, Floats, JsonLayout, Style, Texts};
use tensorserve_tensor::{DType, Element, Tensor};

use crate::raw::thread_cpu;
use crate::scenario::Scenario;

pub const KINDS: [&str; 5] =
    ["short floats", "8-bit integers", "17 digits", "doubles", "32-bit integers"];

type Image<T> = Vec<Vec<[T; 3]>>;

const SIDE: usize = 224;
const TIME: Duration = Duration::from_millis(150);

const OPTIONS: ReadOptions = ReadOptions {
    coerce: false,
    all_types: false,
    nulls: false,
    number_texts: None,
    alphabet: Alphabet::Standard,
    max_bytes: 1 << 30,
};

const STYLE: Style =
    Style { layout: JsonLayout::Line, floats: Floats::TensorFlowServing, texts: Texts::Raw };

/// GB of text per second, reading and writing.
pub fn figures() -> Vec<(String, f64)> {
    let mut figures = Vec::new();
    let unit = |i: usize| ((i * 7919) % 100_003) as f64 / 100_003.0;
    let spread = |i: usize| ((i as u32).wrapping_mul(2_654_435_769)).cast_signed();
    for kind in KINDS {
        match kind {
            "short floats" => add::<f32>(kind, |i| format!("{:.7}", unit(i) as f32), &mut figures),
            "8-bit integers" => add::<f32>(kind, |i| format!("{}", (i * 31) % 256), &mut figures),
            "17 digits" => add::<f32>(kind, |i| format!("{:.17}", unit(i)), &mut figures),
            "doubles" => add::<f64>(kind, |i| format!("{:?}", unit(i)), &mut figures),
            _ => add::<i32>(kind, |i| spread(i).to_string(), &mut figures),
        }
    }
    figures
}

/// Adds the figures of an image whose values have these texts.
fn add<T: Element + Serialize + DeserializeOwned>(
    kind: &str,
    value: impl Fn(usize) -> String,
    figures: &mut Vec<(String, f64)>,
) {
    let text = image(value);
    let read = || read(T::DTYPE, &text);
    let tensor = read();
    let mut out = Vec::with_capacity(8 << 20);
    figures.push((format!("read {kind}"), gigabytes(text.len(), || drop(read()))));
    let mut length = 0;
    let per_second = gigabytes(1, || {
        out.clear();
        write::tensor(&tensor, STYLE, 0, &mut out).expect("numbers");
        length = out.len();
    });
    figures.push((format!("write {kind}"), per_second * length as f64));
    // serde_json on the same data, without building a document.
    let typed = || serde_json::from_slice::<Image<T>>(&text).expect("numbers");
    figures.push((format!("serde read {kind}"), gigabytes(text.len(), || drop(typed()))));
    let values = typed();
    let per_second = gigabytes(1, || {
        out.clear();
        serde_json::to_writer(&mut out, &values).expect("numbers");
        length = out.len();
    });
    figures.push((format!("serde write {kind}"), per_second * length as f64));
}

/// Microseconds of CPU time to read a request's values and to write as many numbers as its response
/// has. (The base64 text of an image is read as a string.)
pub fn request_micros(scenario: &Scenario) -> f64 {
    let body = &scenario.bodies[0];
    let at = body.iter().position(|&b| b == b'[').expect("a list");
    let answer = answer_tensor(scenario.name);
    let mut out = Vec::new();
    let mut work = || {
        let mut cursor = Cursor::new(body);
        cursor.seek(at);
        match scenario.name {
            "recommender" => cursor.skip_value().expect("JSON"),
            "digits" => read_as(DType::String, &mut cursor),
            _ => read_as(DType::Float, &mut cursor),
        }
        out.clear();
        write::tensor(&answer, STYLE, 0, &mut out).expect("numbers");
    };
    (0..100).for_each(|_| work());
    let (before, mut calls) = (thread_cpu(), 0);
    let start = Instant::now();
    while start.elapsed() < TIME / 3 {
        (0..100).for_each(|_| work());
        calls += 100;
    }
    (thread_cpu() - before).as_secs_f64() * 1e6 / f64::from(calls)
}

fn answer_tensor(name: &str) -> Tensor {
    match name {
        "half_plus_two" => read(DType::Float, b"[2.5, 3.0, 4.5]"),
        "recommender" => read(DType::Float, b"[0.123456789]"),
        _ => read(DType::Float, b"[[0.1234567, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]]"),
    }
}

fn read_as(dtype: DType, cursor: &mut Cursor) {
    let mut reader = TensorReader::new(dtype, OPTIONS, cursor.remaining());
    reader.read(cursor).expect("values");
    drop(reader.finish().expect("a tensor"));
}

fn read(dtype: DType, text: &[u8]) -> Tensor {
    let mut reader = TensorReader::new(dtype, OPTIONS, text.len());
    reader.read(&mut Cursor::new(text)).expect("numbers");
    reader.finish().expect("a tensor")
}

fn image(value: impl Fn(usize) -> String) -> Vec<u8> {
    let pixel =
        |i: usize| format!("[{}]", (0..3).map(|c| value(i * 3 + c)).collect::<Vec<_>>().join(", "));
    let row = |y: usize| {
        format!("[{}]", (0..SIDE).map(|x| pixel(y * SIDE + x)).collect::<Vec<_>>().join(", "))
    };
    format!("[{}]", (0..SIDE).map(row).collect::<Vec<_>>().join(", ")).into_bytes()
}

fn gigabytes(bytes: usize, mut work: impl FnMut()) -> f64 {
    work();
    let (before, mut calls) = (thread_cpu(), 0u32);
    let start = Instant::now();
    while start.elapsed() < TIME {
        work();
        calls += 1;
    }
    let seconds = (thread_cpu() - before).as_secs_f64();
    bytes as f64 * f64::from(calls) / seconds / 1e9
}
