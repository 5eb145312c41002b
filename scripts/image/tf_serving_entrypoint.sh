#!/bin/sh
# /usr/bin/tf_serving_entrypoint.sh of the images: the entrypoint of TensorFlow Serving's image, with
# MODEL_NAME and MODEL_BASE_PATH, for scripts and manifests that name it. A file and not a link to the
# binary, which an image that writes its own script here would overwrite.
exec tensorserve tf_serving_entrypoint "$@"
