"""Writes a Keras model as a SavedModel: python -c THIS SOURCE TARGET. Exit status 3: no TensorFlow."""

import os
import sys

# Not the working directory: a file there could have the name of a package.
sys.path[:] = [entry for entry in sys.path if entry]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"
source, target = sys.argv[1:3]

try:
    import tensorflow as tf
except ModuleNotFoundError as error:
    sys.exit(3 if error.name == "tensorflow" else str(error))
import keras  # noqa: E402


def load():
    """The model, and the Keras that has loaded it."""
    try:
        return keras.models.load_model(source, compile=False), keras
    except Exception as error:  # noqa: BLE001
        # Keras 3 does not know all layers of Keras 2; tf_keras is Keras 2.
        try:
            import tf_keras  # noqa: PLC0415
        except ImportError:
            if not source.endswith(".keras"):
                error.add_note("Keras 2 may load it: install tf_keras in this Python.")
            raise error from None
        return tf_keras.models.load_model(source, compile=False), tf_keras


model, used = load()
if hasattr(model, "export"):
    model.export(target)
else:
    tf.saved_model.save(model, target)
print(f"TensorFlow {tf.__version__}, {used.__name__} {used.__version__}", file=sys.stderr)
