//! Cases from TensorFlow Serving's own tests that need a process: models, directories, queues.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::support::client::{get, post};
use crate::support::model_server::{
    HALF_PLUS_THREE, HALF_PLUS_TWO, Place, UPSTREAM, base_path, list, listed, write_list,
};
use crate::support::{data, link};

/// The version numbers and states of a model, the newest first.
fn versions(place: &Place, model: &str) -> Vec<(String, String)> {
    let status = get(place.process.address, &format!("/v1/models/{model}")).json();
    let all = status["model_version_status"].as_array().cloned().unwrap_or_default();
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    all.iter().map(|v| (text(&v["version"]), text(&v["state"]))).collect()
}

fn available(place: &Place, model: &str) -> Vec<String> {
    let ready = versions(place, model).into_iter().filter(|(_, state)| state == "AVAILABLE");
    ready.map(|(version, _)| version).collect()
}

#[test]
fn a_list_is_read_once_unless_asked_to_poll() {
    let flags =
        ["--model_config_file=ROOT/models.config", "--model_config_file_poll_wait_seconds=0"];
    let place = Place::start(&flags, |root| {
        write_list(root, &list(&[listed("m", &data(HALF_PLUS_TWO), "")]));
    });
    assert_eq!(place.value("m"), Some(2.5));
    place.write_list(&list(&[listed("m", &data(HALF_PLUS_THREE), "")]));
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(place.value("m"), Some(2.5));
}

#[test]
fn arguments_of_another_grpc_library_do_no_harm() {
    let arguments = "--grpc_channel_arguments=grpc.max_concurrent_streams=2000,\
                     grpc.max_connection_age_ms=2000,grpc.keepalive_timeout_ms=50";
    let place = Place::start(&[&base_path(HALF_PLUS_TWO), arguments], |_| ());
    assert_eq!(place.value("default"), Some(2.5));
    assert!(place.log().contains("--grpc_channel_arguments is ignored"), "{}", place.log());
}

#[test]
fn policies_choose_versions() {
    let two = data(&format!("{UPSTREAM}/saved_model_half_plus_two_2_versions"));
    let policies = [
        ("none", ""),
        ("latest", "model_version_policy { latest { num_versions: 2 } }"),
        ("all", "model_version_policy { all {} }"),
        ("specific", "model_version_policy { specific { versions: 123 } }"),
        ("missing", "model_version_policy { specific { versions: [124, 7] } }"),
    ];
    let place = Place::start(&["--model_config_file=ROOT/models.config"], |root| {
        let models: Vec<String> =
            policies.iter().map(|(name, policy)| listed(name, &two, policy)).collect();
        write_list(root, &list(&models));
    });
    for (name, want) in [
        ("none", &["124"][..]),
        ("latest", &["124", "123"]),
        ("all", &["124", "123"]),
        ("specific", &["123"]),
        ("missing", &["124"]),
    ] {
        assert_eq!(available(&place, name), want, "{name}: {}", place.log());
    }
    assert!(place.log().contains("model missing: version 7 not found"), "{}", place.log());
}

#[test]
fn of_two_folders_with_one_number_one_serves_and_others_are_no_versions() {
    let place = Place::start(&["--model_base_path=ROOT/m"], |root| {
        link(&data(HALF_PLUS_TWO).join("00000123"), &root.join("m/001"));
        link(&data(HALF_PLUS_THREE).join("00000123"), &root.join("m/1"));
        link(&data(HALF_PLUS_THREE).join("00000123"), &root.join("m/2.copy"));
        link(&data(HALF_PLUS_THREE).join("00000123"), &root.join("m/next"));
    });
    assert_eq!(available(&place, "default"), ["1"]);
    // As in TensorFlow Serving, the last name in byte order wins.
    assert_eq!(place.value("default"), Some(3.5));
}

#[test]
fn a_version_whose_folder_is_renamed_is_another_version() {
    let place = Place::start(&["--model_base_path=ROOT/m"], |root| {
        link(&data(HALF_PLUS_TWO).join("00000123"), &root.join("m/1"));
    });
    assert_eq!(available(&place, "default"), ["1"]);
    let folder = place.root.path().join("m");
    std::fs::rename(folder.join("1"), folder.join("2")).expect("renamed");
    place.wait_until("version 2 serves", |place| available(place, "default") == ["2"]);
    assert_eq!(place.value("default/versions/1"), None);
    assert_eq!(place.value("default/versions/2"), Some(2.5));
}

fn write_batching(root: &Path, text: &str) {
    std::fs::write(root.join("batching"), text).expect("written");
}

const BATCHING: [&str; 2] = ["--enable_batching", "--batching_parameters_file=ROOT/batching"];

#[test]
fn a_full_queue_refuses_in_the_words_people_know() {
    let model = base_path("tensorflow-serving/generated/slow_add_zero");
    let flags = [model.as_str(), BATCHING[0], BATCHING[1]];
    let place = Place::start(&flags, |root| {
        write_batching(
            root,
            "max_batch_size { value: 1 } max_enqueued_batches { value: 1 }
             num_batch_threads { value: 1 }",
        );
    });
    let address = place.process.address;
    let (answered, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let path = "/v1/models/default:predict";
                let answer = post(address, path, r#"{"instances": [[1.0]]}"#);
                if answer.status == 200 {
                    answered.fetch_add(1, Relaxed);
                    assert_eq!(answer.json(), json!({"predictions": [[1.0]]}));
                    return;
                }
                let text = "The batch scheduling queue to which this task was submitted is full";
                answer.assert_refused("too many at once", 503, text);
                refused.fetch_add(1, Relaxed);
            });
        }
    });
    let (answered, refused) = (answered.into_inner(), refused.into_inner());
    assert!(answered >= 1 && refused >= 1, "{answered} answered, {refused} refused");
    // The queue accepts requests again.
    let answer = post(address, "/v1/models/default:predict", r#"{"instances": [[1.0]]}"#);
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn batches_of_matrices_give_everybody_their_own() {
    let model = base_path("tensorflow-serving/upstream/batching/matrix_half_plus_two");
    let flags = [model.as_str(), BATCHING[0], BATCHING[1]];
    for padding in [false, true] {
        let place = Place::start(&flags, |root| {
            write_batching(
                root,
                &format!(
                    "max_batch_size {{ value: 4 }} batch_timeout_micros {{ value: 2000 }}
                     num_batch_threads {{ value: 1 }} allowed_batch_sizes: [2, 4]
                     pad_variable_length_inputs: {padding}"
                ),
            );
        });
        let address = place.process.address;
        thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || {
                    for rows in 1..=4 {
                        let value = f64::from(number * 10 + rows);
                        let matrices = |value: f64| {
                            let rows = usize::try_from(rows).expect("in range");
                            json!(vec![vec![vec![value; 3]; 3]; rows])
                        };
                        let body = json!({"instances": matrices(value)}).to_string();
                        let answer = post(address, "/v1/models/default:predict", body);
                        assert_eq!(answer.status, 200, "{}", answer.text());
                        let want = json!({"predictions": matrices(value / 2.0 + 2.0)});
                        assert_eq!(answer.json(), want);
                    }
                });
            }
        });
        let body = json!({"instances": vec![vec![vec![1.0; 3]; 3]; 5]}).to_string();
        let answer = post(address, "/v1/models/default:predict", body);
        let text = "Task size 5 is larger than maximum input batch size 4";
        answer.assert_refused("5 rows", 400, text);
    }
}

#[test]
fn of_several_mistakes_the_first_check_speaks() {
    let place = Place::start(&[&base_path(HALF_PLUS_TWO)], |_| ());
    let ask = |target: &str, body: &str| {
        let answer = post(place.process.address, &format!("/v1/models/{target}"), body);
        (answer.status, answer.error())
    };
    // The order of the checks: path, body, model, signature, values.
    let cases = [
        ("none:predicts", "{", 400, "Malformed request: POST /v1/models/none:predicts"),
        ("none:predict", "{", 400, "JSON Parse error: Missing a name for object member."),
        ("none:predict", r#"{"signature_name": "none"}"#, 404, "Latest(none)"),
        ("default:predict", r#"{"signature_name": "none"}"#, 400, "\"none\" not found"),
        ("default:predict", "{}", 400, "Missing 'inputs' or 'instances' key"),
        ("default/versions/9:predict", "{}", 404, "Specific(default, 9)"),
        ("default/labels/x:predict", "{}", 400, "Unrecognized servable version label: x"),
        ("none:classify", "{}", 400, "key 'examples' is expected"),
    ];
    for (target, body, status, part) in cases {
        let (got, error) = ask(target, body);
        assert_eq!(got, status, "{target} {body}: {error}");
        assert!(error.contains(part), "{target} {body}: {part:?} is not in {error:?}");
    }
}
