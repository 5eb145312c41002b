"""wide_mlp: a 784-512-512-10 network on enlarged digits, for measuring batching."""

import numpy as np
import tensorflow as tf

import digits_data
from common import Dense, export, fit, load, make_repeatable, output_root


class WideMlp(tf.Module):
    def __init__(self):
        super().__init__()
        self.first = Dense("first", 784, 512)
        self.second = Dense("second", 512, 512)
        self.last = Dense("last", 512, 10, relu=False)

    def logits(self, x):
        return self.last(self.second(self.first(x)))

    @tf.function(input_signature=[tf.TensorSpec([None, 784], tf.float32, name="x")])
    def serve(self, x):
        return {"probabilities": tf.nn.softmax(self.logits(x))}


def train(model, x, labels):
    def loss_of(x, y):
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model.logits(x)))

    fit(loss_of, model.trainable_variables, [x, labels], epochs=15, batch=64, rate=1e-3, decay=0.02)


def main():
    folder = output_root() / "models/wide_mlp/1"
    images, labels = digits_data.load_grey()
    training, held_out = digits_data.split()
    make_repeatable(31)
    model = WideMlp()
    train(model, digits_data.flat_28(images[training]), labels[training])
    export(model, folder)
    probabilities = load(folder)(x=digits_data.flat_28(images[held_out]))["probabilities"]
    accuracy = np.mean(probabilities.argmax(axis=1) == labels[held_out])
    print(f"wide_mlp/1: held-out accuracy {accuracy:.2%}")


if __name__ == "__main__":
    main()
