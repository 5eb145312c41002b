//! The requests: for each sample model, several different bodies.

use std::path::{Path, PathBuf};

use tensorserve_codec::base64;
use tensorserve_tensor::{Shape, StringsBuilder, Tensor, aligned_vec};

pub const NAMES: [&str; 5] =
    ["half_plus_two", "wide_mlp", "digits", "recommender", "text_of_length"];

pub struct Scenario {
    pub name: &'static str,
    /// Where the folder of the model is.
    pub folder: &'static str,
    /// Whole HTTP requests, sent in turn.
    pub requests: Vec<Vec<u8>>,
    /// Their bodies.
    pub bodies: Vec<Vec<u8>>,
    /// Inputs of `rows` rows, for libtensorflow alone.
    pub inputs: fn(rows: usize) -> Vec<Tensor>,
}

pub fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The number of different bodies.
const VARIANTS: usize = 16;

pub fn all() -> Vec<Scenario> {
    let half = |i: usize| format!("{{\"instances\": [{}.5, 2.0, 5.0]}}", i);
    let mlp = |i: usize| format!("{{\"instances\": [[{}]]}}", numbers(784, i));
    let recommender = |i: usize| {
        let features = numbers(13, i);
        format!(
            "{{\"instances\": [{{\"user_id\": {i}, \"item_id\": {}, \"features\": [{features}]}}]}}",
            i * 7
        )
    };
    let images = images();
    let digits = move |i: usize| {
        let mut text = Vec::new();
        base64::encode(&images[i % images.len()], &mut text);
        format!("{{\"instances\": [{{\"b64\": \"{}\"}}]}}", String::from_utf8(text).expect("ASCII"))
    };
    vec![
        scenario("half_plus_two", half, |rows| vec![floats(rows, &[])]),
        scenario("wide_mlp", mlp, |rows| vec![floats(rows, &[784])]),
        scenario("digits", digits, |rows| vec![pictures(rows)]),
        scenario("recommender", recommender, |rows| {
            vec![floats(rows, &[13]), ids(rows), ids(rows)]
        }),
        // TextVectorization with `output_sequence_length`: texts of different lengths can share a batch.
        Scenario {
            folder: "tests/data/rows",
            ..scenario(
                "text_of_length",
                |i| format!("{{\"instances\": [\"{}\"]}}", text(i)),
                |rows| vec![texts(rows)],
            )
        },
    ]
}

fn scenario(
    name: &'static str,
    body: impl Fn(usize) -> String,
    inputs: fn(usize) -> Vec<Tensor>,
) -> Scenario {
    let bodies: Vec<Vec<u8>> = (0..VARIANTS).map(|i| body(i).into_bytes()).collect();
    let request = |body: &Vec<u8>| {
        let mut request = format!(
            "POST /v1/models/{name}:predict HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        request
    };
    let requests = bodies.iter().map(request).collect();
    Scenario { name, folder: "models", requests, bodies, inputs }
}

/// Short numbers, like measurements and pixels.
pub fn numbers(count: usize, seed: usize) -> String {
    let number =
        |i: usize| format!("{:.4}", ((i * 7919 + seed * 104_729) % 10_000) as f32 / 10_000.0);
    (0..count).map(number).collect::<Vec<_>>().join(", ")
}

fn images() -> Vec<Vec<u8>> {
    let folder = project("examples/images/digits");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("sample images")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "png"))
        .collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("image")).collect()
}

/// One to seven words.
fn text(seed: usize) -> String {
    const WORDS: [&str; 7] = ["the", "cat", "sat", "on", "mat", "far", "dog"];
    let word = |at: usize| WORDS.get((seed + at * 3) % WORDS.len()).copied().unwrap_or_default();
    (0..=seed % WORDS.len()).map(word).collect::<Vec<_>>().join(" ")
}

fn texts(rows: usize) -> Tensor {
    let mut strings = StringsBuilder::default();
    (0..rows).for_each(|i| strings.push(text(i).as_bytes()));
    Tensor::from_strings(Shape::vector(rows), strings).expect("tensor")
}

fn floats(rows: usize, row: &[i64]) -> Tensor {
    let dims = [&[rows as i64][..], row].concat();
    let shape = Shape::new(&dims).expect("shape");
    let count = shape.elements().expect("count");
    let mut values = aligned_vec(count);
    (0..count).for_each(|i| values.push((i % 97) as f32 / 97.0));
    Tensor::from_vec(shape, values).expect("tensor")
}

fn ids(rows: usize) -> Tensor {
    let mut values = aligned_vec(rows);
    (0..rows).for_each(|i| values.push(i as i64));
    Tensor::from_vec(Shape::vector(rows), values).expect("tensor")
}

fn pictures(rows: usize) -> Tensor {
    let images = images();
    let mut strings = StringsBuilder::default();
    (0..rows).for_each(|i| strings.push(&images[i % images.len()]));
    Tensor::from_strings(Shape::vector(rows), strings).expect("tensor")
}
