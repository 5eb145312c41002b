"""half_plus_two: y = x / 2 + 2, TensorFlow's well-known sample model."""

import tensorflow as tf

from common import export, load, output_root


class HalfPlusTwo(tf.Module):
    def __init__(self):
        super().__init__()
        # Variables, not constants, so that serving it also exercises a checkpoint.
        self.a = tf.Variable(0.5, name="a")
        self.b = tf.Variable(2.0, name="b")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def serve(self, x):
        return {"y": self.a * x + self.b}


def main():
    folder = output_root() / "models/half_plus_two/1"
    export(HalfPlusTwo(), folder)
    print("half_plus_two: [1, 2, 5] ->", load(folder)(x=[1.0, 2.0, 5.0])["y"])


if __name__ == "__main__":
    main()
