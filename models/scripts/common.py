"""Shared by the make_*.py scripts: options, layers, training and export."""

import argparse
import math
import shutil
from pathlib import Path

import numpy as np
import tensorflow as tf

REPOSITORY = Path(__file__).resolve().parents[2]


def output_root():
    """The directory that receives models/ and examples/: the repository, or --out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=REPOSITORY)
    return parser.parse_args().out


def make_repeatable(seed):
    """Fixes every source of randomness, so that a second run gives the same weights."""
    tf.keras.utils.set_random_seed(seed)
    tf.config.experimental.enable_op_determinism()


class Dense(tf.Module):
    """A fully connected layer; ReLU unless it is the last one."""

    def __init__(self, name, inputs, outputs, relu=True):
        super().__init__(name=name)
        start = tf.random.normal([inputs, outputs], stddev=math.sqrt((1 + relu) / inputs))
        self.kernel = tf.Variable(start, name=f"{name}/kernel")
        self.bias = tf.Variable(tf.zeros([outputs]), name=f"{name}/bias")
        self.relu = relu

    def __call__(self, x):
        x = tf.nn.bias_add(tf.matmul(x, self.kernel), self.bias)
        return tf.nn.relu(x) if self.relu else x


def fit(loss_of, variables, columns, *, epochs, batch, rate, decay=0.0, seed=0):
    """Minimises loss_of(*columns of a batch) with AdamW and a cosine-shaped rate.

    The moments live in this function only, so no optimiser state can end up in
    an exported checkpoint.
    """
    columns = [tf.constant(column) for column in columns]
    rows = columns[0].shape[0]
    steps_per_epoch = rows // batch
    total = epochs * steps_per_epoch
    first = [tf.Variable(tf.zeros_like(v)) for v in variables]
    second = [tf.Variable(tf.zeros_like(v)) for v in variables]

    @tf.function
    def train(chosen, step):
        with tf.GradientTape() as tape:
            loss = loss_of(*[tf.gather(column, chosen) for column in columns])
        gradients = tape.gradient(loss, variables)
        now = rate * 0.5 * (1.0 + tf.cos(math.pi * step / total))
        for v, m, s, gradient in zip(variables, first, second, gradients, strict=True):
            g = tf.convert_to_tensor(gradient)  # embedding gradients arrive sparse
            m.assign(0.9 * m + 0.1 * g)
            s.assign(0.999 * s + 0.001 * g * g)
            m_hat = m / (1.0 - tf.pow(0.9, step + 1.0))
            s_hat = s / (1.0 - tf.pow(0.999, step + 1.0))
            v.assign_sub(now * (m_hat / (tf.sqrt(s_hat) + 1e-7) + decay * v))

    order = np.random.default_rng(seed)
    step = 0
    for _ in range(epochs):
        shuffled = order.permutation(rows)
        for start in range(0, steps_per_epoch * batch, batch):
            train(tf.constant(shuffled[start : start + batch]), tf.constant(float(step)))
            step += 1


def export(module, folder):
    """Writes module.serve as the serving_default signature of a fresh SavedModel."""
    shutil.rmtree(folder, ignore_errors=True)
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})
    assets = folder / "assets"
    if assets.is_dir() and not any(assets.iterdir()):
        assets.rmdir()  # git does not keep an empty directory


def load(folder):
    """The exported signature as a function from named arrays to named arrays."""
    loaded = tf.saved_model.load(str(folder))
    signature = loaded.signatures["serving_default"]
    specs = signature.structured_input_signature[1]

    def predict(**inputs):
        assert loaded is not None  # holds the variables, which the signature does not
        tensors = {name: tf.constant(value, specs[name].dtype) for name, value in inputs.items()}
        outputs = signature(**tensors)
        return {name: value.numpy() for name, value in outputs.items()}

    return predict
