"""Checks every claim that models/README.md makes about the models, and prints a table.

    python check_models.py             check the models in the repository
    python check_models.py --rebuild   also build them again and compare the predictions

Each model is opened in a fresh process with each loader of TensorFlow: `eager`
is tf.saved_model.load, `graph` the loader of TensorFlow 1, a plain session.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from PIL import Image
from sklearn.metrics import roc_auc_score
from tensorflow.core.protobuf import saved_model_pb2

import clicks_data
import digits_data
from common import REPOSITORY, load

MODELS = REPOSITORY / "models"
SCRIPTS = MODELS / "scripts"
SAMPLES = REPOSITORY / "examples/images/digits"
KILOBYTE = 1000

# Signature and size limit: name -> (dtype, shape), -1 being the batch.
DIGITS = {
    "inputs": {"image_bytes": ("string", [-1])},
    "outputs": {"classes": ("int64", [-1]), "probabilities": ("float32", [-1, 10])},
    "limit": 500,
}
EXPECTED = {
    "half_plus_two/1": {
        "inputs": {"x": ("float32", [-1])},
        "outputs": {"y": ("float32", [-1])},
        "limit": 50,
    },
    "digits/1": DIGITS,
    "digits/2": DIGITS,
    "wide_mlp/1": {
        "inputs": {"x": ("float32", [-1, 784])},
        "outputs": {"probabilities": ("float32", [-1, 10])},
        "limit": 3000,
    },
    "recommender/1": {
        "inputs": {
            "user_id": ("int64", [-1]),
            "item_id": ("int64", [-1]),
            "features": ("float32", [-1, clicks_data.FEATURES]),
        },
        "outputs": {"score": ("float32", [-1])},
        "limit": 400,
    },
    "text_normalizer/1": {
        "inputs": {"text": ("string", [-1])},
        "outputs": {
            "normalized": ("string", [-1]),
            "token_count": ("int32", [-1]),
            "hash": ("int64", [-1]),
        },
        "limit": 50,
    },
}


def require(condition, claim):
    """Like assert, but also under python -O."""
    if not condition:
        raise SystemExit(f"not so: {claim}")


# --- the files ------------------------------------------------------------


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def describe(tensors):
    return {
        name: (tf.as_dtype(t.dtype).name, [d.size for d in t.tensor_shape.dim])
        for name, t in tensors.items()
    }


def require_no_devices(graph):
    """No node is placed on a device, except that checkpoints are saved and restored on the CPU."""
    savers = ("__inference__traced_save", "__inference__traced_restore")
    scopes = [("graph", graph.node)]
    scopes += [(f.signature.name, f.node_def) for f in graph.library.function]
    for scope, nodes in scopes:
        for node in nodes:
            # The one constant in the graph itself is an argument of the save function.
            saves = scope.startswith(savers) or (scope == "graph" and node.name == "Const")
            allowed = not node.device or (saves and node.device.startswith("/device:CPU:"))
            require(allowed, f"{scope}: {node.name} is free of {node.device}")


def require_plain_layers(graph):
    """wide_mlp computes with dense layers only; other nodes forward values."""
    layers = {"MatMul", "BiasAdd", "Relu", "Softmax"}
    found = set()
    for function in graph.library.function:
        if function.signature.name.startswith("__inference_serve"):
            found |= {node.op for node in function.node_def}
    require(found - {"ReadVariableOp", "Identity", "NoOp"} == layers, f"wide_mlp: only {layers}")


def check_files(model):
    """Checks the files: tag, signature, devices, variables, size."""
    folder = MODELS / model
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    require(len(saved.meta_graphs) == 1, f"{model}: one graph")
    graph = saved.meta_graphs[0]
    require(list(graph.meta_info_def.tags) == ["serve"], f"{model}: tag serve")
    signature = graph.signature_def["serving_default"]
    require(describe(signature.inputs) == EXPECTED[model]["inputs"], f"{model}: inputs")
    require(describe(signature.outputs) == EXPECTED[model]["outputs"], f"{model}: outputs")
    require_no_devices(graph.graph_def)
    if model == "wide_mlp/1":
        require_plain_layers(graph.graph_def)
    for node in graph.object_graph_def.nodes:
        require(not node.variable.device, f"{model}: variables without a device")
    require(size_of(folder) <= EXPECTED[model]["limit"] * KILOBYTE, f"{model}: size")


# --- the behaviour; each returns the measurements for the table ----------


def check_half_plus_two(predict, _model):
    x = np.array([1.0, 2.0, 5.0, -4.0, 0.0], np.float32)
    require(np.array_equal(predict(x=x)["y"], x / 2 + 2), "y = x / 2 + 2")
    return {}


def digit_accuracy(predict, size, kind):
    images, labels = digits_data.load_grey()
    _, held_out = digits_data.split()
    images = images[held_out]
    if size != 8:
        images = [digits_data.upscale(image, size) for image in images]
    encoded = [digits_data.encode(image, kind) for image in images]
    return float(np.mean(predict(image_bytes=encoded)["classes"] == labels[held_out]))


def check_samples(predict, version):
    expected = json.loads((SAMPLES / "expected.json").read_text())
    names = sorted(path.name for path in SAMPLES.iterdir() if path.suffix != ".json")
    require(names == sorted(expected) and len(names) == 14, "12 PNG and 2 JPEG samples")
    require({entry["label"] for entry in expected.values()} == set(range(10)), "every digit")
    out = predict(image_bytes=[(SAMPLES / name).read_bytes() for name in names])
    for row, name in enumerate(names):
        label = expected[name]["label"]
        require(out["classes"][row] == label == int(name[0]), f"{name} is recognised")
        difference = out["probabilities"][row, label] - expected[name][f"v{version}_probability"]
        require(abs(difference) < 1e-4, f"{name}: probability as in expected.json")


def check_shrinking(predict):
    """Images enlarged by 8 give the same result as the originals: the average is exact."""
    images = digits_data.load_grey()[0][digits_data.split()[1][:50]]
    blocks = [np.kron(image, np.ones((8, 8), np.uint8)) for image in images]
    plain, large = (
        predict(image_bytes=[digits_data.encode(image) for image in some])["probabilities"]
        for some in (images, blocks)
    )
    require(np.allclose(plain, large, atol=1e-5), "an image of 64 x 64 blocks shrinks exactly")


def check_other_images(predict):
    """Colour, transparency, odd and large sizes are valid; a broken file is an error."""
    encoded = []
    for mode, size in [("RGB", (20, 30)), ("RGBA", (8, 8)), ("1", (1, 1)), ("L", (2000, 1500))]:
        buffer = io.BytesIO()
        Image.new(mode, size).save(buffer, "PNG")
        encoded.append(buffer.getvalue())
    require(predict(image_bytes=encoded)["classes"].shape == (4,), "any kind of PNG")
    try:
        predict(image_bytes=[b"not an image"])
    except tf.errors.InvalidArgumentError:
        return
    require(False, "a broken image is an InvalidArgument error")


def check_digits(predict, model):
    version = model[-1]
    plain = digit_accuracy(predict, 8, "PNG")
    large = digit_accuracy(predict, 64, "PNG")
    jpeg = digit_accuracy(predict, 64, "JPEG")
    require(plain >= 0.97, f"{model}: at least 97 % right, not {plain:.2%}")
    require(min(large, jpeg) >= 0.95, f"{model}: at least 95 % right when enlarged")
    check_samples(predict, version)
    check_shrinking(predict)
    check_other_images(predict)
    return {
        "accuracy": f"{plain:.2%}",
        "accuracy, 64 x 64 PNG": f"{large:.2%}",
        "accuracy, 64 x 64 JPEG": f"{jpeg:.2%}",
    }


def check_wide_mlp(predict, model):
    images, labels = digits_data.load_grey()
    _, held_out = digits_data.split()
    probabilities = predict(x=digits_data.flat_28(images[held_out]))["probabilities"]
    require(np.allclose(probabilities.sum(axis=1), 1.0, atol=1e-5), "probabilities add up to 1")
    accuracy = np.mean(probabilities.argmax(axis=1) == labels[held_out])
    require(accuracy >= 0.97, f"{model}: at least 97 % right, not {accuracy:.2%}")
    return {"accuracy": f"{accuracy:.2%}"}


def check_recommender(predict, model):
    test = clicks_data.part(clicks_data.click_log(), held_out=True)
    score = predict(**{name: test[name] for name in EXPECTED[model]["inputs"]})["score"]
    auc = roc_auc_score(test["clicked"], score)
    best = roc_auc_score(test["clicked"], test["chance"])
    require(auc >= 0.85, f"{model}: AUC of at least 0.85, not {auc:.4f}")
    check_unknown_ids(predict)
    return {"AUC": f"{auc:.4f}", "AUC of the true probability": f"{best:.4f}"}


def check_unknown_ids(predict):
    hostile = np.array([-1, -(2**63), 2**63 - 1, 2**31, clicks_data.USERS, clicks_data.ITEMS])
    features = np.zeros((len(hostile), clicks_data.FEATURES), np.float32)
    known = np.full(len(hostile), 7)
    users = predict(user_id=hostile[:5], item_id=known[:5], features=features[:5])["score"]
    items = hostile[[0, 1, 2, 3, 5]]
    items = predict(user_id=known[:5], item_id=items, features=features[:5])["score"]
    for score in (users, items):
        require(np.all((score > 0) & (score < 1)), "unknown ids get a score")
        require(np.ptp(score) < 1e-6, "all unknown ids get the same score")


TEXTS = [  # text, normalised, number of tokens
    (b"  Hello\t\r\n WORLD  ", "hello world", 2),
    (b"TITLE", "title", 1),  # in a Turkish locale too, see run_script
    ("ÉTÉ\u00a0ΟΔΟΣ\u3000Ω".encode(), "été οδος ω", 3),
    (b"", "", 0),
    (b" \t\n ", "", 0),
    (b"A\x00B\x07C\x00", "a b c", 3),
    (b"CAF\xc9 \xff\xfe", "caf\ufffd \ufffd\ufffd", 2),
    (b"\xed\xa0\x80X", "\ufffd\ufffd\ufffdx", 1),
    (b"cut \xe2\x82", "cut \ufffd", 2),
]


def check_text_normalizer(predict, _model):
    out = predict(text=[text for text, _, _ in TEXTS])
    normalized = [text.decode() for text in out["normalized"]]
    require(normalized == [text for _, text, _ in TEXTS], f"normalised: {normalized}")
    require(list(out["token_count"]) == [count for _, _, count in TEXTS], "token counts")
    hashes = tf.strings.to_hash_bucket_fast(out["normalized"], 2**31 - 1)
    require(np.array_equal(out["hash"], hashes.numpy()), "hashes")
    check_any_bytes(predict)
    return {}


def check_any_bytes(predict):
    rng = np.random.default_rng(5)
    noise = [rng.bytes(length) for length in rng.integers(0, 200, 2000)]
    out = predict(text=noise)
    for text, count in zip(out["normalized"], out["token_count"], strict=True):
        decoded = text.decode()  # raises if it is not UTF-8
        require(count == len(decoded.split(" ")) - (decoded == ""), "tokens of random bytes")
    require(np.all((out["hash"] >= 0) & (out["hash"] < 2**31 - 1)), "hashes in range")


# --- probes: inputs for comparing two builds, and for batches of any size ---


def probe(name):
    """Varied inputs for a model, 32 rows."""
    images, _ = digits_data.load_grey()
    images = images[digits_data.split()[1][:32]]
    if name == "half_plus_two":
        return {"x": np.linspace(-10, 10, 32, dtype=np.float32)}
    if name == "digits":
        return {"image_bytes": np.array([digits_data.encode(image) for image in images], object)}
    if name == "wide_mlp":
        return {"x": digits_data.flat_28(images)}
    if name == "recommender":
        log = clicks_data.part(clicks_data.click_log(), held_out=True)
        return {key: log[key][:32] for key in EXPECTED["recommender/1"]["inputs"]}
    return {"text": np.array([text for text, _, _ in TEXTS * 4][:32], object)}


def cut(inputs, rows):
    return {name: value[rows] for name, value in inputs.items()}


def check_batches(predict, model):
    """No rows, one row, and a batch with the same results as its rows one by one."""
    inputs = probe(model.split("/")[0])
    whole = predict(**inputs)
    for name, (dtype, shape) in EXPECTED[model]["outputs"].items():
        require(whole[name].shape == (32, *shape[1:]), f"{model}: shape of {name}")
        require(tf.as_dtype(whole[name].dtype) == dtype or dtype == "string", f"{model}: {name}")
    for name, value in predict(**cut(inputs, slice(0, 0))).items():
        require(value.shape == (0, *whole[name].shape[1:]), f"{model}: an empty batch")
    rows = [predict(**cut(inputs, slice(row, row + 1))) for row in range(32)]
    for name, value in whole.items():
        one_by_one = np.concatenate([row[name] for row in rows])
        require(difference(value, one_by_one) < 1e-5, f"{model}: {name} row by row")


def difference(one, other):
    """The largest difference; strings and whole numbers have to be equal."""
    if one.dtype.kind == "f":
        return float(np.max(np.abs(one - other)))
    return 0.0 if np.array_equal(one, other) else np.inf


# --- all checks -----------------------------------------------------------


def load_graph(folder):
    """Like common.load, with the loader and the session of TensorFlow 1."""
    session = tf.compat.v1.Session(graph=tf.Graph())
    with session.graph.as_default():
        meta = tf.compat.v1.saved_model.loader.load(session, ["serve"], str(folder))
    signature = meta.signature_def["serving_default"]
    fetches = {name: t.name for name, t in signature.outputs.items()}

    def predict(**inputs):
        return session.run(fetches, {signature.inputs[name].name: v for name, v in inputs.items()})

    return predict


LOADERS = {"eager": load, "graph": load_graph}


def check_one(model, loader):
    """One model with one loader, in this process; prints the measurements as JSON."""
    predict = LOADERS[loader](MODELS / model)
    check = globals()["check_" + model.split("/")[0]]
    measured = check(predict, model)
    check_batches(predict, model)
    print(json.dumps(measured))


def run_script(script, *options):
    """The output of a script of this directory, run in a separate process."""
    command = [sys.executable, str(SCRIPTS / script), *options]
    # A locale whose rules for lower case must not affect text_normalizer.
    environment = os.environ | {"LC_ALL": "tr_TR.UTF-8", "PYTHONUTF8": "1"}
    done = subprocess.run(command, capture_output=True, check=False, text=True, env=environment)
    require(done.returncode == 0, f"{script} {' '.join(options)} passes:\n{done.stderr}")
    return done.stdout


def check_readme(model, measured):
    """Every measured number is in the model's row of the table."""
    name, version = model.split("/")
    lines = (MODELS / "README.md").read_text().splitlines()
    row = [line for line in lines if line.startswith(f"| `{name}/{version}`")]
    require(len(row) == 1, f"README.md has a row for {model}")
    for what, number in measured.items():
        require(number.replace("%", " %") in row[0], f"README.md gives {model}: {what} {number}")


def check_rebuilt():
    """Builds all models again elsewhere; their predictions must equal those of the ones here."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in sorted({model.split("/")[0] for model in EXPECTED}):
            run_script(f"make_{name}.py", "--out", scratch)
        for model in EXPECTED:
            inputs = probe(model.split("/")[0])
            ours = load(MODELS / model)(**inputs)
            again = load(Path(scratch) / "models" / model)(**inputs)
            worst = max(difference(ours[name], again[name]) for name in ours)
            require(worst < 1e-5, f"{model}: the same when made again, not {worst} apart")
            print(f"{model:20} made again: largest difference {worst:g}")
        for path in SAMPLES.iterdir():
            again = Path(scratch) / "examples/images/digits" / path.name
            require(path.read_bytes() == again.read_bytes(), f"{path.name}: the same again")


def check_all():
    print(f"{'model':20}{'kB':>7}  {'loaders':13} measured on the held-out rows")
    for model in EXPECTED:
        check_files(model)
        runs = [run_script("check_models.py", "--one", model, loader) for loader in LOADERS]
        results = [json.loads(run) for run in runs]
        require(results[0] == results[1], f"{model}: both loaders measure the same")
        kilobytes = round(size_of(MODELS / model) / KILOBYTE)
        check_readme(model, results[0] | {"size": f"{kilobytes} kB"})
        text = ", ".join(f"{what} {number}" for what, number in results[0].items()) or "exact"
        print(f"{model:20}{kilobytes:7}  {'eager, graph':13} {text}")
    print("all claims hold")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "LOADER"), help=argparse.SUPPRESS)
    parser.add_argument("--rebuild", action="store_true", help="also build every model again")
    options = parser.parse_args()
    if options.one:
        check_one(*options.one)
        return
    check_all()
    if options.rebuild:
        check_rebuilt()


if __name__ == "__main__":
    main()
