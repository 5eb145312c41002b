"""Writes a ResNet-50 with random weights that takes JPEG files, as the model of `jpeg_resnet50`.

    pip install -r models/scripts/requirements.txt
    python make_resnet50.py DIRECTORY
"""

import sys

import tensorflow as tf

SIDE = 224
# Subtracted from blue, green and red, as Keras's preprocess_input does for ResNet-50.
MEANS = [103.939, 116.779, 123.68]


class Classifier(tf.Module):
    """JPEG files in; the best class and all probabilities out."""

    def __init__(self):
        super().__init__()
        tf.keras.utils.set_random_seed(1)
        self.network = tf.keras.applications.ResNet50(weights=None)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
    def serve(self, image_bytes):
        image = tf.TensorSpec([SIDE, SIDE, 3], tf.float32)
        images = tf.map_fn(decoded, image_bytes, fn_output_signature=image)
        probabilities = self.network(images, training=False)
        return {"classes": tf.argmax(probabilities, axis=1), "probabilities": probabilities}


def decoded(jpeg):
    image = tf.io.decode_jpeg(jpeg, channels=3)
    image = tf.image.resize(image, [SIDE, SIDE])
    return image[..., ::-1] - tf.constant(MEANS)


if __name__ == "__main__":
    model = Classifier()
    tf.saved_model.save(model, f"{sys.argv[1]}/1", signatures=model.serve)
