//! gRPC messages that are malformed, inconsistent or far too large: each gets a gRPC status, takes
//! little memory, and the server keeps serving.

use prost::Message;
use tensorserve_proto::tensorflow::tensor_shape_proto::Dim;
use tensorserve_proto::tensorflow::{TensorProto, TensorShapeProto};
use tonic::Code;

use crate::support::grpc::{Caller, PREDICT, half_plus_two};
use crate::support::process::Process;
use crate::support::project;
use crate::support::{data, link};

const MULTI: &str = "/tensorflow.serving.PredictionService/MultiInference";

fn serve() -> (Process, tempfile::TempDir) {
    let root = tempfile::tempdir().expect("temporary directory");
    link(&project("models/half_plus_two"), &root.path().join("half_plus_two"));
    let echo = data("tensorflow-serving/generated/echo_string");
    link(&echo, &root.path().join("echo_string"));
    (Process::serve(root.path(), &[]), root)
}

/// A request for `half_plus_two` with a changed input.
fn with_input(change: impl FnOnce(&mut TensorProto)) -> Vec<u8> {
    let mut request = half_plus_two();
    change(request.inputs.get_mut("x").expect("an input"));
    request.encode_to_vec()
}

fn with_shape(dims: &[i64], unknown_rank: bool) -> Vec<u8> {
    let dim = dims.iter().map(|&size| Dim { size, name: String::new() }).collect();
    with_input(|x| x.tensor_shape = Some(TensorShapeProto { dim, unknown_rank }))
}

/// A length-delimited Protobuf field.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    prost::encoding::encode_varint(content.len() as u64, &mut out);
    out.extend_from_slice(content);
    out
}

/// A request whose only input is an encoded `TensorProto`.
fn raw_input(model: &str, tensor: &[u8]) -> Vec<u8> {
    let entry = [field(1, b"x"), field(2, tensor)].concat();
    [field(1, &field(1, model.as_bytes())), field(2, &entry)].concat()
}

#[test]
fn each_gets_a_typed_answer() {
    let (process, _root) = serve();
    let caller = Caller::connect(process.grpc()).expect("connects");
    let half = half_plus_two().encode_to_vec();
    let raw = |tensor: &[u8]| raw_input("half_plus_two", tensor);
    let float = [8, 1];
    let with = |more: &[u8]| raw(&[&float, more].concat());
    // Groups that are opened and never closed.
    let unknown_group = vec![0x9b; 1];
    let groups = [0x9b, 0x06].repeat(100_000);
    let malformed = [
        ("noise", b"{\"instances\": [1.0]}".to_vec()),
        ("half a message", half[..half.len() - 1].to_vec()),
        ("a length of 2 GiB", [&half[..], &[0x12, 0xff, 0xff, 0xff, 0xff, 0x07]].concat()),
        ("a length without end", [&half[..], &[0x12], &[0xff; 12]].concat()),
        ("packed floats that end early", with(&[0x2a, 16, 0, 0, 128, 63])),
        ("packed floats cut in two", with(&[0x2a, 3, 0, 0, 128])),
        ("packed integers without end", with(&[0x3a, 3, 0xff, 0xff, 0xff])),
        ("packed booleans that end early", with(&[0x5a, 0x7f, 1])),
        ("strings that end early", with(&[0x42, 0x7f, b'a'])),
        ("floats as a varint", with(&[0x28, 1])),
        ("a group without end", [&half[..], &unknown_group].concat()),
        ("groups in groups", [&half[..], &groups].concat()),
        ("a name that is not UTF-8", field(1, &field(1, b"\xff"))),
    ];
    for (what, message) in malformed {
        let status = caller.call(PREDICT, message).expect_err(what);
        assert_eq!(status.code(), Code::Internal, "{what}: {status}");
        assert!(status.message().contains("decode Protobuf"), "{what}: {status}");
    }
    let invalid = [
        ("fewer bytes than the shape", with_shape(&[4], false), "12 bytes do not make"),
        ("more bytes than the shape", with_shape(&[2], false), "12 bytes do not make"),
        ("a product that overflows", with_shape(&[1 << 62, 4], false), "too many elements"),
        ("a product of bytes that overflows", with_shape(&[1 << 62], false), "do not make"),
        ("a negative dimension", with_shape(&[-1, -3], false), "negative"),
        ("an unknown rank", with_shape(&[], true), "unknown rank"),
        ("too many dimensions", with_shape(&[1; 300], false), "300 dimensions"),
        ("no such type", with_input(|x| x.dtype = 99), "unsupported type 99"),
        ("no type", with_input(|x| x.dtype = 0), "unsupported type 0"),
        ("a resource", with_input(|x| x.dtype = 20), "unsupported type 20"),
        (
            "gigabytes of one value",
            with(&[0x12, 8, 0x12, 6, 8, 0x80, 0x80, 0x80, 0x80, 0x10]),
            "too large",
        ),
    ];
    for (what, message, text) in invalid {
        let status = caller.call(PREDICT, message).expect_err(what);
        assert_eq!(status.code(), Code::InvalidArgument, "{what}: {status}");
        assert!(status.message().contains(text), "{what}: {text:?} is not in {status}");
    }
    caller.half_plus_two().expect("server responds");
}

#[test]
fn much_in_few_bytes_takes_little_memory() {
    let (process, _root) = serve();
    let caller = Caller::connect(process.grpc()).expect("connects");
    caller.half_plus_two().expect("an answer");
    process.forget_peak();
    let before = process.peak();
    let dims = field(2, &[0x12, 0].repeat(10 << 20));
    let cases = [
        ("tasks", MULTI, [0x0a, 0].repeat(10 << 20)),
        ("inputs", PREDICT, {
            let names = 0..4_u32 << 20;
            names.flat_map(|n| field(2, &field(1, &n.to_be_bytes()))).collect()
        }),
        ("dimensions", PREDICT, raw_input("half_plus_two", &dims)),
    ];
    for (what, path, message) in cases {
        let status = caller.call(path, message).expect_err(what);
        assert_eq!(status.code(), Code::ResourceExhausted, "{what}: {status}");
        caller.half_plus_two().expect("server responds");
    }
    let too_long = vec![0; (64 << 20) + 1];
    let status = caller.call(PREDICT, too_long).expect_err("too long");
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    let status = caller.call_with_gzip(PREDICT, vec![0; 1 << 30]).expect_err("a gzip bomb");
    println!("a gzip bomb: {status}");
    let grown = (process.peak() - before) / 1024;
    println!("memory growth {grown} MB");
    // Room for a message of the maximum size, compressed and inflated.
    assert!(grown < 300, "{grown} MB");
    caller.half_plus_two().expect("server responds");
}

#[test]
fn five_million_short_strings_are_answered_in_bounded_memory() {
    const COUNT: usize = 5_000_000;
    let (process, _root) = serve();
    let caller = Caller::connect(process.grpc()).expect("connects");
    caller.half_plus_two().expect("an answer");
    process.forget_peak();
    let before = process.peak();
    let mut shape = vec![8];
    prost::encoding::encode_varint(COUNT as u64, &mut shape);
    let shape = field(2, &field(2, &shape));
    let strings = [0x42, 1, b'a'].repeat(COUNT);
    let tensor = [&[8, 7][..], &shape, &strings].concat();
    let answer = caller.call(PREDICT, raw_input("echo_string", &tensor)).expect("an answer");
    assert!(answer.len() > strings.len());
    let grown = (process.peak() - before) / 1024;
    println!("{COUNT} strings in a message of {} MB took {grown} MB", strings.len() >> 20);
    assert!(grown < 640, "{grown} MB");
    caller.half_plus_two().expect("server responds");
}
