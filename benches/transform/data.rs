//! Inputs and the XGBoost model: generated once, the same on every machine, below the target directory.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use jpeg_encoder::{ColorType, Encoder};
use serde_json::{Value, json};

use crate::case::{Case, FEATURES, Inputs};

/// Trees of the XGBoost model, and their depth.
const TREES: usize = 100;
const DEPTH: u32 = 6;

pub struct Sizes {
    pub csv_mb: usize,
    pub images: usize,
}

pub struct Made {
    /// The directory of all inputs.
    pub all: PathBuf,
    /// A directory with ten links to each of them.
    pub tenfold: PathBuf,
    /// The directory of one record.
    pub one: PathBuf,
    pub records: usize,
    pub described: String,
}

/// The directories of inputs.
const PARTS: [&str; 3] = ["all", "tenfold", "one"];

/// The place of everything that is generated.
fn place() -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-transform");
    fs::create_dir_all(&place).expect("a directory");
    place
}

/// The inputs of a case.
pub fn make(case: &Case, sizes: &Sizes) -> Made {
    match case.inputs {
        Inputs::Csv { columns } => {
            let bytes = sizes.csv_mb * 100_000;
            let folder = place().join(format!("csv-{columns}-{}", sizes.csv_mb));
            let [all, tenfold, one] = PARTS.map(|part| folder.join(part));
            let mut records = 0;
            complete(&folder, || {
                for number in 0..10 {
                    csv(&all.join(format!("{number}.csv")), columns, bytes, number);
                }
                csv(&one.join("0.csv"), columns, 1, 0);
            });
            for number in 0..10 {
                let text = fs::read(all.join(format!("{number}.csv"))).expect("read");
                records += memchr::memchr_iter(b'\n', &text).count();
            }
            let described = format!("10 files, {} MB of CSV, {columns} columns", sizes.csv_mb);
            Made { all, tenfold, one, records, described }
        }
        Inputs::Jpeg { width, height, part } => {
            let count = sizes.images / part;
            let folder = place().join(format!("jpeg-{width}x{height}-{count}"));
            let [all, tenfold, one] = PARTS.map(|part| folder.join(part));
            complete(&folder, || {
                fs::write(one.join("0.jpg"), jpeg(width, height, 0)).expect("written");
                for number in 0..count {
                    let bytes = jpeg(width, height, number);
                    let name = format!("{number:06}.jpg");
                    fs::write(all.join(name), bytes).expect("written");
                }
            });
            let described = format!("{count} JPEG files of {width} x {height}");
            Made { all, tenfold, one, records: count, described }
        }
    }
}

/// Makes the files of a folder unless it is complete.
fn complete(folder: &Path, make: impl FnOnce()) {
    let mark = folder.join("complete");
    if mark.exists() {
        return;
    }
    let _ = fs::remove_dir_all(folder);
    for part in PARTS {
        fs::create_dir_all(folder.join(part)).expect("a directory");
    }
    make();
    for file in fs::read_dir(folder.join("all")).expect("a directory") {
        let file = file.expect("a file");
        let name = file.file_name().into_string().expect("text");
        for copy in 0..10 {
            let link = folder.join("tenfold").join(format!("{copy}-{name}"));
            fs::hard_link(file.path(), link).expect("linked");
        }
    }
    fs::write(mark, "").expect("written");
}

/// Pseudo-random numbers: a linear congruential generator, whose upper bits are good enough here.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        let step = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = step.wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Numbers with four decimals, like measurements.
fn csv(path: &Path, columns: usize, bytes: usize, seed: u64) {
    let mut random = Random(seed);
    let mut file = BufWriter::new(File::create(path).expect("created"));
    let mut written = 0;
    let mut line = Vec::new();
    while written < bytes {
        line.clear();
        for column in 0..columns {
            let end = if column + 1 < columns { ',' } else { '\n' };
            let (whole, rest) = (random.below(2), random.below(10_000));
            write!(line, "{whole}.{rest:04}{end}").expect("in memory");
        }
        file.write_all(&line).expect("written");
        written += line.len();
    }
    file.flush().expect("written");
}

/// A picture of waves and some noise, which compresses like a photo.
fn jpeg(width: u32, height: u32, number: usize) -> Vec<u8> {
    let mut random = Random(number as u64);
    let mut pixels = Vec::with_capacity((width * height * 3) as usize);
    let phase = number as f32;
    for y in 0..height {
        for x in 0..width {
            let (x, y) = (x as f32, y as f32);
            let wave = (x / 17.0 + phase).sin() + (y / 23.0 - phase).cos() + (x * y / 4000.0).sin();
            for channel in 0..3 {
                let noise = random.below(16) as f32;
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                pixels.push((wave * 35.0 + 110.0 + channel as f32 * 8.0 + noise) as u8);
            }
        }
    }
    let mut file = Vec::new();
    let [width, height] = [width, height].map(|side| u16::try_from(side).expect("a small image"));
    Encoder::new(&mut file, 85).encode(&pixels, width, height, ColorType::Rgb).expect("encoded");
    file
}

/// A binary classifier of [`TREES`] complete trees, as XGBoost writes it.
pub fn xgboost_model() -> PathBuf {
    let path = place().join("model.json");
    let mut random = Random(1);
    let trees: Vec<Value> = (0..TREES).map(|id| tree(id, &mut random)).collect();
    let model = json!({
        "learner": {
            "attributes": {},
            "feature_names": [],
            "feature_types": [],
            "gradient_booster": {
                "model": {
                    "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": TREES.to_string()},
                    "tree_info": vec![0; TREES],
                    "trees": trees,
                },
                "name": "gbtree",
            },
            "learner_model_param": {
                "base_score": "5E-1", "num_class": "0", "num_target": "1",
                "num_feature": FEATURES.to_string(),
            },
            "objective": {"name": "binary:logistic", "reg_loss_param": {"scale_pos_weight": "1"}},
        },
        "version": [2, 1, 0],
    });
    fs::write(&path, model.to_string()).expect("written");
    path
}

fn tree(id: usize, random: &mut Random) -> Value {
    let (inner, nodes) = (2_i64.pow(DEPTH) - 1, 2_i64.pow(DEPTH + 1) - 1);
    let of = |make: &mut dyn FnMut(i64) -> Value| (0..nodes).map(make).collect::<Vec<Value>>();
    let is_inner = |node: i64| node < inner;
    let features = FEATURES as u64;
    json!({
        "id": id,
        "left_children": of(&mut |n| json!(if is_inner(n) { 2 * n + 1 } else { -1 })),
        "right_children": of(&mut |n| json!(if is_inner(n) { 2 * n + 2 } else { -1 })),
        "parents": of(&mut |n| json!(if n > 0 { (n - 1) / 2 } else { 2_147_483_647 })),
        "split_indices": of(&mut |n| json!(if is_inner(n) { random.below(features) } else { 0 })),
        // The threshold of an inner node, the weight of a leaf.
        "split_conditions": of(&mut |n| match is_inner(n) {
            true => json!(random.below(2000) as f64 / 1000.0),
            false => json!(random.below(2000) as f64 / 10_000.0 - 0.1),
        }),
        "default_left": vec![0; nodes as usize],
        "split_type": vec![0; nodes as usize],
        "base_weights": vec![0.0; nodes as usize],
        "categories": [], "categories_nodes": [], "categories_segments": [], "categories_sizes": [],
        "tree_param": {
            "num_deleted": "0", "num_feature": FEATURES.to_string(),
            "num_nodes": nodes.to_string(), "size_leaf_vector": "1",
        },
    })
}
