"""Writes the seeds of the fuzz targets into FOLDER/TARGET: cases and small models of the tests.

    python3 fuzz/seeds.py FOLDER

`scripts/fuzz.py TARGET minimize` then keeps those that reach different code.
"""

import base64
import gzip
import hashlib
import io
import json
import pathlib
import re
import struct
import sys
import tarfile
import zipfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASES = ROOT / "tests/cases"
DATA = ROOT / "tests/data"
PLATFORMS = DATA / "platforms"

# The longest seed: mutations of longer ones seldom reach what matters.
LONGEST = 12_000
# The longest of those of which there are many.
SHORT = 2_500
# The most bytes of a target's seeds together.
MOST = 120_000

# The order of `DTYPES` in src/echo.rs.
DTYPES = [
    *("float", "double", "half", "bfloat16", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool", "string", "complex64", "complex128"),
]
# The Open Inference Protocol's names of those that it has.
DATATYPES = [
    *("FP32", "FP64", "FP16", "BF16", "INT8", "INT16", "INT32", "INT64"),
    *("UINT8", "UINT16", "UINT32", "UINT64", "BOOL", "BYTES"),
]
SEPARATOR = b"\n----\n"
# One PMML file of each kind, before the smallest ones.
PMML_KINDS = [
    *("bayes", "functions", "vectors_pairs", "vectors_coefficients", "rules_weightedSum"),
    *("nearest_weightedMajorityVote", "clusters_affinity", "reasons_pointsAbove", "general_cox"),
    *("ordinal_logit", "anomaly_iforest", "anomaly_clusters", "display"),
]


# Beginnings of files in formats that are not served, and folders of them.
FOREIGN = [
    ("config.json", b'{"architectures": ["BertForSequenceClassification"]}'),
    ("model.safetensors", b'\x10\0\0\0\0\0\0\0{"a": {}}       '),
    ("adapter_config.json", b"{}"),
    ("model_index.json", b"{}"),
    ("a.xml", b'<?xml version="1.0"?>\n<net name="a" version="11">\n\t<layers>'),
    ("a.bin", b""),
    ("a.pdmodel", b"x"),
    ("a.pdiparams", b"x"),
    ("a.h5", b"\x89HDF\r\n\x1a\n"),
    ("a.gguf", b"GGUF\3\0\0\0"),
    ("a.ort", b"\x20\0\0\0ORTM"),
    ("a.json", b'{\n "irVersion": "8",'),
    ("model.plan", b"ptrt"),
    ("a.zip", b"PK\3\4"),
    ("a.onnx", b"version https://git-lfs.github.com/spec/v1\n"),
]


class Seeds:
    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.sizes: dict[str, int] = {}

    def add(self, target: str, content: bytes) -> None:
        size = self.sizes.get(target, 0) + len(content)
        if len(content) > LONGEST or size > MOST:
            return
        self.sizes[target] = size
        folder = self.folder / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / hashlib.sha1(content).hexdigest()).write_bytes(content)

    def smallest(self, target: str, contents: list[bytes]) -> None:
        for content in sorted(contents, key=len):
            self.add(target, content)


def files_of(archive: pathlib.Path) -> bytes:
    """The files of an archive in the form of the target `h2o`."""
    with zipfile.ZipFile(archive) as files:
        names = [name for name in files.namelist() if not name.endswith("_aux.bin")]
        return SEPARATOR.join(name.encode() + b"\n" + files.read(name) for name in names)


def torch_files_of(archive: pathlib.Path) -> bytes:
    """The source texts of a file of PyTorch, and the names of its other files."""
    with zipfile.ZipFile(archive) as files:
        texts = {name for name in files.namelist() if name.endswith((".py", ".cpp", ".json"))}
        names = [name for name in files.namelist() if "/data/" not in name or name in texts]
        libraries = [name for name in files.namelist() if name.endswith(".so")]
        content = {name: files.read(name) if name in texts else b"" for name in names + libraries}
        return SEPARATOR.join(name.encode() + b"\n" + text for name, text in content.items())


def cases(name: str):
    return json.loads((CASES / f"{name}.json").read_text())


def text_of(body) -> bytes:
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def json_seeds(seeds: Seeds) -> None:
    for case in cases("tensorflow-serving"):
        body = (case.get("request_body") or "").encode()
        method = case["path"].rpartition(":")[2]
        line = f"{case['method']} {case['path'].replace(case['model'], 'float')}\n\n".encode()
        seeds.add("routes", b"\0" + line + body)
        if not body or len(body) > 2000:
            continue
        seeds.add("json", body)
        if method == "predict":
            seeds.add("predict", b"\0" + body)
            seeds.add("predict", b"\x0d" + body)
        elif method in ("classify", "regress"):
            seeds.add("classify", bytes([method == "regress"]) + body)
    values = ["[[1, 2.5], [-3e4, 0.1]]", "[true, false]", '["a", {"b64": "AAEC"}]', "7", "[[], []]"]
    values += ["[18446744073709551615, 0]", "[-9223372036854775808]", '["\\u00e9\\ud83d\\ude00"]']
    for number in range(len(DTYPES)):
        for value in values:
            seeds.add("json_tensor", bytes([number]) + value.encode())
            seeds.add("json_tensor", bytes([number + len(DTYPES)]) + value.encode())
        row = json.dumps({"signature_name": "serving_default", "instances": [[1, 0], [0, 1]]})
        seeds.add("predict", bytes([number]) + row.encode())
        seeds.add("predict", bytes([number]) + b'{"inputs": [[1, 0], [0, 1]]}')
        seeds.add("simple", bytes([number]) + b'"data": {"x": [[1, 0], [0, 1]]}}')
    two = {"instances": [{"x": [1, 2], "y": "a"}, {"x": [3, 4], "y": {"b64": "AAE="}}]}
    seeds.add("predict", bytes([16]) + json.dumps(two).encode())
    examples = {
        "signature_name": "serving_default",
        "context": {"b": 7},
        "examples": [{"a": 1.5, "s": "t"}, {"a": [2, 3], "i": [1, 2], "s": [{"b64": "AAE="}]}],
    }
    seeds.add("classify", b"\0" + json.dumps(examples).encode())
    examples["signature_name"] = "regression"
    seeds.add("classify", b"\1" + json.dumps(examples).encode())
    for case in cases("simple-tensorflow-serving")["cases"]:
        body = case.get("request_body")
        if case.get("method") == "POST" and isinstance(body, dict) and "data" in body:
            members = {key: value for key, value in body.items() if key != "model_name"}
            seeds.add("simple", b"\0" + json.dumps(members).encode()[1:])
    data = [
        (16, {"x": [[1, 2]], "y": ["a"]}),
        (17, {"inputs": ["a", "b"]}),
        (18, {"image": ["YQ=="]}),
        (19, {"data": [[1, 2, 3, 4, 5, 6, 7, 8]]}),
        (19, {"ids": [0, 7], "values": [1.5, 2], "max_ids": 8}),
        (20, {"number": [1, 2], "text": ["a", "b"]}),
        (20, {"text": ["a", "b"]}),
    ]
    for model, value in data:
        seeds.add("simple", bytes([model]) + b'"data": ' + json.dumps(value).encode() + b"}")
    for path in (
        "/",
        "/v1/models/two/metadata",
        "/v1/models/float",
        "/ping",
        "/health",
        "/metrics",
    ):
        seeds.add("routes", b"\0" + f"GET {path}\n".encode())
        seeds.add("routes", b"\3" + f"GET {path}\n".encode())
    for path in ("/generate_clients?language=python&model_name=two", "/gen_json?model_name=two"):
        seeds.add("routes", b"\3" + f"GET /v1/models/two{path}\n".encode())
        seeds.add("routes", b"\3" + f"GET {path}\n".encode())


def invocation_seeds(seeds: Seeds) -> None:
    def add(content_type: str, body: bytes, *headers: str) -> None:
        lines = [f"content-type: {content_type}", *headers]
        seeds.add("invocations", b"\0" + "\n".join(lines).encode() + b"\n\n" + body)

    vectors = cases("sagemaker-conversion")
    for vector in vectors["conversion"]:
        add(vector["content_type"] or "text/csv", text_of(vector["body"]))
    attributes = "x-amzn-sagemaker-custom-attributes: "
    for vector in vectors["custom_attributes"]:
        add("application/json", b'{"instances": [[1]]}', attributes + (vector["header"] or ""))
    for vector in vectors["accept"]:
        add("text/csv", b"1,2\n3,4\n", f"accept: {vector['accept']}")
    for accept in ("text/csv", "application/jsonlines", "application/x-npy"):
        for name in ("two", "string", "int64", "examples"):
            add("application/json", b'{"instances": [[1]]}', f"accept: {accept}",
                f"{attributes}tfs-model-name={name}")  # fmt: skip
    classify = f"{attributes}tfs-model-name=examples,tfs-method=classify"
    record = b"\n\x0d\n\x0b\n\x01a\x12\x06\x12\x04\n\x02\0\0"
    add("application/x-tfexample", record, classify)
    add("application/x-tfrecord", framed(record), classify)
    add("image/png", b"\x89PNG", f"{attributes}tfs-model-name=images")
    for accept in ("application/json", "application/jsonlines", "text/csv", "application/x-npy"):
        add("application/x-npy", empty_array(), f"accept: {accept}")
    for case in cases("npy")[:20]:
        file = base64.b64decode(case["file"])
        add("application/x-npy", file, f"{attributes}tfs-model-name={case['dtype']}")
        kind = "application/x-npy"
        head = f"POST /v1/models/{case['dtype']}:predict\ncontent-type: {kind}\naccept: {kind}\n\n"
        seeds.add("routes", b"\0" + head.encode() + file)


def empty_array() -> bytes:
    """An npy file whose shape has a zero."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 0), }".ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header


def masked_crc(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    checksums = [struct.pack("<I", masked_crc(content)) for content in (length, record)]
    return length + checksums[0] + record + checksums[1]


def codec_seeds(seeds: Seeds) -> None:
    for index, case in enumerate(cases("npy")):
        seeds.add("npy", bytes([index % 16]) + base64.b64decode(case["file"]))
    seeds.add("npy", b"\1" + empty_array())
    for text in (b"1,2\n3,4\n", b'"a""b",2\r\n\n x ,-1.5e3\n', b"\xef\xbb\xbf1\n2\n", b"1e5,0.25"):
        for number in (0, 1, 7, 13):
            seeds.add("csv", bytes([number]) + text)
    for text in (b"aGVsbG8=", b"aGVs\nbG8", b"_-8=", b"/+8=", b"", b"a*b"):
        seeds.add("base64", text)
    seeds.add("tfrecord", framed(b"") + framed(b"abc") + framed(bytes(40)))
    seeds.add("tfrecord", b"this is not a file of records")
    # The first byte selects a format and limits: see `fuzz/src/batch.rs`.
    part = struct.pack("<II", 0xCED7230A, 3) + b"abc\0"
    parts = struct.pack("<II", 0xCED7230A, 1 << 29 | 4) + b"abcd"
    parts += struct.pack("<II", 0xCED7230A, 3 << 29 | 1) + b"e\0\0\0"
    lines = b'\xef\xbb\xbfa,1\r\n\n \nb,"x\n""y"\n{}'
    contents = (b"whole", lines, lines, lines, framed(b"") + framed(b"abc"), part + parts)
    for number, content in enumerate(contents):
        for limits in (0, 36, 66, 132):
            seeds.add("records", bytes([number + limits]) + content)
    seeds.add("records", b"\1" + gzip.compress(lines, mtime=0) + gzip.compress(lines, mtime=0))
    # Three lines, compressed with Zstandard.
    seeds.add("records", b"\1" + bytes.fromhex("28b52ffd2006310000610a620a630a"))
    tables = sorted(
        ROOT.glob("tests/data/platforms/spark/**/*.parquet"), key=lambda p: p.stat().st_size
    )
    for path in tables[::8]:
        seeds.add("parquet", path.read_bytes())
    seeds.add("event_stream", b"a payload")
    seeds.add("event_stream", b"")


def http_seeds(seeds: Seeds) -> None:
    def part(name: str, content: bytes) -> bytes:
        head = f'--b\r\nContent-Disposition: form-data; name="{name}"; filename="f"\r\n\r\n'
        return head.encode() + content + b"\r\n"

    form = part("model_name", b"images") + part("image", b"\x89PNG\r\n") + part("images", b"GIF")
    seeds.add("multipart", form + b"--b--\r\n")
    seeds.add("multipart", part("model_version", b"1") + part("signature_name", b"x") + b"--b--")
    seeds.add("multipart", part("run_profile", b"true") + part("x", b"") + b"--b--")
    for content in (b"", b"hello" * 10, bytes(5000)):
        seeds.add("gzip", gzip.compress(content, mtime=0))
        seeds.add("gzip", gzip.compress(content, 0, mtime=0) + gzip.compress(b"x", mtime=0))


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def tensor(dtype: int, dims: list[int], values: bytes) -> bytes:
    shape = b"".join(field(2, number_field(1, dim)) for dim in dims)
    return number_field(1, dtype) + field(2, shape) + values


def open_inference_seeds(seeds: Seeds) -> None:
    def add(number: int, body: bytes, length: int | None = None) -> None:
        header = "" if length is None else f"Inference-Header-Content-Length: {length}"
        seeds.add("open_inference", bytes([number]) + header.encode() + b"\n\n" + body)

    sizes = [4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1]
    for number, datatype in enumerate(DATATYPES):
        head = {"name": "x", "shape": [2, 2], "datatype": datatype}
        data = {"BOOL": [True, False] * 2, "BYTES": ["a", "", "b", "c"]}.get(datatype, [1, 2, 3, 4])
        add(number, json.dumps({"id": "7", "inputs": [{**head, "data": data}]}).encode())
        raw = b"\1\0\0\0a" * 4 if datatype == "BYTES" else b"\1" * (4 * sizes[number])
        parameters = {"binary_data_size": len(raw)}
        document = {
            "parameters": {"binary_data_output": number % 2 == 0, "timeout": 1 << 30},
            "inputs": [{**head, "parameters": parameters}],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
        text = json.dumps(document).encode()
        add(number, text + raw, len(text))
        add(number, raw, 0)
        tensor = field(1, b"x") + field(2, datatype.encode()) + field(3, b"\2\2")
        typed = field([6, 7, 0, 0, 2, 2, 2, 3, 4, 4, 4, 5, 1, 8][number] or 1, b"\1" * 4)
        call = field(1, DTYPES[number].encode()) + field(3, b"id")
        seeds.add("infer_messages", call + field(5, tensor) + field(7, raw))
        seeds.add("infer_messages", call + field(5, tensor + field(5, typed)))
    parameter = field(4, field(1, b"timeout") + field(2, number_field(2, 1 << 20)))
    region = field(4, field(1, b"shared_memory_region") + field(2, field(3, b"r")))
    tensor = field(1, b"x") + field(2, b"FP32") + field(3, b"\1\1")
    call = field(1, b"float") + parameter + field(5, tensor + region) + field(6, field(1, b"y"))
    seeds.add("infer_messages", call)
    shared = {"shared_memory_region": "r", "shared_memory_byte_size": 4, "shared_memory_offset": 1}
    given = {"name": "x", "shape": [1, 1], "datatype": "FP32", "parameters": shared}
    add(0, json.dumps({"inputs": [given], "outputs": [{"name": "y"}]}).encode())
    for case in cases("open-inference"):
        if case["path"].endswith("/infer") and "request_json" in case:
            add(6, json.dumps(case["request_json"]).encode())
            add(16, json.dumps(case["request_json"]).encode())


def message_seeds(seeds: Seeds) -> None:
    typed = {
        1: field(5, struct.pack("<2f", 1, 2)),
        2: field(6, struct.pack("<2d", 1, 2)),
        3: field(7, b"\1\2"),
        7: field(8, b"a") + field(8, b"bc"),
        8: field(9, struct.pack("<4f", 1, 2, 3, 4)),
        9: field(10, b"\1\2"),
        10: field(11, b"\1\0"),
        14: field(13, b"\1\2"),
        18: field(12, struct.pack("<4d", 1, 2, 3, 4)),
        19: field(13, b"\1\2"),
        22: field(16, b"\1\2"),
        23: field(17, b"\1\2"),
    }
    for dtype, values in typed.items():
        seeds.add("tensor_proto", tensor(dtype, [2], values))
        seeds.add("tensor_proto", tensor(dtype, [1, 2], field(4, bytes(16))))
    spec = {name: field(1, name.encode()) for name in [*DTYPES, "two", "examples"]}
    for name, dtype in (("float", 1), ("int64", 9), ("string", 7), ("bool", 10), ("complex64", 8)):
        given = field(1, b"x") + field(2, tensor(dtype, [1, 2], typed[dtype]))
        predict = field(1, spec[name]) + field(2, given)
        for method in (0, 1):
            seeds.add("request_messages", bytes([method]) + predict + field(3, b"x"))
            seeds.add("request_messages", bytes([method]) + predict)
        head = f"POST /v1/models/{name}:predict\ncontent-type: application/x-protobuf\n\n"
        seeds.add("routes", b"\0" + head.encode() + predict)
        record = field(6, field(1, predict))
        seeds.add("warm_up", b"\0" + record)
    feature = field(1, b"a") + field(2, field(2, field(1, struct.pack("<f", 1))))
    example = field(1, field(1, feature))
    inputs = [field(1, field(1, example)), field(2, field(1, example) + field(2, example))]
    regression = spec["examples"] + field(3, b"regression")
    for given in inputs:
        seeds.add("request_messages", b"\2" + field(1, spec["examples"]) + field(2, given))
        seeds.add("request_messages", b"\3" + field(1, regression) + field(2, given))
        tasks = [(spec["examples"], b"classify"), (regression, b"regress")]
        task = [field(1, field(1, s) + field(2, b"tensorflow/serving/" + m)) for s, m in tasks]
        seeds.add("request_messages", b"\4" + b"".join(task) + field(2, given))
        classify = field(1, spec["examples"]) + field(2, given)
        seeds.add("warm_up", b"\6" + field(1, field(1, classify)))
    seeds.add("request_messages", b"\5" + field(1, spec["two"]) + field(2, b"signature_def"))
    model = field(1, b"m") + field(2, b"/m") + field(4, b"tensorflow")
    policy = field(7, field(101, number_field(1, 2)))
    labels = field(8, field(1, b"stable") + number_field(2, 1))
    listed = field(1, field(1, field(1, model + policy + labels)))
    seeds.add("request_messages", b"\6" + listed)
    for path in DATA.rglob("tf_serving_warmup_requests"):
        seeds.add("warm_up", b"\1" + path.read_bytes())
    texts = [
        (0, """model_config_list { config { name: 'm' base_path: '/m' model_platform: 'tensorflow'
            model_version_policy { specific { versions: 1 versions: 2 } }
            version_labels { key: 'a' value: 1 } logging_config { log_collector_config {
            filename_prefix: 'p' } sampling_config { sampling_rate: 0.5 } } } }"""),
        (0, """model_config_list: < config: { name: "a\\n\\x41" 'b' base_path: '/' } > # end"""),
        (1, """max_batch_size { value: 16 }, allowed_batch_sizes: [2, 0x10]
            pad_variable_length_inputs: true; thread_pool_name < value: 'a' "b" >
            num_batch_threads { value: 2 } batch_timeout_micros { value: 10 }"""),
        (2, "prometheus_config { enable: true, path: '/metrics' }"),
        (3, "server_key: 'k' server_cert: 'c' client_verify: true"),
        (4, "platform_configs { key: 'tensorflow' value { source_adapter_config { } } }"),
    ]  # fmt: skip
    for number, text in texts:
        seeds.add("text_proto", bytes([number]) + text.encode())


def model_seeds(seeds: Seeds) -> None:
    pickles = [base64.b64decode(case["file"]) for case in cases("pickles")]
    seeds.smallest("pickle", pickles)
    estimators = []
    for version in ("1.2.2", "1.9.1"):
        for case in cases(f"sklearn-{version}"):
            if "file" in case:
                file = base64.b64decode(case["file"])
                estimators.append(gzip.decompress(file) if file[:2] == b"\x1f\x8b" else file)
    # Of every length some, so that each kind of estimator is among them.
    estimators.sort(key=len)
    # Of every class that is not among them one.
    smallest = {}
    for name in ("rest", "boosters"):
        packed = (CASES / f"sklearn-{name}-1.9.1.json.gz").read_bytes()
        for case in json.loads(gzip.decompress(packed)):
            file = gzip.decompress(base64.b64decode(case["file"]))
            steps = tuple(re.findall(r"[A-Z]\w+(?=\()", case["name"]))
            if len(file) < len(smallest.setdefault(steps, file)):
                smallest[steps] = file
    seeds.smallest("sklearn", [file for file in smallest.values() if len(file) < SHORT])
    seeds.smallest("sklearn", estimators[::6] + estimators[1::9])
    boosters = [p for p in PLATFORMS.glob("xgboost/**/*") if p.is_file() and is_booster(p)]
    files = [path.read_bytes() for path in boosters]
    files = [gzip.decompress(file) if file[:2] == b"\x1f\x8b" else file for file in files]
    seeds.smallest("xgboost", files)
    endings = {".txt", ".json", ".pkl", ".joblib", ".model"}
    boosters = [p for p in PLATFORMS.glob("lightgbm/*/*") if p.suffix in endings]
    seeds.smallest("lightgbm", [p.read_bytes() for p in boosters if is_booster(p)])
    catboost = [p for p in PLATFORMS.glob("catboost/made/*") if p.suffix in {".cbm", ".json"}]
    catboost = [p for p in catboost if p.name not in {"cases.json", "texts.json"}]
    seeds.smallest("catboost", [path.read_bytes() for path in catboost])
    seeds.smallest("pmml", [(PLATFORMS / f"pmml/{name}.pmml").read_bytes() for name in PMML_KINDS])
    seeds.smallest("pmml", [path.read_bytes() for path in PLATFORMS.glob("pmml/*.pmml")])
    seeds.smallest("spark", spark_stages())
    for folder in PLATFORMS.glob("spark/*/metadata"):
        metadata = next(folder.glob("part-*")).read_bytes()
        data = next((folder.parent / "data").glob("part-*.parquet")).read_bytes()
        seeds.add("spark", metadata + SEPARATOR + data)
    metadata = next(PLATFORMS.glob("spark/ml_linear/metadata/part-*")).read_bytes()
    for path in PLATFORMS.glob("spark/parquet/*"):
        seeds.add("spark", metadata + SEPARATOR + path.read_bytes())
    mojos = sorted(PLATFORMS.glob("h2o/*.zip"))
    seeds.smallest("h2o", [files_of(path) for path in mojos])
    seeds.add("h2o", min(mojos, key=lambda path: path.stat().st_size).read_bytes())
    torch = [path for path in PLATFORMS.glob("pytorch/*") if path.suffix in {".pt", ".pt2", ".pth"}]
    seeds.smallest("torch", [torch_files_of(path) for path in torch])
    seeds.add("torch", min(torch, key=lambda path: path.stat().st_size).read_bytes())
    seeds.smallest("executorch", [path.read_bytes() for path in PLATFORMS.glob("executorch/*.pte")])
    for name, content in FOREIGN:
        seeds.add("foreign", name.encode() + b"\n" + content)
    seeds.add("foreign", SEPARATOR.join(name.encode() + b"\n" + text for name, text in FOREIGN[:8]))
    seeds.smallest("openvino", [path.read_bytes() for path in PLATFORMS.glob("openvino/*/*.xml")])
    seeds.smallest("tflite", [path.read_bytes() for path in PLATFORMS.glob("tflite/*/*.tflite")])
    seeds.smallest("onnx", [path.read_bytes() for path in DATA.rglob("*.onnx")])
    for symbol in DATA.rglob("*-symbol.json"):
        params = next(symbol.parent.glob("*.params")).read_bytes()
        signature = next(symbol.parent.glob("*-signature.json"), None)
        declared = signature.read_bytes() if signature else b""
        seeds.add("mxnet", symbol.read_bytes() + SEPARATOR + declared + SEPARATOR + params)
    seeds.add("mxnet", small_checkpoint())
    graphs = sorted(DATA.rglob("saved_model.pb"), key=lambda path: path.stat().st_size)
    for graph in graphs[::3]:
        index = graph.parent / "variables/variables.index"
        variables = index.read_bytes() if index.is_file() else b""
        seeds.add("saved_model", b"\0" + graph.read_bytes() + SEPARATOR + variables)


def spark_stages() -> list[bytes]:
    """A stage of each class of Spark's pipelines, and two pipelines, in the form of the target `spark`."""
    models = json.loads(gzip.decompress((PLATFORMS / "spark/pipelines.json.gz").read_bytes()))
    smallest: dict[str, bytes] = {}

    def add(kind: str, files: dict[str, str]) -> None:
        content = SEPARATOR.join(
            path.encode() + b"\n" + text.encode("latin-1") for path, text in files.items()
        )
        smallest[kind] = min(smallest.get(kind, content), content, key=len)

    for name, files in models.items():
        add("pipeline of text" if name.startswith("text") else "pipeline", files)
        for path, metadata in files.items():
            folder, _, file = path.rpartition("metadata/")
            if folder.count("stages/") == 1 and not folder.endswith("data/") and file:
                inner = {key[len(folder) :]: files[key] for key in files if key.startswith(folder)}
                parameters = json.loads(metadata)["paramMap"]
                add(json.loads(metadata)["class"] + parameters.get("modelType", ""), inner)
    return list(smallest.values())


def is_booster(path: pathlib.Path) -> bool:
    return path.suffix != ".py" and path.name != "cases.json"


def small_checkpoint() -> bytes:
    nodes = [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "null", "name": "w", "inputs": []},
        {
            "op": "FullyConnected",
            "name": "fc",
            "attrs": {"num_hidden": "2", "no_bias": "True"},
            "inputs": [[0, 0, 0], [1, 0, 0]],
        },
        {"op": "SoftmaxOutput", "name": "softmax", "inputs": [[2, 0, 0]]},
    ]
    symbol = {"nodes": nodes, "arg_nodes": [0, 1], "heads": [[3, 0, 0]]}
    signature = {"inputs": [{"data_name": "data", "data_shape": [1, 2]}], "outputs": []}
    array = struct.pack("<IiI2qiii4f", 0xF993FAC9, 0, 2, 2, 2, 1, 0, 0, 1, 2, 3, 4)
    params = struct.pack("<QQQ", 0x112, 0, 1) + array + struct.pack("<QQ", 1, 5) + b"arg:w"
    files = [json.dumps(symbol).encode(), json.dumps(signature).encode(), params]
    return SEPARATOR.join(files)


def file_seeds(seeds: Seeds) -> None:
    for mode in ("w", "w:gz"):
        for style in (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode=mode, format=style) as archive:
                for name in ("1/saved_model.pb", "1/" + "n" * 90):
                    info = tarfile.TarInfo(name)
                    info.size = 3
                    archive.addfile(info, io.BytesIO(b"abc"))
            seeds.add("archive", packed.getvalue()[:3072] if mode == "w" else packed.getvalue())
    steps = cases("steps")
    for kind in ("png", "jpeg"):
        for number, case in enumerate(steps[kind]):
            seeds.add("images", bytes([number]) + base64.b64decode(case["file"]))
    header = struct.pack(">IIBBBBB", 1, 1, 1, 0, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n"
    for kind, content in ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0\0")), (b"IEND", b"")):
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        png += struct.pack(">I", len(content)) + kind + content + checksum
    seeds.add("images", b"\0" + png)
    texts = [
        (
            8,
            '[[preprocess]]\nstep = "image"\nname = "photo"\nchannels = "bgr"\nheight = 4\nwidth = 4\n',
        ),
        (0, '[[preprocess]]\nstep = "scale"\nscale = [2, 0.5]\n'),
        (4, '[[preprocess]]\nstep = "scale"\nmean = [1, 2, 3, 4]\nstd = 2\n'),
        (4, '[[postprocess]]\nstep = "top_k"\nk = 2\n'),
        (4, '[[postprocess]]\nstep = "softmax"\n[[postprocess]]\nstep = "top_k"\nk = 3\n'),
        (2, '[[preprocess]]\nstep = "tokens"\nvocabulary = "words.txt"\nlength = 4\n'),
    ]
    for number, text in texts:
        for target in ("steps", "step_file"):
            seeds.add(target, bytes([number]) + text.encode() + SEPARATOR + b"some words")
    for path in (ROOT / "docs/configuration.md", ROOT / "docs/preprocessing.md"):
        blocks = path.read_text().split("```")[1::2]
        for block in blocks:
            language, _, text = block.partition("\n")
            if language == "toml":
                target = "settings" if "configuration" in path.name else "steps"
                prefix = b"" if target == "settings" else b"\x08"
                seeds.add(target, prefix + text.encode())
    seeds.add("settings", b'http_port = 8500\n[[models]]\npath = "/m"\nlabels = { a = 1 }\n')
    models = [
        {"name": "m", "base_path": "/m", "platform": "tensorflow"},
        {"name": "n", "base_path": "./n", "platform": "xgboost", "download_model": True},
    ]
    seeds.add("model_list", json.dumps({"model_config_list": models}).encode())
    seeds.add(
        "model_list", b'{"gpu_options": {"allow_growth": true}, "log_device_placement": true}'
    )
    users = f'[keys.k]\nsha256 = "{"0" * 64}"\nroles = ["infer"]\n'
    seeds.add("users", users.encode())
    password = "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$" + "A" * 43
    users = f'[users."u v"]\npassword = "{password}"\nroles = ["admin", "metrics"]\n'
    seeds.add("users", users.encode())


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    seeds = Seeds(pathlib.Path(sys.argv[1]))
    for add in (
        json_seeds,
        invocation_seeds,
        codec_seeds,
        http_seeds,
        message_seeds,
        open_inference_seeds,
        model_seeds,
        file_seeds,
    ):
        add(seeds)
    for target, size in sorted(seeds.sizes.items()):
        count = len(list((seeds.folder / target).iterdir()))
        print(f"{target}: {count} seeds, {size} bytes")


if __name__ == "__main__":
    main()
