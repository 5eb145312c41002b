"""scikit-learn's handwritten digits: the fixed split, and the images as files."""

import io

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def load_grey():
    """All images as uint8 [n, 8, 8], white on black, and their labels."""
    data = load_digits()
    return np.rint(data.images * 255.0 / 16.0).astype(np.uint8), data.target.astype(np.int64)


def split():
    """Indices of the training rows and of the held-out 20 %; never changes."""
    _, labels = load_grey()
    return train_test_split(np.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels)


def upscale(image, size, method=Image.Resampling.BICUBIC):
    """One uint8 image resized to size x size."""
    return np.asarray(Image.fromarray(image).resize((size, size), method))


def encode(image, kind="PNG"):
    """The bytes of a PNG, or of a JPEG of quality 95."""
    options = {"quality": 95} if kind == "JPEG" else {"optimize": True}
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, **options)
    return buffer.getvalue()


def flat_28(images):
    """Images as float32 [n, 784] in 0..1, upscaled to 28 x 28."""
    big = np.stack([upscale(image, 28) for image in images])
    return (big.reshape(len(big), 784) / 255.0).astype(np.float32)
