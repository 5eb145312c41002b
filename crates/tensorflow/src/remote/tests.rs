//! Sessions that a server of TensorFlow runs (`session_target`).

use std::collections::HashMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use crate::ffi::TestServer;
use crate::*;
use tensorserve_platform::library::SearchFolder;
use tensorserve_platform::{RunOptions, synthetic_inputs};
use tensorserve_tensor::{Shape, Tensor, aligned_vec};

/// `ServerDef` of TensorFlow, as far as it is written here.
#[derive(Clone, PartialEq, prost::Message)]
struct ServerDef {
    #[prost(message, optional, tag = "1")]
    cluster: Option<ClusterDef>,
    #[prost(string, tag = "2")]
    job_name: String,
    #[prost(int32, tag = "3")]
    task_index: i32,
    #[prost(string, tag = "5")]
    protocol: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ClusterDef {
    #[prost(message, repeated, tag = "1")]
    job: Vec<JobDef>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct JobDef {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(map = "int32, string", tag = "2")]
    tasks: HashMap<i32, String>,
}

fn server_at(address: &str) -> Vec<u8> {
    let job = JobDef { name: "worker".to_owned(), tasks: [(0, address.to_owned())].into() };
    let definition = ServerDef {
        cluster: Some(ClusterDef { job: vec![job] }),
        job_name: "worker".to_owned(),
        task_index: 0,
        protocol: "grpc".to_owned(),
    };
    definition.encode_to_vec()
}

pub(crate) fn tensorflow(session_target: String) -> TensorFlow {
    tensorflow_with(session_target, 1)
}

/// With this setting of `intra_op_threads`.
pub(crate) fn tensorflow_with(session_target: String, intra_op_threads: i32) -> TensorFlow {
    let downloaded = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../lib");
    let named = std::env::var_os("TENSORSERVE_LIB_DIR").map(PathBuf::from);
    TensorFlow::new(TensorFlowConfig {
        library: std::env::var_os("TENSORSERVE_LIBTENSORFLOW").map(PathBuf::from),
        search: named.into_iter().chain([downloaded]).map(SearchFolder::from).collect(),
        custom_ops: Vec::new(),
        log_level: Some(2),
        is_alone_on_stderr: false,
        intra_op_threads,
        inter_op_threads: 1,
        session_target,
        gpu: GpuConfig {
            memory_fraction: 0.0,
            allow_growth: true,
            visible_devices: String::new(),
            cuda_visible_devices: None,
        },
    })
}

fn load(platform: &TensorFlow, model: &str) -> Result<Loaded> {
    let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models");
    platform.load(&models.join(model), &LoadOptions::default())
}

/// The floats of the first output, for these inputs, or for zeros.
fn run(loaded: &Loaded, x: Option<&[f32]>, timeout: Option<Duration>) -> Vec<f32> {
    let mut signatures = loaded.signatures.iter();
    let index = signatures.position(|it| it.name == "serving_default").expect("a signature");
    let inputs = match x {
        Some(x) => {
            let mut values = aligned_vec(x.len());
            values.extend_from_slice(x);
            vec![Tensor::from_vec(Shape::vector(x.len()), values).expect("a tensor")]
        }
        None => synthetic_inputs(&loaded.signatures[index], 2).expect("inputs"),
    };
    let options = RunOptions { threads: 1, timeout };
    let outputs = loaded.executable.run(index, &inputs, options).expect("runs");
    let floats = outputs.iter().find_map(|output| output.values::<f32>());
    floats.expect("an output of floats").to_vec()
}

#[test]
fn a_server_of_tensorflow_runs_the_models() {
    let here = tensorflow(String::new());
    let runtime = here.runtime().expect("the library");
    let file = here.library().expect("its file");
    let free = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
    TestServer::start(&runtime.api, &file, &server_at(&free.to_string())).expect("started");
    let there = tensorflow(format!("grpc://{free}"));

    let loaded = load(&there, "half_plus_two/1").expect("loads");
    for timeout in [None, Some(Duration::from_secs(60))] {
        assert_eq!(run(&loaded, Some(&[1.0, 2.0, 5.0]), timeout), [2.5, 3.0, 4.5]);
    }
    // Versions have variables of the same names, and each keeps its own.
    let versions = ["digits/1", "digits/2"];
    let expected = versions.map(|model| run(&load(&here, model).expect("loads"), None, None));
    assert_ne!(expected[0], expected[1]);
    let loaded = versions.map(|model| load(&there, model).expect("loads"));
    assert_eq!(loaded.each_ref().map(|version| run(version, None, None)), expected);
}

#[test]
fn a_server_that_does_not_answer_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
    let there = tensorflow(format!("grpc://{free}"));
    let error = load(&there, "half_plus_two/1").err().expect("nobody listens");
    assert!(error.message().contains(&free.to_string()), "{error}");
}
