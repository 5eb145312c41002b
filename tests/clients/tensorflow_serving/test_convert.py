"""Keras models, converted with `tensorserve convert --with-python` and served."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path

import keras
import numpy as np
import tf_keras

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import BINARY, Running, environment


def layers(of):
    """A model of this Keras, whose layers have parameters that Keras 2 and 3 call differently."""
    of.utils.set_random_seed(1)
    return of.Sequential(
        [of.Input((5, 3)), of.layers.LSTM(4), of.layers.BatchNormalization(), of.layers.Dense(2)]
    )


class Conversions(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.home = Path(self.folder.name)
        self.rows = np.random.default_rng(1).normal(0, 1, (20, 5, 3)).astype(np.float32)

    def convert(self, *arguments, **variables):
        return subprocess.run(
            [BINARY, "convert", "--with-python", *map(str, arguments)],
            env={**environment(), **variables},
            check=False,
            capture_output=True,
            text=True,
        )

    def answers(self, model):
        server = Running(
            ["serve", str(model), "--http-port", "0", "--grpc-port", "0"], environment()
        )
        try:
            url = f"{server.url}/v1/models/{model.name}:predict"
            body = json.dumps({"instances": self.rows.tolist()}).encode()
            with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:
                return np.array(json.load(answer)["predictions"], np.float32)
        finally:
            server.stop()

    def check(self, of, name):
        model = layers(of)
        model.save(self.home / name)
        done = self.convert(self.home / name, "--python", sys.executable)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("is a SavedModel now", done.stdout)
        out = (self.home / name).with_suffix("")
        expected = model.predict(self.rows, verbose=0)
        np.testing.assert_allclose(self.answers(out), expected, rtol=1e-5, atol=1e-6)
        again = self.convert(self.home / name, "--python", sys.executable)
        self.assertEqual(again.returncode, 1)
        self.assertIn("exists", again.stderr)

    def test_keras(self):
        self.check(keras, "new.keras")

    def test_hdf5(self):
        self.check(keras, "new.h5")

    def test_hdf5_of_keras_2(self):
        self.check(tf_keras, "old.h5")

    def test_the_active_environment_is_used(self):
        layers(keras).save(self.home / "model.keras")
        done = self.convert(
            self.home / "model.keras", self.home / "a/1", VIRTUAL_ENV=str(Path(sys.prefix))
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.home / "a/1/saved_model.pb").is_file())

    def test_a_damaged_file_leaves_nothing(self):
        (self.home / "bad.keras").write_bytes(b"PK")
        done = self.convert(self.home / "bad.keras", "--python", sys.executable)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot convert", done.stderr)
        self.assertEqual(os.listdir(self.home), ["bad.keras"])


if __name__ == "__main__":
    unittest.main()
