"""digits: recognizes the digit in a PNG or JPEG image; version 1 is an MLP, 2 a convnet.

Also writes the sample images in examples/images/digits/.
"""

import json
import shutil

import numpy as np
import tensorflow as tf

import digits_data
from common import Dense, export, fit, load, make_repeatable, output_root


def decode(data):
    """One PNG or JPEG -> float32 [8, 8, 1] in 0..1."""
    image = tf.io.decode_image(data, channels=1, expand_animations=False)
    image.set_shape([None, None, 1])
    # Area averages what it shrinks, and leaves an image of 8 x 8 exactly as it is.
    small = tf.image.resize(image[tf.newaxis], [8, 8], method="area")[0]
    return small / 255.0


def decode_all(image_bytes):
    spec = tf.TensorSpec([8, 8, 1], tf.float32)
    return tf.map_fn(decode, image_bytes, fn_output_signature=spec)


class Classifier(tf.Module):
    """The signature; a subclass supplies logits(images)."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
    def serve(self, image_bytes):
        probabilities = tf.nn.softmax(self.logits(decode_all(image_bytes)))
        return {"classes": tf.argmax(probabilities, axis=1), "probabilities": probabilities}


class Mlp(Classifier):
    def __init__(self):
        super().__init__()
        self.hidden = Dense("hidden", 64, 128)
        self.last = Dense("last", 128, 10, relu=False)

    def logits(self, images):
        return self.last(self.hidden(tf.reshape(images, [-1, 64])))


class Convolution(tf.Module):
    """A 3 x 3 convolution that keeps the image size, then ReLU."""

    def __init__(self, name, inputs, outputs):
        super().__init__(name=name)
        start = tf.random.normal([3, 3, inputs, outputs], stddev=(2.0 / (9 * inputs)) ** 0.5)
        self.kernel = tf.Variable(start, name=f"{name}/kernel")
        self.bias = tf.Variable(tf.zeros([outputs]), name=f"{name}/bias")

    def __call__(self, x):
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, self.kernel, 1, "SAME"), self.bias))


class Convnet(Classifier):
    def __init__(self):
        super().__init__()
        self.first = Convolution("first", 1, 16)
        self.second = Convolution("second", 16, 32)
        self.hidden = Dense("hidden", 4 * 4 * 32, 64)
        self.last = Dense("last", 64, 10, relu=False)

    def logits(self, images):
        rows = tf.shape(images)[0]
        # oneDNN's fused convolution fails on an empty batch: add an image.
        lent = tf.cast(tf.equal(rows, 0), tf.int32)
        images = tf.pad(images, [[0, lent], [0, 0], [0, 0], [0, 0]])
        x = self.second(self.first(images))
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        return self.last(self.hidden(tf.reshape(x, [-1, 4 * 4 * 32])))[:rows]


def files(images, size=8, kind="PNG"):
    """Every image as the bytes of a file, upscaled first if size is not 8."""
    if size != 8:
        images = [digits_data.upscale(image, size) for image in images]
    return [digits_data.encode(image, kind) for image in images]


def train(model, encoded, labels, epochs):
    """Trains on images that the graph decodes, so that both use the same pixels."""

    def loss_of(x, y):
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model.logits(x)))

    columns = [decode_all(tf.constant(encoded)), labels]
    fit(loss_of, model.trainable_variables, columns, epochs=epochs, batch=32, rate=2e-3, decay=0.02)


def build(version, images, labels):
    """A trained model; its data is every image as it is, enlarged, and as an enlarged JPEG."""
    make_repeatable(20 + version)
    model = Mlp() if version == 1 else Convnet()
    encoded = files(images) + files(images, 64) + files(images, 64, "JPEG")
    train(model, encoded, np.tile(labels, 3), epochs=20 if version == 1 else 15)
    return model


def report(name, predict, images, labels):
    for size, kind in [(8, "PNG"), (64, "PNG"), (64, "JPEG")]:
        classes = predict(image_bytes=files(images, size, kind))["classes"]
        print(f"{name}: held-out accuracy {np.mean(classes == labels):.2%}, {size} x {size} {kind}")


def recognised(held_out, images, labels, predictors):
    """The held-out indices, in order, whose enlarged image every version classifies correctly."""
    ordered = np.sort(held_out)
    encoded = files(images[ordered], 64)
    right = [p(image_bytes=encoded)["classes"] == labels[ordered] for p in predictors.values()]
    return ordered[np.all(right, axis=0)]


def choose_samples(indices, labels):
    """The first index of each digit, then the second of 3 and of 8."""
    of_digit = {digit: [int(i) for i in indices if labels[i] == digit] for digit in range(10)}
    return [of_digit[digit][0] for digit in range(10)] + [of_digit[3][1], of_digit[8][1]]


def expectation(data, label, predictors):
    expected = {"label": label}
    for version, predict in predictors.items():
        probability = predict(image_bytes=[data])["probabilities"][0, label]
        expected[f"v{version}_probability"] = round(float(probability), 6)
    return expected


def write_samples(folder, images, labels, chosen, predictors):
    """64 x 64 PNGs of the chosen images, two of them also as JPEG, and the expected results."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wanted = [(index, "PNG", "png") for index in chosen]
    wanted += [(index, "JPEG", "jpg") for index in (chosen[2], chosen[7])]
    expected = {}
    for index, kind, suffix in wanted:
        label = int(labels[index])
        path = folder / f"{label}_{index}.{suffix}"
        data = files([images[index]], 64, kind)[0]
        path.write_bytes(data)
        expected[path.name] = expectation(data, label, predictors)
    text = json.dumps(dict(sorted(expected.items())), indent=2)
    (folder / "expected.json").write_text(text + "\n")


def main():
    root = output_root()
    images, labels = digits_data.load_grey()
    training, held_out = digits_data.split()
    predictors = {}
    for version in (1, 2):
        folder = root / f"models/digits/{version}"
        export(build(version, images[training], labels[training]), folder)
        predictors[version] = load(folder)
        report(f"digits/{version}", predictors[version], images[held_out], labels[held_out])
    samples = root / "examples/images/digits"
    chosen = choose_samples(recognised(held_out, images, labels, predictors), labels)
    write_samples(samples, images, labels, chosen, predictors)


if __name__ == "__main__":
    main()
