"""Writes the models and the expected predictions of the tests of TensorFlow Lite.

    pip install tensorflow-cpu==2.21.0 ai-edge-litert==2.3.0
    python3 make_tflite.py

Each model gets NAME.tflite in made/, and NAME.expected.gz with the inputs and what ai_edge_litert's
Interpreter returns for them, of each signature: "SIGNATURE/inputs/NAME" and "SIGNATURE/outputs/NAME".
Tables have 1,000 rows. Models of others/ get the predictions only.
"""

import gzip
import io
import os
import sys
import tempfile
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from ai_edge_litert.tools import flatbuffer_utils
from tensorflow.lite.python.convert_phase import ConverterError

HERE = Path(__file__).parent
ROWS = 1000


# TensorFlow Lite takes a fixed range where TensorFlow takes that of the batch.
FIXED_RANGE = "quantized_by_the_range"


def mixing():
    for folder in sorted((HERE / "../../rows").glob("*/1")):
        name = folder.parent.name
        try:
            converted = tf.lite.TFLiteConverter.from_saved_model(str(folder)).convert()
        except ConverterError as error:
            print(f"{name}: not converted: {str(error)[:80]}")
            continue
        if name != FIXED_RANGE:
            (HERE / f"mixing/{name}.tflite").write_bytes(converted)


def main():
    if sys.argv[1:]:
        predict(Path(sys.argv[1]))
        return
    for folder in ("made", "mixing", "others", "refused"):
        (HERE / folder).mkdir(exist_ok=True)
    for make in (
        dense,
        dense_int8,
        dense_uint8,
        dense_float16,
        dense_dynamic_range,
        convolution_of_one,
        recurrent,
        signatures,
        lengths,
        strings,
        words,
        types,
        by_values,
        without_signature,
    ):
        make()
    mixing()
    builtin, flex = tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS
    (HERE / "refused/flex.tflite").write_bytes(refused([builtin, flex]))
    (HERE / "refused/custom.tflite").write_bytes(refused([builtin], allow_custom_ops=True))
    for path in sorted((HERE / "others").glob("*.tflite")):
        try:
            predict(path)
        except (RuntimeError, ValueError) as error:
            print(f"{path.name}: no predictions: {error}")


def model_of(seed, *layers):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(layers)


def table(seed, columns, kind=np.float32):
    """Rows with extreme values and NaN."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(0, 2, (ROWS, columns)).astype(kind)
    special = [0, -0.0, 1e-38, -1e-38, 1e6, -1e6, 3e38, np.inf, -np.inf, np.nan]
    for index, value in enumerate(special):
        rows[index, index % columns] = value
    return rows


def of_keras(model, **options):
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    for name, value in options.items():
        setattr(converter, name, value)
    return converter.convert()


def iris(seed=1):
    return model_of(
        seed,
        keras.Input((4,), name="flower"),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dense(3, activation="softmax", name="scores"),
    )


def dense():
    write("dense", of_keras(iris()), {"serving_default": [table(1, 4)]})


def calibration():
    rng = np.random.default_rng(7)
    for _ in range(200):
        yield [rng.normal(0, 2, (1, 4)).astype(np.float32)]


def quantised(kind):
    return of_keras(
        iris(),
        optimizations=[tf.lite.Optimize.DEFAULT],
        representative_dataset=calibration,
        target_spec=tf.lite.TargetSpec(supported_ops=[tf.lite.OpsSet.TFLITE_BUILTINS_INT8]),
        inference_input_type=kind,
        inference_output_type=kind,
    )


def dense_int8():
    rows = np.random.default_rng(2).integers(-128, 128, (ROWS, 4)).astype(np.int8)
    write("dense_int8", quantised(tf.int8), {"serving_default": [rows]})


def dense_uint8():
    rows = np.random.default_rng(3).integers(0, 256, (ROWS, 4)).astype(np.uint8)
    write("dense_uint8", quantised(tf.uint8), {"serving_default": [rows]})


def dense_float16():
    spec = tf.lite.TargetSpec()
    spec.supported_types = [tf.float16]
    model = of_keras(iris(), optimizations=[tf.lite.Optimize.DEFAULT], target_spec=spec)
    write("dense_float16", model, {"serving_default": [table(4, 4)]})


def dense_dynamic_range():
    big = model_of(
        5,
        keras.Input((40,)),
        keras.layers.Dense(64, activation="gelu"),
        keras.layers.Dense(2),
    )
    model = of_keras(big, optimizations=[tf.lite.Optimize.DEFAULT])
    rows = np.random.default_rng(5).integers(-3, 4, (ROWS, 40)).astype(np.float32)
    write("dense_dynamic_range", model, {"serving_default": [rows]})


def convolution_of_one():
    """Takes one image only: its first dimension is 1."""
    model = model_of(
        6,
        keras.Input(batch_shape=(1, 8, 8, 3), name="image"),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(2),
    )
    # Few different values, so that they are compressed well.
    images = np.random.default_rng(6).integers(-4, 5, (ROWS, 8, 8, 3)).astype(np.float32)
    write("convolution_of_one", of_keras(model), {"serving_default": [images]}, by_row=True)


def recurrent():
    model = model_of(
        7,
        keras.Input((5, 3)),
        keras.layers.Conv1D(4, 2, padding="same"),
        keras.layers.GRU(6, unroll=True),
        keras.layers.Dense(1),
    )
    rows = np.random.default_rng(8).normal(0, 1, (ROWS, 5, 3)).astype(np.float32)
    write("recurrent", of_keras(model), {"serving_default": [rows]})


class Several(tf.Module):
    def __init__(self):
        self.weights = tf.constant(np.arange(6, dtype=np.float32).reshape(3, 2))

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "x")])
    def project(self, x):
        return {"projected": x @ self.weights}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 2], tf.float32, "left"),
            tf.TensorSpec([None, 2], tf.float32, "right"),
        ]
    )
    def compare(self, left, right):
        return {"sum": left + right, "equal": tf.equal(left, right), "alpha": left * 2.0}


def signatures():
    module = Several()
    functions = {"project": module.project, "compare": module.compare}
    converter = tf.lite.TFLiteConverter.from_saved_model(saved(module, functions))
    left = table(9, 2)
    right = np.where(np.arange(ROWS)[:, None] % 3 == 0, left, table(10, 2))
    cases = {"project": [table(11, 3)], "compare": [left, right]}
    write("signatures", converter.convert(), cases)


def saved(module, functions):
    folder = tempfile.mkdtemp()
    tf.saved_model.save(module, folder, signatures=functions)
    return folder


class Lengths(tf.Module):
    """Takes any number of rows of any length."""

    @tf.function(input_signature=[tf.TensorSpec([None, None, 4], tf.float32, "steps")])
    def of(self, steps):
        return {"mean": tf.reduce_mean(steps, axis=1), "twice": steps * 2.0}


def lengths():
    module = Lengths()
    folder = saved(module, {"serving_default": module.of})
    converted = tf.lite.TFLiteConverter.from_saved_model(folder).convert()
    steps = np.random.default_rng(12).normal(0, 1, (250, 7, 4)).astype(np.float32)
    write("lengths", converted, {"serving_default": [steps]})


class Strings(tf.Module):
    def __init__(self):
        keys = tf.constant(["red", "green", "blue", "", "\u00e4rger"])
        values = tf.constant([1, 2, 3, 4, 5], tf.int64)
        initializer = tf.lookup.KeyValueTensorInitializer(keys, values)
        self.table = tf.lookup.StaticHashTable(initializer, -1)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "colour")])
    def look_up(self, colour):
        return {"number": self.table.lookup(colour)}


def strings():
    module = Strings()
    folder = saved(module, {"serving_default": module.look_up})
    converted = tf.lite.TFLiteConverter.from_saved_model(folder).convert()
    some = ["red", "green", "blue", "", "\u00e4rger", "black", "x" * 300]
    colours = np.array([some[index % 7].encode() for index in range(ROWS)], dtype=object)
    write("strings", converted, {"serving_default": [colours]})


class Words(tf.Module):
    def __init__(self):
        self.words = tf.constant(["one", "two", "", "\u00e4rger" * 40])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, "index")])
    def of(self, index):
        return {"word": tf.gather(self.words, index)}


def words():
    module = Words()
    folder = saved(module, {"serving_default": module.of})
    converted = tf.lite.TFLiteConverter.from_saved_model(folder).convert()
    write("words", converted, {"serving_default": [np.arange(ROWS, dtype=np.int32) % 4]})


class Types(tf.Module):
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 2], tf.int64, "int64"),
            tf.TensorSpec([None, 2], tf.int32, "int32"),
            tf.TensorSpec([None, 2], tf.bool, "bool"),
        ]
    )
    def of(self, int64, int32, bool):  # noqa: A002
        return {
            "int64": int64 + 1,
            "int32": int32 * 3,
            "bool": tf.logical_not(bool),
            "float": tf.cast(int32, tf.float32),
        }


def types():
    module = Types()
    folder = saved(module, {"serving_default": module.of})
    converted = tf.lite.TFLiteConverter.from_saved_model(folder).convert()
    rng = np.random.default_rng(13)
    inputs = [
        rng.integers(-(2**62), 2**62, (ROWS, 2)),
        rng.integers(-(2**29), 2**29, (ROWS, 2)).astype(np.int32),
        rng.integers(0, 2, (ROWS, 2)).astype(bool),
    ]
    inputs = dict(zip(("int64", "int32", "bool"), inputs, strict=True))
    write("types", converted, {"serving_default": inputs})


class ByValues(tf.Module):
    """The number of rows of its output depends on the values of its input."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def of(self, x):
        return {"positive": tf.where(x > 0)}


def by_values():
    module = ByValues()
    folder = saved(module, {"serving_default": module.of})
    converted = tf.lite.TFLiteConverter.from_saved_model(folder).convert()
    write("by_values", converted, {"serving_default": [table(14, 1)[:, 0]]})


def without_signature():
    """Without the signature that converters write, as old ones did."""
    model = flatbuffer_utils.read_model_from_bytearray(bytearray(of_keras(iris(15))))
    model.signatureDefs = []
    converted = bytes(flatbuffer_utils.convert_object_to_bytearray(model))
    write("without_signature", converted, {None: [table(15, 4)]})


def refused(operations, **options):
    """A model with an operation that TensorFlow Lite lacks."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "x")])
    def absolute(x):
        return {"absolute": tf.abs(x)}

    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [absolute.get_concrete_function()], tf.Module()
    )
    converter.target_spec.supported_ops = operations
    for name, value in options.items():
        setattr(converter, name, value)
    return converter.convert()


def write(name, model, cases, by_row=False):
    path = HERE / "made" / f"{name}.tflite"
    path.write_bytes(model)
    expected = {}
    interpreter = Interpreter(str(path))
    for signature, inputs in cases.items():
        run(interpreter, signature, inputs, by_row, expected)
    save(path, expected)


def run(interpreter, signature, inputs, by_row, expected):
    """Adds the inputs and the outputs of a signature, or of a model without one."""
    details = interpreter.get_input_details()
    if signature is None:
        feeds = {detail["name"]: value for detail, value in zip(details, inputs, strict=True)}
    else:
        names = interpreter.get_signature_list()[signature]["inputs"]
        feeds = inputs if isinstance(inputs, dict) else dict(zip(names, inputs, strict=True))
    key = signature or "serving_default"
    outputs = call(interpreter, signature, feeds, by_row)
    expected.update({f"{key}/inputs/{name}": value for name, value in feeds.items()})
    expected.update({f"{key}/outputs/{name}": value for name, value in outputs.items()})


def call(interpreter, signature, feeds, by_row=False):
    if by_row:
        rows = len(next(iter(feeds.values())))
        each = [
            call(interpreter, signature, {name: v[i : i + 1] for name, v in feeds.items()})
            for i in range(rows)
        ]
        return {name: np.concatenate([one[name] for one in each]) for name in each[0]}
    if signature is not None:
        return interpreter.get_signature_runner(signature)(**feeds)
    for detail in interpreter.get_input_details():
        interpreter.resize_tensor_input(detail["index"], feeds[detail["name"]].shape)
    interpreter.allocate_tensors()
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], feeds[detail["name"]])
    interpreter.invoke()
    outputs = interpreter.get_output_details()
    return {detail["name"]: interpreter.get_tensor(detail["index"]) for detail in outputs}


def predict(path):
    """The predictions of somebody else's model for random inputs of the declared shapes."""
    interpreter = Interpreter(str(path))
    rng = np.random.default_rng(99)
    expected = {}
    for signature in interpreter.get_signature_list() or [None]:
        if signature is None:
            details = {each["name"]: each for each in interpreter.get_input_details()}
        else:
            details = interpreter.get_signature_runner(signature).get_input_details()
        rows = 1 if any(not len(detail["shape"]) for detail in details.values()) else None
        ends = [*details.values(), *interpreter.get_output_details()]
        by_row = all(len(detail["shape"]) > 1 and detail["shape"][0] == 1 for detail in ends)
        rows = rows or (by_row and some_rows(details)) or None
        inputs = {name: random(rng, detail, rows) for name, detail in details.items()}
        ordered = inputs if signature is not None else list(inputs.values())
        run(interpreter, signature, ordered, by_row, expected)
    save(path, expected)


def some_rows(details):
    """As many rows as keep the file small, at most 1,000."""
    size = sum(int(np.prod(detail["shape"])) for detail in details.values())
    return int(max(1, min(ROWS, 100_000 // size)))


def random(rng, detail, rows):
    shape = [1 if size < 0 else int(size) for size in detail["shape"]]
    if rows and shape:
        shape[0] = rows
    kind = np.dtype(detail["dtype"])
    if kind == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        low, high = (limits.min, limits.max) if kind.itemsize == 1 else (0, 8)
        return rng.integers(low, high, shape, endpoint=True).astype(kind)
    if kind.kind == "f":
        # Few different values, so that they are compressed well.
        return (rng.integers(-4, 5, shape) / 4).astype(kind)
    return np.full(shape, b"some text", dtype=object)


def save(path, expected):
    """A gzip file of tensors, each a line "NAME<tab>DTYPE<tab>SIZE,SIZE" and its values in little endian;
    a string is its length, in four bytes, and its bytes."""
    buffer = io.BytesIO()
    for name, values in expected.items():
        value = np.asarray(values)
        is_text = value.dtype.kind in "OSU"
        kind = "string" if is_text else value.dtype.name
        sizes = ",".join(str(size) for size in value.shape)
        buffer.write(f"{name}\t{kind}\t{sizes}\n".encode())
        if not is_text:
            buffer.write(
                np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<")).tobytes()
            )
            continue
        for text in value.reshape(-1):
            buffer.write(len(text).to_bytes(4, "little") + bytes(text))
    path.with_suffix(".expected.gz").write_bytes(gzip.compress(buffer.getvalue(), 9, mtime=0))


if __name__ == "__main__":
    main()
