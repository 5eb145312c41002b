"""Makes the SavedModels of this folder: models whose outputs for a row depend on the other rows of a batch,
and `text_of_length`, which does not. Each takes what `requests.json` has for it.

    pip install tensorflow-cpu==2.21.0 keras
    python3 make_rows.py
"""

import json
import os
import shutil

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf
from keras import layers

HERE = os.path.dirname(os.path.abspath(__file__))
FLOATS = [tf.TensorSpec([None, 4], tf.float32, name="x")]
IDS = [tf.TensorSpec([None], tf.int64, name="x")]
TEXTS = [tf.TensorSpec([None], tf.string, name="x")]
WORDS = ["the", "cat", "sat", "on", "mat", "dog", "ran", "far"]

MODELS = {}


def model(specs):
    def add(function):
        MODELS[function.__name__] = (function, specs)
        return function

    return add


@model(FLOATS)
def softmax_over_rows(x):
    return tf.nn.softmax(x, axis=0)


@model(FLOATS)
def running_sum_of_rows(x):
    return tf.cumsum(x, axis=0)


@model(FLOATS)
def sorted_rows(x):
    return tf.sort(x, axis=0)


@model(FLOATS)
def largest_of_rows(x):
    best = tf.math.top_k(tf.transpose(x), 1).values
    return x - tf.transpose(best)


@model(FLOATS)
def first_places_of_equal_rows(x):
    _, places = tf.unique(tf.cast(tf.round(x[:, 0]), tf.int32))
    return places


@model(FLOATS)
def boxes_that_are_kept(x):
    near = tf.minimum(x[:, :2], x[:, 2:])
    boxes = tf.concat([near, near + 1.0 + tf.abs(x[:, 2:])], 1)
    scores = tf.reduce_sum(x, 1)
    kept = tf.image.non_max_suppression(boxes, scores, 100, iou_threshold=0.1)
    marks = tf.scatter_nd(kept[:, None], tf.ones_like(kept, tf.float32), [tf.shape(x)[0]])
    return scores * marks


@model(FLOATS)
def without_mean_of_rows(x):
    return x - tf.reduce_mean(x, 0)


@model(FLOATS)
def scaled_by_number_of_rows(x):
    return x / tf.cast(tf.shape(x)[0], tf.float32)


@model(FLOATS)
def random_noise(x):
    return x + tf.random.uniform(tf.shape(x))


@model(FLOATS)
def noise_of_a_seed(x):
    return x + tf.random.stateless_uniform(tf.shape(x), [1, 2])


@model(TEXTS)
def ends_of_rows(x):
    return tf.strings.split(x).row_splits[1:]


@model(FLOATS)
def places_of_positive_rows(x):
    return tf.where(tf.reduce_max(tf.abs(x), 1) >= 0.0)[:, 0]


@model(TEXTS)
def mean_of_padded_words(x):
    return tf.reduce_mean(
        tf.cast(tf.strings.length(tf.strings.split(x).to_tensor()), tf.float32), 1
    )


@model(FLOATS)
def attention_to_rows(x):
    return tf.nn.softmax(x @ tf.transpose(x)) @ x


@model(FLOATS)
def order_of_rows(x):
    return tf.argsort(x[:, 0])


@model(FLOATS)
def moved_rows(x):
    return tf.roll(x, 1, 0)


@model(FLOATS)
def state_from_row_to_row(x):
    return tf.scan(lambda state, row: 0.5 * state + row, x, initializer=tf.zeros([4]))


@model(FLOATS)
def reshaped_columns(x):
    return tf.reshape(tf.transpose(x), tf.shape(x))


@model(FLOATS)
def divided_by_norm(x):
    return x / (tf.norm(x) + 1e-3)


@model(FLOATS)
def branch_by_any_row(x):
    return tf.cond(tf.reduce_any(x < 0.0), lambda: x * 2.0, lambda: x - 1.0)


@model(FLOATS)
def without_first_row(x):
    return x - x[0]


@model(FLOATS)
def with_number_of_row(x):
    return x + tf.cast(tf.range(tf.shape(x)[0]), tf.float32)[:, None]


@model(FLOATS)
def row_by_an_index(x):
    index = tf.clip_by_value(tf.cast(tf.abs(x[:, 0]), tf.int32), 0, tf.shape(x)[0] - 1)
    return tf.gather(x, index)


@model(FLOATS)
def steps_of_the_slowest_row(x):
    steps = tf.cast(tf.reduce_max(tf.abs(x)), tf.int32)
    return tf.while_loop(lambda i, _: i < steps, lambda i, y: (i + 1, tf.tanh(y) + 0.1), [0, x])[1]


@model(FLOATS)
def quantized_by_the_range(x):
    return tf.quantization.quantize_and_dequantize_v2(x, 0.0, 0.0, range_given=False)


@model(IDS)
def how_often_in_the_batch(x):
    return tf.gather(tf.math.bincount(tf.cast(x, tf.int32)), x)


@model(IDS)
def mean_of_equal_ids(x):
    values = tf.cast(x * x + 1, tf.float32) * tf.cast(tf.range(1, tf.shape(x)[0] + 1), tf.float32)
    return tf.gather(tf.math.unsorted_segment_mean(values, x, 100), x)


@model(IDS)
def last_one_wins(x):
    places = tf.cast(tf.range(tf.shape(x)[0]), tf.float32)
    return tf.gather(tf.tensor_scatter_nd_update(tf.zeros([100]), x[:, None], places), x)


def text_model(length):
    words = layers.TextVectorization(output_sequence_length=length, vocabulary=WORDS)
    given = layers.Input((), dtype="string", name="x")
    mean = layers.GlobalAveragePooling1D()(layers.Embedding(12, 8)(words(given)))
    return keras.Model(given, layers.Dense(2, activation="softmax", name="y")(mean))


def norm_model():
    given = layers.Input((4,), name="x")
    norm = layers.BatchNormalization()(layers.Dense(8)(given), training=True)
    return keras.Model(given, layers.Dense(2, name="y")(norm))


KERAS = {
    "text_of_any_length": lambda: text_model(None),
    "text_of_length": lambda: text_model(16),
    "norm_in_training": norm_model,
}


def requests(specs):
    rng = np.random.default_rng(5)
    made = []
    for _ in range(200):
        rows = int(rng.choice([1, 1, 1, 2, 3]))
        if specs is IDS:
            made.append(rng.integers(0, 10, rows).tolist())
        elif specs is TEXTS:
            lengths = rng.choice([1, 1, 1, 1, 2, 5, 12], rows)
            made.append([" ".join(rng.choice(WORDS, length)) for length in lengths])
        else:
            made.append(np.round(rng.normal(0, 3, (rows, 4)), 2).tolist())
    return made


def signature(function, specs):
    return tf.function(lambda x: {"y": function(x)}, input_signature=specs)


def main():
    all_requests = {}
    for name, (function, specs) in MODELS.items():
        folder = os.path.join(HERE, name, "1")
        shutil.rmtree(folder, ignore_errors=True)
        module = tf.Module()
        module.f = signature(function, specs)
        tf.saved_model.save(module, folder, signatures={"serving_default": module.f})
        all_requests[name] = requests(specs)
    for name, build in KERAS.items():
        folder = os.path.join(HERE, name, "1")
        shutil.rmtree(folder, ignore_errors=True)
        keras.utils.set_random_seed(7)
        build().export(folder, verbose=False)
        all_requests[name] = requests(TEXTS if name.startswith("text") else FLOATS)
    with open(os.path.join(HERE, "requests.json"), "w") as file:
        json.dump(all_requests, file)
        file.write("\n")


if __name__ == "__main__":
    main()
