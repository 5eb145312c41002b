"""tensorserve.Client: values in and out, and errors."""

import http.server
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

import ml_dtypes
import numpy as np

import tensorserve
from support import GENERATED, IRIS, MODELS, ROOT, XGBOOST

ECHOES = sorted(name for name in os.listdir(GENERATED) if name.startswith("echo_"))
EXAMPLE = os.path.join(ROOT, "examples/images/digits/3_45.png")


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        names = ["half_plus_two", "digits", "recommender", "text_normalizer"]
        models = {name: os.path.join(MODELS, name) for name in names}
        models.update({name: os.path.join(GENERATED, name) for name in ECHOES})
        models["iris"] = XGBOOST
        models["slow"] = os.path.join(GENERATED, "slow_add_zero")
        cls.server = tensorserve.Server(models, keep_alive="1s", version_policy="all").start()
        cls.client = cls.server.client()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    def test_lists_in_lists_out(self):
        predict = self.client.predict
        self.assertEqual(predict("half_plus_two", [1.0, 2.0, 5.0]), [2.5, 3.0, 4.5])
        self.assertEqual(predict("half_plus_two", {"x": [1, 2]}), [2.5, 3.0])
        self.assertEqual(predict("half_plus_two", []), [])
        found = predict("text_normalizer", {"text": ["  Hello  WORLD ", "Grüße"]})
        self.assertEqual(found["normalized"], ["hello world", "grüße"])
        self.assertEqual(found["token_count"], [2, 1])
        with open(EXAMPLE, "rb") as file:
            image = file.read()
        self.assertEqual(predict("digits", [image])["classes"], [3])
        self.assertEqual(predict("echo_bytes", [b"\xff\x00", b""]), [b"\xff\x00", b""])

    def test_arrays_in_arrays_out(self):
        predict = self.client.predict
        found = predict("half_plus_two", np.array([1, 2, 5], np.float32))
        self.assertEqual(found.dtype, np.float32)
        np.testing.assert_array_equal(found, [2.5, 3.0, 4.5])
        with open(EXAMPLE, "rb") as file:
            image = file.read()
        found = predict("digits", np.array([image, image], object), version=1)
        np.testing.assert_array_equal(found["classes"], [3, 3])
        self.assertEqual(found["probabilities"].shape, (2, 10))
        # Some arrays, some lists.
        inputs = {"user_id": np.arange(3), "item_id": [1, 2, 3], "features": np.zeros((3, 13))}
        self.assertEqual(predict("recommender", inputs).shape, (3,))
        found = predict("text_normalizer", np.array(["  Hello  WORLD ", "Grüße"]))
        self.assertEqual(found["normalized"].tolist(), [b"hello world", "grüße".encode()])
        self.assertEqual(found["token_count"].dtype, np.int32)

    def test_arrays_of_every_type_come_back_exactly(self):
        random = np.random.default_rng(1)
        for name in ECHOES:
            signature = self.client.signatures(name)["serving_default"]
            if len(signature.inputs) != 1:
                continue
            (spec,) = signature.inputs.values()
            dtype = np.dtype(object)
            if spec.dtype == "DT_BFLOAT16":
                dtype = np.dtype(ml_dtypes.bfloat16)
            elif spec.dtype != "DT_STRING":
                names = {"DT_FLOAT": "float32", "DT_DOUBLE": "float64", "DT_HALF": "float16"}
                dtype = np.dtype(names.get(spec.dtype, spec.dtype[3:].lower()))
            if dtype.kind == "O":
                sent = np.array([b"\x00\xff", "ü".encode(), b"", b"x" * 300], object)
            elif dtype.kind == "b":
                sent = np.array([True, False, False, True])
            else:
                raw = random.integers(0, 256, 4096 * dtype.itemsize, np.uint8)
                sent = raw.view(dtype)
            with self.subTest(name):
                found = self.client.predict(name, sent)
                self.assertEqual(found.dtype, sent.dtype)
                # By bits: NaNs are not equal to themselves.
                self.assertEqual(
                    found.tolist() if dtype.kind == "O" else found.tobytes(),
                    sent.tolist() if dtype.kind == "O" else sent.tobytes(),
                )
                self.assertEqual(self.client.predict(name, sent[:0]).shape, (0,))

    def test_arrays_of_any_layout(self):
        expected = [2.0, 3.0]
        for array in (
            np.arange(4, dtype=">f4")[::2],
            np.asfortranarray(np.arange(8, dtype=np.float32).reshape(4, 2))[:2, 0],
            np.array([0, 2], np.float64),
            np.array([0, 2], np.int8),
        ):
            found = self.client.predict("half_plus_two", array)
            np.testing.assert_array_equal(found, expected)

    def test_what_cannot_be_cast_is_the_servers_error(self):
        with self.assertRaises(tensorserve.InvalidRequestError) as caught:
            self.client.predict("echo_int32", np.array([1.5]))
        self.assertEqual(caught.exception.status, 400)
        self.assertIsInstance(caught.exception, ValueError)
        with self.assertRaisesRegex(tensorserve.InvalidRequestError, "user_id, item_id|pass a map"):
            self.client.predict("recommender", np.zeros(3))
        with self.assertRaisesRegex(tensorserve.InvalidRequestError, "there are serving_default"):
            self.client.predict("half_plus_two", np.zeros(3), signature="nope")

    def test_versions_labels_and_signatures(self):
        with open(EXAMPLE, "rb") as file:
            image = file.read()
        of = [self.client.predict("digits", [image], version=v) for v in (1, 2, None)]
        self.assertNotEqual(of[0]["probabilities"], of[1]["probabilities"])
        self.assertEqual(of[1], of[2])
        with self.assertRaises(tensorserve.NotFoundError):
            self.client.predict("digits", [image], version=9)
        with self.assertRaisesRegex(tensorserve.InvalidRequestError, "label: stable"):
            self.client.predict("digits", [image], label="stable")
        with self.assertRaises(ValueError):
            self.client.predict("digits", [image], version=1, label="stable")
        signature = self.client.signatures("recommender")["serving_default"]
        self.assertEqual(signature.inputs["features"].shape, (-1, 13))
        self.assertEqual(signature.inputs["user_id"].dtype, "DT_INT64")
        self.assertIn("iris", self.client.models())

    def test_errors_carry_the_servers_message(self):
        with self.assertRaises(tensorserve.NotFoundError) as caught:
            self.client.predict("nope", [1.0])
        self.assertIsInstance(caught.exception, tensorserve.RequestError)
        self.assertIn("nope", str(caught.exception))
        self.assertEqual(caught.exception.status, 404)
        with self.assertRaises(tensorserve.InvalidRequestError):
            self.client.predict("half_plus_two", ["text"])
        with self.assertRaisesRegex(TypeError, "set cannot be sent"):
            self.client.predict("half_plus_two", {"x": [{1}]})
        nobody = tensorserve.Client("http://127.0.0.1:9")
        self.assertFalse(nobody.is_ready())
        with self.assertRaisesRegex(tensorserve.UnreachableError, "127.0.0.1:9.*refused"):
            nobody.predict("half_plus_two", [1.0])
        for url in ("127.0.0.1:8500", "ftp://x", "http://"):
            with self.assertRaisesRegex(ValueError, "not the URL of a server"):
                tensorserve.Client(url)

    def test_a_connection_that_the_server_has_closed_is_replaced(self):
        client = self.server.client()
        for _ in range(3):
            self.assertEqual(client.predict("half_plus_two", np.array([1.0])).tolist(), [2.5])
            # keep_alive is one second.
            time.sleep(1.5)

    def test_many_threads_share_one_client(self):
        failed = []

        def ask(number):
            for step in range(20):
                value = number * 100.0 + step
                found = self.client.predict("half_plus_two", np.array([value]))
                if found.tolist() != [value / 2 + 2]:
                    failed.append((value, found))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])

    def test_large_arrays(self):
        sent = np.random.default_rng(2).random(4 << 20, np.float32)
        np.testing.assert_array_equal(self.client.predict("echo_float32", sent), sent)

    def test_it_works_without_numpy(self):
        script = f"""
import sys
sys.modules["numpy"] = None
import tensorserve
client = tensorserve.Client({self.server.url!r})
print(client.predict("half_plus_two", [1.0, 2.0, 5.0]))
"""
        command = [sys.executable, "-c", script]
        self.assertEqual(subprocess.check_output(command, text=True), "[2.5, 3.0, 4.5]\n")

    def test_models_of_other_platforms(self):
        found = self.client.predict("iris", np.array(IRIS))
        self.assertEqual((found.dtype, found.shape), (np.dtype(np.float32), (1, 3)))
        np.testing.assert_allclose(self.client.predict("iris", IRIS), found)


class CredentialsTest(unittest.TestCase):
    def test_they_come_from_arguments_or_from_the_environment(self):
        env = {"TENSORSERVE_USER": "ana", "TENSORSERVE_PASSWORD": "secret-word"}
        folder = self.enterContext(tempfile.TemporaryDirectory())
        file = os.path.join(folder, "auth.toml")
        program = tensorserve.find_binary()
        add = [program, "auth", "add-user", "ana", "--role", "infer", "--file", file]
        subprocess.run(add, input="secret-word\n", text=True, check=True, capture_output=True)
        add = [program, "auth", "add-key", "ci", "--role", "infer", "--file", file]
        key = subprocess.run(add, text=True, check=True, capture_output=True).stdout.strip()
        with tensorserve.Server(XGBOOST, auth_file=file) as server:
            with self.assertRaises(tensorserve.AccessError) as caught:
                server.client().predict("iris_softprob", IRIS)
            self.assertEqual(caught.exception.status, 401)
            self.assertTrue(server.client(key=key).predict("iris_softprob", IRIS))
            self.assertTrue(
                server.client(user="ana", password="secret-word").predict("iris_softprob", IRIS)
            )
            with unittest.mock.patch.dict(os.environ, env):
                self.assertTrue(server.client().predict("iris_softprob", IRIS))
                with self.assertRaises(tensorserve.AccessError):
                    server.client(key="wrong").predict("iris_softprob", IRIS)


class Overloaded(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        status = int(self.path.split("/")[3].partition(":")[0])
        self.send_response(status)
        self.send_header("Retry-After", "2")
        self.end_headers()
        self.wfile.write(b'{"error": "the queue is full"}')

    def log_message(self, *_):
        pass


class StatusTest(unittest.TestCase):
    """Errors that a server does not produce on request."""

    def test_each_status_has_its_error(self):
        server = http.server.HTTPServer(("127.0.0.1", 0), Overloaded)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        client = tensorserve.Client(f"http://127.0.0.1:{server.server_port}")
        classes = {
            403: tensorserve.AccessError,
            413: tensorserve.InvalidRequestError,
            429: tensorserve.UnavailableError,
            500: tensorserve.ModelError,
            503: tensorserve.UnavailableError,
            504: tensorserve.DeadlineError,
            418: tensorserve.RequestError,
        }
        for status, kind in classes.items():
            with self.assertRaises(kind) as caught:
                client.predict(str(status), [1.0])
            self.assertIs(type(caught.exception), kind)
            self.assertEqual(str(caught.exception), "the queue is full")
            self.assertEqual(caught.exception.retry_after, 2.0)


if __name__ == "__main__":
    unittest.main()
