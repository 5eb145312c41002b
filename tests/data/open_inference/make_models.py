"""Writes the SavedModels of tests/it/open_inference_cases.rs below `models`, next to this file.

    pip install tensorflow-cpu==2.21.0
    python3 make_models.py

Each model has one signature, `serving_default`. The first four have the names, inputs and outputs of
the models that Triton's example scripts call; they are built here:

    simple           INPUT0, INPUT1: INT32 [-1, 16]; OUTPUT0 is their sum, OUTPUT1 their difference
    simple_string    the same for integers as text (BYTES)
    simple_int8      the same for INT8
    simple_identity  INPUT0: BYTES [-1, -1]; OUTPUT0 equals it
    raw_fp32         INPUT0: FP32 [-1, 3]; OUTPUT0 is the double
    raw_bytes        INPUT0: BYTES [1]; OUTPUT0 equals it
    cube             INPUT0: FP32 [-1, -1, -1]; OUTPUT0 equals it
    versions         as raw_fp32; version 1 doubles, version 2 triples
    all_types        in_bool, in_uint8, ...: [-1, -1]; out_bool, out_uint8, ... equal them
    types/TYPE       in_TYPE and out_TYPE alone
"""

import shutil
from pathlib import Path

import tensorflow as tf

tf1 = tf.compat.v1
MODELS = Path(__file__).parent / "models"

# By the names that the protocol gives them, in lower case.
TYPES = {
    "bool": tf.bool,
    "uint8": tf.uint8,
    "uint16": tf.uint16,
    "uint32": tf.uint32,
    "uint64": tf.uint64,
    "int8": tf.int8,
    "int16": tf.int16,
    "int32": tf.int32,
    "int64": tf.int64,
    "fp16": tf.float16,
    "fp32": tf.float32,
    "fp64": tf.float64,
    "bf16": tf.bfloat16,
    "bytes": tf.string,
}


def save(name, specs, build, version=1):
    """Saves the graph that `build` makes from the inputs in `specs`: types and shapes by name."""
    folder = MODELS / name / str(version)
    shutil.rmtree(folder, ignore_errors=True)
    graph = tf1.Graph()
    with graph.as_default(), tf1.Session(graph=graph) as session:
        inputs = {key: tf1.placeholder(*spec, name=key) for key, spec in specs.items()}
        outputs = build(inputs)
        info = tf1.saved_model.build_tensor_info
        signature = tf1.saved_model.build_signature_def(
            {key: info(tensor) for key, tensor in inputs.items()},
            {key: info(tensor) for key, tensor in outputs.items()},
            "tensorflow/serving/predict",
        )
        builder = tf1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    shutil.rmtree(folder / "variables")  # It is empty.


def sum_and_difference(inputs):
    a, b = inputs["INPUT0"], inputs["INPUT1"]
    return {"OUTPUT0": tf.add(a, b, "OUTPUT0"), "OUTPUT1": tf.subtract(a, b, "OUTPUT1")}


def of_text(inputs):
    numbers = {key: tf.strings.to_number(text, tf.int32) for key, text in inputs.items()}
    results = sum_and_difference(numbers)
    return {key: tf.strings.as_string(number) for key, number in results.items()}


def times(factor):
    return lambda inputs: {"OUTPUT0": inputs["INPUT0"] * factor}


def identity(inputs):
    return {"OUTPUT0": tf.identity(inputs["INPUT0"])}


def identities(inputs):
    return {key.replace("in_", "out_"): tf.identity(tensor) for key, tensor in inputs.items()}


for name, dtype in {"simple": tf.int32, "simple_int8": tf.int8}.items():
    save(name, {key: (dtype, [None, 16]) for key in ("INPUT0", "INPUT1")}, sum_and_difference)
save("simple_string", {key: (tf.string, [None, 16]) for key in ("INPUT0", "INPUT1")}, of_text)
save("simple_identity", {"INPUT0": (tf.string, [None, None])}, identity)
save("raw_fp32", {"INPUT0": (tf.float32, [None, 3])}, times(2.0))
save("raw_bytes", {"INPUT0": (tf.string, [1])}, identity)
save("cube", {"INPUT0": (tf.float32, [None, None, None])}, identity)
save("versions", {"INPUT0": (tf.float32, [None, 3])}, times(2.0))
save("versions", {"INPUT0": (tf.float32, [None, 3])}, times(3.0), version=2)
every = {f"in_{name}": (dtype, [None, None]) for name, dtype in TYPES.items()}
save("all_types", every, identities)
for name in TYPES:
    key = f"in_{name}"
    save(f"types/{name}", {key: every[key]}, identities)
