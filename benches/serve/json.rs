//! The JSON reader and writer alone.

use std::time::{Duration, Instant};

use tensorserve_codec::base64::Alphabet;
use tensorserve_codec::json::read::{ReadOptions, TensorReader};
use tensorserve_codec::json::scan::Cursor;
use tensorserve_codec::json::write::{self, Floats, JsonLayout, Style, Texts};
use tensorserve_tensor::{DType, Tensor};

use crate::raw::thread_cpu;
use crate::scenario::Scenario;

pub const KINDS: [&str; 3] = ["short floats", "8-bit integers", "17 digits"];

type Image = Vec<Vec<[f32; 3]>>;

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
    for kind in KINDS {
        let value = |i: usize| match kind {
            "short floats" => format!("{:.7}", ((i * 7919) % 100_003) as f32 / 100_003.0),
            "8-bit integers" => format!("{}", (i * 31) % 256),
            _ => format!("{:.17}", ((i * 7919) % 100_003) as f64 / 100_003.0),
        };
        let text = image(value);
        let tensor = read(&text);
        let mut out = Vec::with_capacity(8 << 20);
        figures.push((format!("read {kind}"), gigabytes(text.len(), || drop(read(&text)))));
        let mut length = 0;
        let per_second = gigabytes(1, || {
            out.clear();
            write::tensor(&tensor, STYLE, 0, &mut out).expect("numbers");
            length = out.len();
        });
        figures.push((format!("write {kind}"), per_second * length as f64));
        // serde_json on the same data, without building a document.
        let typed = || serde_json::from_slice::<Image>(&text).expect("numbers");
        figures.push((format!("serde read {kind}"), gigabytes(text.len(), || drop(typed()))));
        let values = typed();
        let per_second = gigabytes(1, || {
            out.clear();
            serde_json::to_writer(&mut out, &values).expect("numbers");
            length = out.len();
        });
        figures.push((format!("serde write {kind}"), per_second * length as f64));
    }
    figures
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
        "half_plus_two" => read(b"[2.5, 3.0, 4.5]"),
        "recommender" => read(b"[0.123456789]"),
        _ => read(b"[[0.1234567, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]]"),
    }
}

fn read_as(dtype: DType, cursor: &mut Cursor) {
    let mut reader = TensorReader::new(dtype, OPTIONS, cursor.remaining());
    reader.read(cursor).expect("values");
    drop(reader.finish().expect("a tensor"));
}

fn read(text: &[u8]) -> Tensor {
    let mut reader = TensorReader::new(DType::Float, OPTIONS, text.len());
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
