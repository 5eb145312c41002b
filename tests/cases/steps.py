"""Writes steps.json: results of TensorFlow and NumPy for images and numbers, for the tests of
pre-processing and post-processing (crates/preprocessing).

    pip install tensorflow-cpu==2.21.0 pillow==13.0.0
    python tests/cases/steps.py > tests/cases/steps.json
"""

import base64
import io
import json
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
from PIL import Image

rng = np.random.default_rng(20261121)


def numbers(array):
    """Floats that survive a round trip through JSON."""
    return [float(number) for number in np.asarray(array, dtype=np.float32).ravel()]


def resizes():
    shapes = [
        ((2, 2, 1), (4, 4)),
        ((4, 4, 1), (2, 2)),
        ((3, 5, 3), (7, 2)),
        ((5, 7, 1), (3, 3)),
        ((8, 8, 3), (5, 11)),
        ((1, 1, 3), (3, 2)),
        ((16, 9, 1), (4, 28)),
        ((2, 3, 1), (2, 3)),
        ((33, 17, 3), (10, 10)),
    ]
    for shape, size in shapes:
        image = rng.integers(0, 256, shape, dtype=np.uint8)
        legacy = tf.compat.v1.image.resize_bilinear(image[None], size)[0]
        yield {
            "shape": shape,
            "size": size,
            "bytes": image.ravel().tolist(),
            "bilinear": numbers(tf.image.resize(image, size)),
            "bilinear_legacy": numbers(legacy),
            "nearest": numbers(tf.image.resize(image, size, method="nearest")),
        }


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def smooth(height, width, channels):
    """A smooth image, which JPEG encodes with little loss."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [128 + 90 * np.sin(x / (3 + c) + y / (5 - c)) for c in range(channels)]
    return np.stack(planes, axis=-1).astype(np.uint8)


def pngs():
    rgb = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    rgba = Image.fromarray(rng.integers(0, 256, (4, 3, 4), dtype=np.uint8))
    grey = Image.fromarray(rng.integers(0, 256, (6, 5), dtype=np.uint8))
    deep = Image.fromarray(rng.integers(0, 65536, (3, 4), dtype=np.uint16))
    yield "rgb", saved(rgb, "PNG")
    yield "rgba", saved(rgba, "PNG")
    yield "grey", saved(grey, "PNG")
    yield "grey and opacity", saved(grey.convert("LA"), "PNG")
    yield "palette", saved(rgb.quantize(9), "PNG")
    yield "one bit", saved(grey.point(lambda value: 255 * (value > 99)).convert("1"), "PNG")
    yield "sixteen bits", saved(deep, "PNG")


def jpegs():
    colour, grey = Image.fromarray(smooth(19, 26, 3)), Image.fromarray(smooth(16, 24, 1)[..., 0])
    yield "4:4:4", saved(colour, "JPEG", quality=95, subsampling=0)
    yield "4:2:0", saved(colour, "JPEG", quality=90, subsampling=2)
    yield "progressive", saved(colour, "JPEG", quality=95, subsampling=0, progressive=True)
    yield "grey", saved(grey, "JPEG", quality=95)


def files(all_files, decode):
    for name, file in all_files:
        colour, grey = decode(file, channels=3).numpy(), decode(file, channels=1).numpy()
        yield {
            "name": name,
            "file": base64.b64encode(file).decode(),
            "shape": colour.shape[:2],
            "rgb": colour.ravel().tolist(),
            "grey": grey.ravel().tolist(),
        }


def decode_jpeg(file, channels):
    return tf.io.decode_jpeg(file, channels=channels, dct_method="INTEGER_ACCURATE")


def scales():
    values = rng.uniform(0, 255, (2, 4, 3)).astype(np.float32)
    mean = np.array([123.675, 116.28, 103.53], dtype=np.float32)
    std = np.array([58.395, 57.12, 57.375], dtype=np.float32)
    factor, offset = np.float32(1 / 127.5), np.float32(-1)
    yield {
        "text": f"mean = {mean.tolist()}\nstd = {std.tolist()}",
        "shape": values.shape,
        "values": numbers(values),
        "scaled": numbers((values - mean) / std),
    }
    yield {
        "text": f"scale = {float(factor)}\noffset = -1",
        "shape": values.shape,
        "values": numbers(values),
        "scaled": numbers(values * factor + offset),
    }
    four = np.arange(4, dtype=np.float32)
    yield {
        "text": "offset = [0, 1, 2, 3]\naxis = 1",
        "shape": values.shape,
        "values": numbers(values),
        "scaled": numbers(values + four[None, :, None]),
    }


def tops():
    for shape, k in [((3, 10), 4), ((2, 3, 5), 5), ((1, 1000), 7), ((4,), 1)]:
        # Few distinct values, so that some are equal.
        values = rng.integers(0, 20, shape).astype(np.float32) / 8
        top = tf.math.top_k(values, k)
        yield {
            "shape": shape,
            "k": k,
            "values": numbers(values),
            "top": numbers(top.values),
            "indices": top.indices.numpy().ravel().tolist(),
        }


def line(name, cases):
    rows = ",\n  ".join(json.dumps(case, separators=(",", ":")) for case in cases)
    return f' "{name}": [\n  {rows}\n ]'


parts = [
    line("resize", resizes()),
    line("png", files(pngs(), tf.io.decode_png)),
    line("jpeg", files(jpegs(), decode_jpeg)),
    line("scale", scales()),
    line("top_k", tops()),
]
print("{\n" + ",\n".join(parts) + "\n}")
