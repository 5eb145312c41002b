//! Requests that are written to take much memory for few bytes: many small parts, nesting, sparse forms.

use super::echo::{DTYPES, SCORED};

/// The bytes of a request's repeated part, all together.
const BYTES: usize = 100_000;

/// As many of `part` as fit, with `separator` between them.
fn many(part: &str, separator: &str) -> String {
    let count = BYTES / (part.len() + separator.len()) + 1;
    vec![part; count].join(separator)
}

/// `part` with another number in place of each `#`.
fn numbered(part: &str, separator: &str) -> String {
    let count = BYTES / (part.len() + separator.len() + 4) + 1;
    let parts: Vec<String> = (0..count).map(|n| part.replace('#', &n.to_string())).collect();
    parts.join(separator)
}

/// Values of `instances`, `inputs` and the like.
fn values() -> Vec<String> {
    let one = [
        "1",
        "1.5",
        "[]",
        "[1]",
        "[[1]]",
        "[[]]",
        "{}",
        "null",
        "true",
        "\"a\"",
        "\"\"",
        "\"\\n\"",
        "[1,2]",
        "{\"b64\":\"\"}",
        "{\"b64\":\"YQ==\"}",
        "[\"a\"]",
        "[null]",
        "[true]",
        "{\"x\":1}",
        "{\"x\":[1]}",
        "{\"x\":\"a\",\"y\":1}",
        "{\"a\":1}",
        "{\"number\":1}",
        "{\"text\":\"a\"}",
        "{\"x\":{}}",
        "1e9",
    ];
    let mut all: Vec<String> = one.iter().map(|part| format!("[{}]", many(part, ","))).collect();
    all.extend(one.iter().map(|part| format!("[[{}]]", many(part, ","))));
    // One member in each row, or one row of many members; and lists of names.
    all.push(format!("[{}]", numbered("{\"c#\":1}", ",")));
    all.push(format!("[{{{}}}]", numbered("\"c#\":1", ",")));
    all.push(format!("[{},{{}},{{}}]", numbered("{\"c#\":\"\"}", ",")));
    all.push(format!("{{{}}}", numbered("\"c#\":1", ",")));
    all.push(format!("{{{}}}", numbered("\"c#\":[1]", ",")));
    for name in ["x", "data", "a", "inputs", "number", "text", "image"] {
        all.extend(
            ["1", "[1]", "\"a\"", "[]", "null", "{}"]
                .map(|part| format!("{{\"{name}\":[{}]}}", many(part, ","))),
        );
        all.push(format!("{{{}}}", many(&format!("\"{name}\":1"), ",")));
    }
    all.push(format!("{}1{}", "[".repeat(BYTES / 2), "]".repeat(BYTES / 2)));
    all.push("[".repeat(BYTES));
    all.push("{\"a\":".repeat(BYTES / 5));
    all.push(format!("[\"{}\"]", "\\u00e9".repeat(BYTES / 6)));
    all.push(format!("[\"{}\"]", "a".repeat(BYTES)));
    all.push(format!("[{{\"b64\":\"{}\"}}]", "A".repeat(BYTES)));
    all.push(format!("[{}", many("1", ",")));
    // Names that errors quote.
    let long = "n".repeat(BYTES);
    all.push(format!("{{\"{long}\":1}}"));
    all.push(format!("[{{\"{long}\":[1]}}]"));
    all.push(format!("[{{\"{long}\":{{}}}}]"));
    all.push(format!("[{{\"x\":\"{}\"}}]", "\\u0001".repeat(BYTES / 6)));
    all
}

/// Documents of `/v2/…/infer`.
fn v2_documents() -> Vec<String> {
    let input = |dtype: &str, shape: &str, data: &str| {
        format!("{{\"name\":\"x\",\"datatype\":\"{dtype}\",\"shape\":{shape},\"data\":{data}}}")
    };
    let mut all = Vec::new();
    for (dtype, one) in
        [("FP32", "1"), ("BYTES", "\"a\""), ("BOOL", "true"), ("INT8", "1"), ("FP16", "1")]
    {
        for data in ["[]".to_owned(), format!("[{one}]"), format!("[[{one}]]")] {
            all.push(format!("{{\"inputs\":[{}]}}", many(&input(dtype, "[1]", &data), ",")));
        }
        let values = many(one, ",");
        let count = values.split(',').count();
        let whole = input(dtype, &format!("[{count},1]"), &format!("[{values}]"));
        all.push(format!("{{\"inputs\":[{whole}]}}"));
        let rows = many(&format!("[{one}]"), ",");
        let whole = input(dtype, &format!("[{},1]", rows.split(',').count()), &format!("[{rows}]"));
        all.push(format!("{{\"inputs\":[{whole}]}}"));
    }
    let small = input("FP32", "[1,1]", "[1]");
    all.push(format!(
        "{{\"inputs\":[{small}],\"outputs\":[{}]}}",
        numbered("{\"name\":\"o#\"}", ",")
    ));
    all.push(format!(
        "{{\"inputs\":[{}]}}",
        numbered(&input("BYTES", "[1]", "[\"a\"]").replace("\"x\"", "\"x#\""), ",")
    ));
    let parameters = numbered("\"p#\":1", ",");
    all.push(format!("{{\"parameters\":{{{parameters}}},\"inputs\":[{small}]}}"));
    all.push(format!(
        "{{\"inputs\":[{}]}}",
        input("FP32", &format!("[{}]", many("1", ",")), "[1]")
    ));
    all
}

/// Texts of CSV and lines.
fn tables() -> Vec<String> {
    let mut all: Vec<String> =
        ["1", "a", "", "\"a\"", "1.5"].iter().map(|field| many(field, "\n")).collect();
    all.extend(["1", "a", "", "\"\"", "true"].map(|field| many(field, ",")));
    all.push(numbered("c#", ","));
    all.push(format!("{}\n1\n1\n1\n1", numbered("c#", ",")));
    all.push(format!("a,b,c,d\n{}", many("1", "\n")));
    all.push(format!("a\n{}", many("x", "\n")));
    all.push(many("{}", "\n"));
    all.push(many("[1]", "\n"));
    all.push(many("{\"instances\":[1]}", "\n"));
    all.push(many("0 1:1", "\n"));
    all.push(format!("0 {}", numbered("#:1", " ")));
    all.push(format!("0 999999:1\n{}", many("0", "\n")));
    all
}

/// The content types of `/invocations`.
const KINDS: [&str; 9] = [
    "text/csv",
    "application/json",
    "application/jsonlines",
    "application/jsons",
    "text/libsvm",
    "application/x-npy",
    "application/x-tfexample",
    "application/x-image",
    "application/x-recordio-protobuf",
];

fn with_first(first: usize, body: &[u8]) -> Vec<u8> {
    let mut input = vec![u8::try_from(first).unwrap_or(0)];
    input.extend_from_slice(body);
    input
}

/// An array in NumPy's format that declares this type and shape.
fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    header.extend(std::iter::repeat_n(' ', 117 - header.len()));
    header.push('\n');
    [&b"\x93NUMPY\x01\x00\x76\x00"[..], header.as_bytes(), data].concat()
}

/// Fields of protocol buffers: `depth` messages in field 1, the innermost repeated.
fn nested_fields(tags: &[u8], inner: &[u8]) -> Vec<u8> {
    let mut message = inner.repeat(BYTES / inner.len().max(1));
    for tag in tags.iter().rev() {
        let mut outer = vec![*tag];
        prost::encoding::encode_varint(message.len() as u64, &mut outer);
        outer.extend_from_slice(&message);
        message = outer;
    }
    message
}

/// Messages with many small parts, whatever they are.
fn messages() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for inner in [
        &b"\x0a\x00"[..],
        b"\x12\x00",
        b"\x1a\x00",
        b"\x2a\x00",
        b"\x2a\x02\x0a\x00",
        b"\x12\x02\x0a\x00",
        b"\x08\x01",
        b"\x42\x00",
    ] {
        for tags in [
            &b""[..],
            b"\x0a",
            b"\x12",
            b"\x0a\x0a",
            b"\x12\x0a",
            b"\x12\x12",
            b"\x2a\x2a",
            b"\x0a\x0a\x0a",
        ] {
            all.push(nested_fields(tags, inner));
        }
    }
    all
}

/// Inputs of the target `name`.
#[must_use]
pub fn inputs(name: &str) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    match name {
        "predict" => {
            for member in ["instances", "inputs"] {
                for value in values() {
                    let body = format!("{{\"{member}\":{value}}}");
                    // Floats, integers, booleans, strings, and the model of two inputs.
                    let models = [0, 5, 12, 13, DTYPES.len()];
                    all.extend(models.map(|model| with_first(model, body.as_bytes())));
                }
            }
        }
        "open_inference" => {
            for document in v2_documents() {
                let body = format!("\n\n{document}");
                all.extend(
                    [0, 4, 12, 13, DTYPES.len()].map(|model| with_first(model, body.as_bytes())),
                );
            }
        }
        "classify" => {
            for value in values() {
                for body in [
                    format!("{{\"examples\":{value}}}"),
                    format!("{{\"context\":{value},\"examples\":[{{}}]}}"),
                ] {
                    all.extend([0, 1].map(|method| with_first(method, body.as_bytes())));
                }
            }
        }
        "invocations" => {
            let bodies = values().into_iter().map(|value| format!("{{\"instances\":{value}}}"));
            let texts: Vec<String> = tables().into_iter().chain(bodies).chain(values()).collect();
            for kind in KINDS {
                for model in ["float", "string", "examples", "records"] {
                    let head = format!(
                        "content-type: {kind}\nx-amzn-sagemaker-custom-attributes: tfs-model-name={model}\n\n"
                    );
                    for text in texts
                        .iter()
                        .filter(|text| kind.contains("json") == text.starts_with(['[', '{']))
                    {
                        all.push(with_first(0, &[head.as_bytes(), text.as_bytes()].concat()));
                    }
                    if kind.contains("npy") {
                        let arrays = [
                            npy("<f4", "(1073741824, 0)", b""),
                            npy("|b1", "(100000,)", &[1; BYTES]),
                            npy("|S1", "(100000,)", &[b'a'; BYTES]),
                            npy("<U1", "(25000,)", &b"a\0\0\0".repeat(BYTES / 4)),
                        ];
                        all.extend(
                            arrays
                                .iter()
                                .map(|body| with_first(0, &[head.as_bytes(), body].concat())),
                        );
                    }
                    if kind.contains("tfexample") || kind.contains("protobuf") {
                        all.extend(
                            messages()
                                .iter()
                                .map(|body| with_first(0, &[head.as_bytes(), body].concat())),
                        );
                    }
                }
            }
        }
        "scoring" => {
            for (model, _) in SCORED.iter().enumerate() {
                for value in values() {
                    for body in [
                        format!("{{\"instances\":{value}}}"),
                        format!("{{\"inputs\":{value}}}"),
                        format!("{{\"dataframe_records\":{value}}}"),
                        format!("{{\"dataframe_split\":{{\"data\":{value}}}}}"),
                        format!("{{\"dataframe_split\":{{\"columns\":{value},\"data\":[[1]]}}}}"),
                    ] {
                        all.push(with_first(
                            model,
                            format!("application/json\n\n{body}").as_bytes(),
                        ));
                    }
                }
                for table in tables() {
                    all.push(with_first(model, format!("text/csv\n\n{table}").as_bytes()));
                }
            }
        }
        "simple" => {
            for value in values() {
                for body in [format!("\"data\":{value}}}"), format!("\"data\":{{\"x\":{value}}}}}")]
                {
                    all.extend(
                        [0, 5, 12, 13, 16, 17, 18, 19, 20]
                            .map(|model| with_first(model, body.as_bytes())),
                    );
                }
            }
        }
        "multipart" => {
            let head = "--b\r\nContent-Disposition: form-data; ";
            for many in [many("a=b", ";"), many("name=\"x", "\""), "\\\"".repeat(BYTES / 4)] {
                all.push(format!("{head}name=\"{many}\"\r\n\r\nx\r\n--b--\r\n").into_bytes());
                let many = many.get(..BYTES / 2).unwrap_or(&many);
                all.push(format!("{head}{many}; name=\"a\"\r\n\r\nx\r\n--b--\r\n").into_bytes());
            }
            let part = "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nx\r\n";
            all.push(format!("{}--b--\r\n", many(part, "")).into_bytes());
            all.push(
                format!(
                    "--b\r\nContent-Disposition: form-data; name=\"{}\"\r\n\r\nx\r\n--b--\r\n",
                    "n".repeat(BYTES)
                )
                .into_bytes(),
            );
        }
        "routes" => {
            for members in [numbered("\"p#\":{}", ","), numbered("\"p#\":{\"a\":0}", ",")] {
                let body = format!("POST /v2/repository/index\n\n{{{members}}}");
                all.push(with_first(0, body.as_bytes()));
            }
        }
        "request_messages" => {
            for message in messages() {
                all.extend((0..7).map(|method| with_first(method, &message)));
            }
        }
        "infer_messages" => all.extend(messages()),
        _ => {}
    }
    all
}
