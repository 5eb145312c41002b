//! Malformed and malicious image forms: each gets an error with the reason, and the server keeps
//! serving.

use std::fs;

use flate2::Crc;

use crate::support::client::{Answer, post_form, request};
use crate::support::project;
use crate::support::server::{TestServer, settings};

const KIND: &str = "multipart/form-data; boundary=b";

fn serve() -> TestServer {
    let mut settings = settings();
    for model in ["digits", "half_plus_two", "recommender"] {
        settings.paths.push(project("models").join(model));
    }
    settings.each.version_policy = Some("all".to_owned());
    let server = TestServer::start(settings);
    server.wait_until_started();
    server
}

fn image() -> Vec<u8> {
    fs::read(project("examples/images/digits/3_45.png")).expect("image")
}

fn post(server: &TestServer, kind: &str, body: &[u8]) -> Answer {
    request(server.address, "POST", "/", &[("Content-Type", kind)], body)
}

/// The headers of a part.
fn part(rest: &str) -> String {
    format!("--b\r\nContent-Disposition: form-data; {rest}\r\n\r\n")
}

#[test]
fn broken_framing() {
    let server = serve();
    let text = |rest: &str| part(rest).into_bytes();
    let file = text("name=\"image\"; filename=\"i.png\"");
    let not_closed = [&file, &image()[..]].concat();
    let model = [&text("name=\"model_name\"")[..], b"digits\r\n"].concat();
    let needs_file = "send a file in the field image or images";
    let cases: Vec<(&str, &str, Vec<u8>, &str)> = vec![
        ("no body", KIND, vec![], "it ends in part 1, before the closing boundary"),
        ("no fields", KIND, b"--b--\r\n".to_vec(), needs_file),
        ("no files", KIND, [&model[..], b"--b--\r\n"].concat(), needs_file),
        ("an empty file", KIND, [&file[..], b"\r\n--b--\r\n"].concat(), needs_file),
        ("no end", KIND, not_closed.clone(), "it ends in part 1, before the closing boundary"),
        (
            "no last two dashes",
            KIND,
            [&not_closed[..], b"\r\n--b\r\n"].concat(),
            "it ends in part 2, before the closing boundary",
        ),
        (
            "no boundary in the type",
            "multipart/form-data",
            not_closed.clone(),
            "its Content-Type declares no boundary",
        ),
        (
            "an empty boundary",
            "multipart/form-data; boundary=",
            not_closed.clone(),
            "declares no boundary",
        ),
        (
            "another boundary",
            "multipart/form-data; boundary=c",
            not_closed.clone(),
            "it ends in part 1, before the closing boundary",
        ),
        (
            "no form at all",
            KIND,
            b"{\"data\": {}}".to_vec(),
            "it ends in part 1, before the closing boundary",
        ),
        (
            "a part without a head",
            KIND,
            b"--b\r\n\r\nx\r\n--b--\r\n".to_vec(),
            "Invalid form-data: it",
        ),
        (
            "an invalid head",
            KIND,
            b"--b\r\n\x00\xff\r\n\r\nx\r\n--b--\r\n".to_vec(),
            "headers of part 1 cannot be read",
        ),
        (
            "a control character",
            KIND,
            [&text("name=\"image\"; filename=\"\u{1}\"")[..], b"x\r\n--b--\r\n"].concat(),
            "headers of part 1 cannot be read",
        ),
        (
            "half a head",
            KIND,
            b"--b\r\nContent-Dispo".to_vec(),
            "it ends in part 1, before the closing boundary",
        ),
    ];
    for (what, kind, body, text) in cases {
        post(&server, kind, &body).assert_refused(what, 400, text);
        server.assert_serves(what);
    }
}

#[test]
fn absurd_sizes() {
    let server = serve();
    let empty = part("name=\"x\"") + "\r\n";
    let end = "--b--\r\n";
    let long = "a".repeat(1_000_000);
    let header = format!("--b\r\nX: {long}\r\n\r\nx\r\n{end}");
    let headers = format!("--b\r\n{}\r\nx\r\n{end}", "X: y\r\n".repeat(10_000));
    let field = format!("{}{long}\r\n{end}", part("name=\"model_name\""));
    let name = format!("{}\r\n{end}", part(&format!("name=\"{long}\"")));
    let kind = format!("multipart/form-data; boundary={}", "b".repeat(60_000));
    let cases = [
        ("100,000 parts", KIND, empty.repeat(100_000) + end, "it has more than 1024 parts"),
        ("a huge header", KIND, header, "headers of part 1, or"),
        ("many headers", KIND, headers, "headers of part 1 cannot be read"),
        ("a huge name", KIND, name, "longer than 64 KiB"),
        ("a huge text", KIND, field, "field model_name is longer than 4096 bytes"),
        ("an endless boundary", KIND, format!("--{}", "b".repeat(1_000_000)), "longer than 64 KiB"),
        ("many half boundaries", KIND, "--b".repeat(300_000), "longer than 64 KiB"),
        ("a huge boundary", &kind, empty.clone() + end, "it ends in part"),
    ];
    for (what, kind, body, text) in cases {
        post(&server, kind, body.as_bytes()).assert_refused(what, 400, text);
        server.assert_serves(what);
    }
    // A preamble is valid, and so is a partial boundary within a file.
    let file = part("name=\"image\"").into_bytes();
    let body = [b"preamble\r\n".as_slice(), &file, &image(), b"\r\n--b--\r\nepilogue"].concat();
    let answer = post(&server, KIND, &body);
    // The form names none of the three models: an error about the model, not about the form.
    answer.assert_refused("a preamble", 400, "Invalid model name: default");
    let dashes = [&file[..], &b"\r\n--".repeat(200_000), b"\r\n--b--\r\n"].concat();
    let answer = post(&server, KIND, &dashes);
    answer.assert_refused("dashes", 400, "Invalid model name: default");
    server.assert_serves("forms of odd sizes");
}

/// The start of an image with 65,496 x 65,496 pixels: 4 GiB from a few bytes.
fn pixel_bomb() -> Vec<u8> {
    let size = 65_496_u32.to_be_bytes();
    let header = [&b"IHDR"[..], &size, &size, &[8, 0, 0, 0, 0]].concat();
    let mut checksum = Crc::new();
    checksum.update(&header);
    let start = b"\x89PNG\r\n\x1a\n\0\0\0\x0d";
    let data = [&b"\0\0\0\x64IDAT"[..], &[0; 104]].concat();
    [&start[..], &header, &checksum.sum().to_be_bytes(), &data].concat()
}

#[test]
fn wrong_fields() {
    let server = serve();
    let image = image();
    let file = ("image", Some("i.png"), image.as_slice());
    let broken = ("image", Some("i.png"), &image[..image.len() / 2]);
    let bomb = pixel_bomb();
    let bomb = ("image", Some("i.png"), bomb.as_slice());
    let text = |name, value: &'static str| (name, None, value.as_bytes());
    let digits = text("model_name", "digits");
    let cases = [
        (
            "no image",
            vec![("image", Some("i.png"), &b"text"[..]), digits],
            "Unknown image file format",
        ),
        ("a huge image", vec![bomb, digits], "PNG size too large"),
        ("half an image", vec![broken, digits], "Sess.run() fail because of"),
        (
            "one bad image of two",
            vec![file, ("images", None, &b"text"[..]), digits],
            "Unknown image",
        ),
        ("a model", vec![file, text("model_name", "nope")], "Invalid model name: nope"),
        ("a path", vec![file, text("model_name", "../digits")], "Invalid model name: ../digits"),
        ("a version", vec![file, digits, text("model_version", "7")], "Invalid model version: 7"),
        ("no version", vec![file, digits, text("model_version", "x")], "x is not a whole number"),
        ("a signature", vec![file, digits, text("signature_name", "nope")], "signature name: nope"),
        (
            "a model of floats",
            vec![file, text("model_name", "half_plus_two")],
            "its input is float, not string; send JSON",
        ),
        (
            "three inputs",
            vec![file, text("model_name", "recommender")],
            "it has 3 inputs, not one; send JSON",
        ),
        (
            "bytes for a name",
            vec![file, ("model_name", None, &b"\xff\xfe"[..])],
            "field model_name is not UTF-8 text",
        ),
        (
            "another field",
            vec![("picture", Some("i.png"), &image), digits],
            "in the field image or images",
        ),
    ];
    for (what, fields, text) in cases {
        post_form(server.address, "/", &fields).assert_refused(what, 400, text);
        server.assert_serves(what);
    }
}

/// File names are chosen by the client and must not reach the file system or the response.
#[test]
fn file_names_are_not_used() {
    let server = serve();
    let image = image();
    let here = fs::read_dir(".").expect("a directory").count();
    for name in ["../../x", "/etc/x", "..\\x", "é.png", "", "%2e%2e/x", "a;b"] {
        let fields =
            [("image", Some(name), image.as_slice()), ("model_name", None, &b"digits"[..])];
        let answer = post_form(server.address, "/", &fields);
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        assert_eq!(answer.json()["classes"], serde_json::json!([3]), "{name}");
        assert!(!answer.text().contains("etc"), "{name}");
    }
    assert_eq!(fs::read_dir(".").expect("a directory").count(), here);
    assert!(!std::path::Path::new("../../x").exists());
    server.assert_serves("file names");
}

/// Without this check, a compressed form would be reported as malformed.
#[test]
fn compressed_forms_are_refused_as_such() {
    let server = serve();
    let headers = [("Content-Type", KIND), ("Content-Encoding", "gzip")];
    let answer = request(server.address, "POST", "/", &headers, "--b--\r\n");
    answer.assert_refused("gzip", 415, "a form must not be compressed");
    server.assert_serves("a compressed form");
}
