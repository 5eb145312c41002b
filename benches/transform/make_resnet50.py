"""Writes a ResNet-50 with random weights that takes JPEG files, as the model of `jpeg_resnet50`.

pip install -r models/scripts/requirements.txt
python make_resnet50.py DIRECTORY
"""

import sys

import tensorflow as tf

SIDE = 224
# Subtracted from blue, green and red, as Keras's preprocess_input does for ResNet-50.
MEANS = [103.939, 116.779, 123.68]


def decoded(jpeg):
    """One JPEG file -> float32 [224, 224, 3]."""
    image = tf.io.decode_jpeg(jpeg, channels=3)
    image = tf.image.resize(image, [SIDE, SIDE])
    return image[..., ::-1] - tf.constant(MEANS)


def main():
    tf.keras.utils.set_random_seed(1)
    network = tf.keras.applications.ResNet50(weights=None)

    def serve(image_bytes):
        image = tf.TensorSpec([SIDE, SIDE, 3], tf.float32)
        images = tf.map_fn(decoded, image_bytes, fn_output_signature=image)
        probabilities = network(images, training=False)
        return {"classes": tf.argmax(probabilities, axis=1), "probabilities": probabilities}

    archive = tf.keras.export.ExportArchive()
    archive.track(network)
    inputs = [tf.TensorSpec([None], tf.string, name="image_bytes")]
    archive.add_endpoint("serve", serve, input_signature=inputs)
    archive.write_out(f"{sys.argv[1]}/1")


if __name__ == "__main__":
    main()
