//! Pre-processing and post-processing (`tensorserve.toml` beside a model), through whole servers:
//! the signature in every protocol, files that are not images, batches, warm-up, and other clients.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::client::{get, post, post_form, request};
use crate::support::fake::Model;
use crate::support::place::Place;
use crate::support::process::{Process, run};
use crate::support::server::{TestServer, settings};
use crate::support::{alike, copy, link, pause_between_requests, project};

/// Steps from images of any size to a digit model's input, 784 numbers from 0 to 1.
const PICTURES: &str = r#"
[[preprocess]]
step = "image"
name = "image_bytes"
height = 28
width = 28
channels = "grey"
flatten = true

[[preprocess]]
step = "scale"
scale = 0.00392156862745098

[[postprocess]]
step = "top_k"
output = "probabilities"
name = "scores"
k = 3
indices = "digits"

[[postprocess]]
step = "labels"
output = "digits"
file = "names.txt"
"#;

const NAMES: [&str; 10] =
    ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

/// A directory with the sample model `name`, and its steps beside its version.
fn model(name: &str, toml: &str) -> TempDir {
    let root = tempfile::tempdir().expect("a directory");
    let place = root.path().join(name);
    link(&project("models").join(name).join("1"), &place.join("1"));
    fs::write(place.join("tensorserve.toml"), toml).expect("written");
    fs::write(place.join("names.txt"), NAMES.join("\n")).expect("written");
    root
}

fn serve(root: &TempDir) -> TestServer {
    TestServer::of(root.path())
}

/// The sample images: file name, which starts with the digit, and content.
fn samples() -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(project("examples/images/digits")).expect("a directory");
    let entries = entries.map(|entry| entry.expect("an entry").path());
    let images = entries.filter(|path| path.extension().is_some_and(|kind| kind != "json"));
    let image = |path: std::path::PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, fs::read(path).expect("an image"))
    };
    let mut samples: Vec<_> = images.map(image).collect();
    samples.sort();
    assert_eq!(samples.len(), 14);
    samples
}

/// The name of the digit that a sample shows.
fn shown(name: &str) -> &'static str {
    NAMES[usize::from(name.as_bytes()[0] - b'0')]
}

fn b64(bytes: &[u8]) -> Value {
    json!({"b64": STANDARD.encode(bytes)})
}

#[test]
fn a_model_of_numbers_takes_images_and_gives_names_in_every_protocol() {
    let root = model("wide_mlp", PICTURES);
    let server = serve(&root);
    let metadata = server.get("/v1/models/wide_mlp/metadata").json();
    let signature = &metadata["metadata"]["signature_def"]["signature_def"]["serving_default"];
    assert_eq!(signature["inputs"]["image_bytes"]["dtype"], "DT_STRING");
    assert_eq!(signature["outputs"]["digits"]["dtype"], "DT_STRING");
    assert_eq!(signature["outputs"]["scores"]["tensor_shape"]["dim"][1]["size"], "3");
    let keys: Vec<&String> = signature["outputs"].as_object().expect("outputs").keys().collect();
    assert_eq!(keys, ["digits", "scores"]);

    let samples = samples();
    let instances: Vec<Value> = samples.iter().map(|(_, bytes)| b64(bytes)).collect();
    let body = json!({"instances": instances}).to_string();
    let answer = server.post("/v1/models/wide_mlp:predict", &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let rows = answer.json()["predictions"].as_array().expect("rows").clone();
    let mut right = 0;
    for ((name, bytes), row) in samples.iter().zip(&rows) {
        right += usize::from(row["digits"][0] == shown(name));
        let scores = row["scores"].as_array().expect("scores");
        assert!(scores.windows(2).all(|pair| pair[0].as_f64() >= pair[1].as_f64()), "{row}");

        // The upload form, SageMaker's image types and its service give the same result.
        let uploaded = post_form(server.address, "/", &[("image", Some("x.png"), bytes)]);
        assert_eq!(uploaded.status, 200, "{}", uploaded.text());
        assert_eq!(uploaded.json()["digits"][0], row["digits"], "{name}");
        let kind = [("Content-Type", "image/png")];
        for path in ["/invocations", "/endpoints/e/invocations"] {
            let invoked = request(server.address, "POST", path, &kind, bytes);
            let got = invoked.json()["predictions"][0].clone();
            // The last bits depend on the number of rows in the batch.
            assert!(alike(&got, row, Some(1e-6)), "{name} at {path}: {got}, not {row}");
        }
    }
    // The model was trained on the same digits, enlarged in another way.
    assert!(right >= 13, "{right} of 14: {rows:?}");
}

#[test]
fn grpc_sees_the_same_signature() {
    use prost::Message;
    use tensorserve_proto::serving::{
        GetModelMetadataRequest, ModelSpec, PredictRequest, PredictResponse,
    };
    use tensorserve_proto::{Form, tensor_from_proto, tensor_to_proto};
    use tensorserve_tensor::{Shape, StringsBuilder, Tensor};

    use crate::support::grpc::{Caller, PREDICT};

    let root = model("wide_mlp", PICTURES);
    let process = Process::serve(root.path(), &[]);
    let caller = Caller::connect(process.grpc()).expect("connects");
    let spec = Some(ModelSpec { name: "wide_mlp".to_owned(), ..ModelSpec::default() });
    let (name, bytes) = samples().swap_remove(3);
    let mut strings = StringsBuilder::default();
    strings.push(&bytes);
    let image = Tensor::from_strings(Shape::vector(1), strings).expect("a tensor");
    let image = tensor_to_proto(&image, Form::Content);
    let inputs = [("image_bytes".to_owned(), image)].into_iter().collect();
    let request = PredictRequest { model_spec: spec.clone(), inputs, ..PredictRequest::default() };
    let answer = caller.call(PREDICT, request.encode_to_vec()).expect("an answer");
    let answer = PredictResponse::decode(answer.as_slice()).expect("an answer");
    let digits = answer.outputs.get("digits").expect("digits");
    let digits = tensor_from_proto(digits).expect("a tensor");
    assert_eq!(digits.shape().dims(), [1, 3]);
    let first = digits.strings().expect("names").iter().next().expect("a name").to_vec();
    assert_eq!(String::from_utf8_lossy(&first), shown(&name));

    let metadata_field = vec!["signature_def".to_owned()];
    let request = GetModelMetadataRequest { model_spec: spec, metadata_field };
    let path = "/tensorflow.serving.PredictionService/GetModelMetadata";
    let answer = caller.call(path, request.encode_to_vec()).expect("an answer");
    let text = String::from_utf8_lossy(&answer);
    assert!(text.contains("image_bytes") && !text.contains("probabilities"), "{text}");
}

#[test]
fn outputs_of_a_model_that_decodes_by_itself_get_names() {
    let toml = "[[postprocess]]\nstep = \"labels\"\noutput = \"classes\"\nfile = \"names.txt\"\n\
                [[postprocess]]\nstep = \"top_k\"\noutput = \"probabilities\"\nk = 1\n";
    let root = model("digits", toml);
    let server = serve(&root);
    for (name, bytes) in samples() {
        let body = json!({"inputs": {"image_bytes": [b64(&bytes)]}}).to_string();
        let outputs = server.post("/v1/models/digits:predict", &body).json()["outputs"].clone();
        assert_eq!(outputs["classes"][0], shown(&name), "{outputs}");
        let best = outputs["probabilities_indices"][0][0].as_u64().expect("a number");
        assert_eq!(NAMES[best as usize], shown(&name), "{outputs}");
    }
}

#[test]
fn numbers_are_scaled_before_and_behind() {
    let toml = "[[preprocess]]\nstep = \"scale\"\nscale = 10\noffset = 2\n\
                [[postprocess]]\nstep = \"scale\"\nmean = 1\nstd = 0.5\n";
    let root = model("half_plus_two", toml);
    let server = serve(&root);
    // ((x * 10 + 2) / 2 + 2 - 1) / 0.5
    let answer = server.post("/v1/models/half_plus_two:predict", r#"{"instances": [1.0, 0, -2]}"#);
    assert_eq!(answer.json(), json!({"predictions": [14.0, 4.0, -16.0]}));
    let answer = server.post("/", r#"{"data": {"x": [1.0]}}"#);
    assert_eq!(answer.json(), json!({"y": [14.0]}));
}

#[test]
fn names_become_the_numbers_that_a_model_knows() {
    let tokens = |input: &str| {
        format!(
            "[[preprocess]]\nstep = \"tokens\"\ninput = \"{input}\"\nvocabulary = \"names.txt\"\n\
             split = \"none\"\nunknown = -1\n"
        )
    };
    let root = model("recommender", &(tokens("user_id") + &tokens("item_id")));
    let server = serve(&root);
    let plain = TestServer::of(&project("models/recommender"));
    let features = vec![0.5; 13];
    let ask = |server: &TestServer, user: Value, item: Value| {
        let body =
            json!({"inputs": {"user_id": [user], "item_id": [item], "features": [features]}});
        server.post("/v1/models/recommender:predict", body.to_string()).json()
    };
    for (user, item) in [(3, 9), (0, 5)] {
        let named = ask(&server, json!(NAMES[user].to_uppercase()), json!(NAMES[item]));
        assert!(named["outputs"].is_array(), "{named}");
        assert_eq!(named, ask(&plain, json!(user), json!(item)));
    }
    assert_eq!(ask(&server, json!("nobody"), json!("two")), ask(&plain, json!(-1), json!(2)));
}

/// A PNG of this size in one shade of grey: the file is much smaller than its pixels.
fn even(width: u32, height: u32, grey: u8) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().expect("a header");
    writer.write_image_data(&vec![grey; (width * height) as usize]).expect("pixels");
    writer.finish().expect("a complete file");
    file
}

#[test]
fn what_is_no_image_is_refused_with_its_place() {
    let root = model("wide_mlp", PICTURES);
    let process = Process::serve(root.path(), &[]);
    let (_, good) = samples().swap_remove(0);
    let predict = |files: &[&[u8]]| {
        let instances: Vec<Value> = files.iter().map(|file| b64(file)).collect();
        let body = json!({"instances": instances}).to_string();
        post(process.address, "/v1/models/wide_mlp:predict", body)
    };
    predict(&[&good]);
    predict(&[&good, b"no image"]).assert_refused(
        "text",
        400,
        "input \"image_bytes\", element 1: is not an image; expected a JPEG or PNG file",
    );
    // 65,500 pixels square: refused by its header, before memory for its pixels is reserved.
    let mut huge = even(1, 1, 0);
    huge[16..24].copy_from_slice(&[0, 0, 0xff, 0xdc, 0, 0, 0xff, 0xdc]);
    let mut crc = flate2::Crc::new();
    crc.update(&huge[12..29]);
    huge[29..33].copy_from_slice(&crc.sum().to_be_bytes());
    process.forget_peak();
    let before = process.peak();
    let refused = predict(&[&huge]);
    refused.assert_refused("huge", 400, "element 0: has 65500 x 65500 pixels; at most 50000000");
    let bomb = even(30_000, 2_000, 0);
    assert!(bomb.len() < 200_000, "{} bytes", bomb.len());
    predict(&[&bomb]).assert_refused("bomb", 400, "has 30000 x 2000 pixels");
    let uploaded = post_form(process.address, "/", &[("image", Some("x.png"), b"no image")]);
    assert_eq!(uploaded.status, 400, "{}", uploaded.text());
    assert!(uploaded.text().contains("is not an image"), "{}", uploaded.text());
    let grown = process.peak() - before;
    assert!(grown < 32 << 10, "{grown} kB for refused images");
    assert_eq!(predict(&[&good]).status, 200);
}

#[test]
fn a_large_image_holds_nobody_up() {
    let root = model("wide_mlp", PICTURES);
    let mut settings = settings();
    settings.server.http_threads = Some(1);
    settings.paths.push(root.path().to_owned());
    let server = TestServer::start(settings);
    server.wait_until_started();
    let body = json!({"instances": [b64(&even(7_000, 7_000, 0))]}).to_string();
    let (sent, is_done) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            sent.store(true, SeqCst);
            let answer = server.post("/v1/models/wide_mlp:predict", &body);
            is_done.store(true, SeqCst);
            assert_eq!(answer.status, 200, "{}", answer.text());
        });
        while !sent.load(SeqCst) {
            thread::yield_now();
        }
        // While its 49 million pixels are decoded, the only HTTP thread answers other requests.
        let (mut answered, mut slowest) = (0, Duration::ZERO);
        while !is_done.load(SeqCst) {
            let start = Instant::now();
            assert_eq!(get(server.address, "/healthz").status, 200);
            slowest = slowest.max(start.elapsed());
            answered += 1;
            pause_between_requests();
        }
        println!("{answered} answers meanwhile, the slowest in {slowest:?}");
        assert!(answered > 3, "{answered} answers");
    });
}

#[test]
fn images_of_many_clients_still_join() {
    let toml = "[[preprocess]]\nstep = \"image\"\nheight = 2\nwidth = 2\nchannels = \"grey\"\n\
                flatten = true\n[[preprocess]]\nstep = \"scale\"\nscale = 0.5\n";
    let place = Place::with(&[("models/m/1", Model::gated())], |settings, root| {
        fs::write(root.join("models/m/tensorserve.toml"), toml).expect("written");
        settings.server.num_batch_threads = Some(1);
        settings.server.inline_budget_micros = Some(0);
        settings.each.warm_up = Some(false);
        settings.batching.batching = Some("on".to_owned());
        settings.batching.max_batch_size = Some(4);
    });
    place.server.wait_until_started();
    let ask = |file: Vec<u8>| place.predict("m", &json!([b64(&file)]).to_string());
    let ask_grey = |grey: u8| {
        let answer = ask(even(3, 5, grey));
        let half = f64::from(grey) / 2.0;
        assert_eq!(answer.json(), json!({"predictions": [[half, half, half, half]]}));
    };
    thread::scope(|scope| {
        scope.spawn(|| ask_grey(0));
        place.wait_for_runs_at_gate(1);
        (1..=8).for_each(|grey: u8| drop(scope.spawn(move || ask_grey(grey * 10))));
        place.server.wait_until("all are in flight", |s| s.engine.metrics().in_flight_count() == 9);
        // A file that is not an image is refused at once, and is not part of a batch.
        ask(b"no image".to_vec()).assert_refused("text", 400, "element 0: is not an image");
        // A request counts as in flight a moment before it is queued.
        thread::sleep(Duration::from_millis(50));
        place.fake.runs_gate().open();
    });
    let rows = place.fake.rows();
    assert_eq!(rows.iter().sum::<i64>(), 9);
    assert!(rows.len() < 9, "no requests shared a batch: {rows:?}");
}

#[test]
fn recorded_requests_are_those_of_clients() {
    let root = tempfile::tempdir().expect("a directory");
    let model = root.path().join("wide_mlp");
    copy(&project("models/wide_mlp/1"), &model.join("1"));
    fs::write(model.join("1/tensorserve.toml"), PICTURES).expect("written");
    fs::write(model.join("1/names.txt"), NAMES.join("\n")).expect("written");
    let body = root.path().join("body.json");
    fs::write(&body, json!({"instances": [b64(&samples()[0].1)]}).to_string()).expect("written");
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let made = run(&["warmup", "record", &text(&model), &text(&body)]);
    assert!(made.status.success(), "{}{}", made.stdout, made.stderr);
    let checked = run(&["warmup", "check", &text(&model)]);
    assert!(checked.status.success(), "{}{}", checked.stdout, checked.stderr);
    let server = TestServer::of(&model);
    assert_eq!(server.get("/readyz").status, 200);
    // Without its steps the model takes no strings, and the recorded request fails the load.
    fs::remove_file(model.join("1/tensorserve.toml")).expect("removed");
    let checked = run(&["warmup", "check", &text(&model)]);
    assert!(!checked.status.success(), "{}", checked.stdout);
    // `inspect` shows the same signature that clients see.
    fs::write(model.join("tensorserve.toml"), PICTURES).expect("written");
    fs::write(model.join("names.txt"), NAMES.join("\n")).expect("written");
    let shown = run(&["inspect", &text(&model)]);
    assert!(
        shown.stdout.contains("image_bytes") && shown.stdout.contains("digits"),
        "{}",
        shown.stdout
    );
    assert!(!shown.stdout.contains("probabilities"), "{}", shown.stdout);
}

#[test]
fn a_file_that_is_wrong_fails_the_load_and_says_where() {
    for (toml, part) in [
        (
            "[[preprocess]]\nstep = \"resise\"\n",
            "tensorserve.toml line 1: \"resise\" is not a pre-processing step",
        ),
        (
            "[[preprocess]]\nstep = \"image\"\nheight = 28\nwidth = 28\n",
            "the model's \"x\" has the shape [?, 784], but image produces [..., 28, 28, 3]",
        ),
        (
            "\n[[postprocess]]\nstep = \"labels\"\noutput = \"probabilities\"\nfile = \"no.txt\"\n",
            "no.txt cannot be read",
        ),
    ] {
        let root = model("wide_mlp", toml);
        link(&project("models/half_plus_two/1"), &root.path().join("half_plus_two/1"));
        let mut settings = settings();
        settings.paths.push(root.path().to_owned());
        settings.server.max_load_retries = Some(0);
        let server = TestServer::start(settings);
        server.wait_until_started();
        let status = server.get("/v1/models/wide_mlp").text();
        // As escaped in JSON.
        assert!(status.contains(&part.replace('"', "\\\"")), "{part} is not in {status}");
        assert_eq!(server.get("/readyz").status, 503);
        server.assert_serves(toml);
    }
}
