"""Bodies of :predict as NumPy and Protocol Buffers write them."""

import io
import unittest
import urllib.error
import urllib.request

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from serving import Server


class BinaryBodies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(
            {
                "half_plus_two": "models/half_plus_two",
                "text_normalizer": "models/text_normalizer",
            }
        )

    @classmethod
    def tearDownClass(cls):
        cls.server.close()

    def post(self, model, body, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"http://{self.server.http}/v1/models/{model}:predict"
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
            return answer.headers["Content-Type"], answer.read()

    def test_arrays(self):
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        for array in [x, np.asfortranarray(x), x.astype(">f4"), x[::-1]]:
            file = io.BytesIO()
            np.save(file, array)
            kind, body = self.post(
                "half_plus_two",
                file.getvalue(),
                Content_Type="application/x-npy",
                Accept="application/x-npy",
            )
            self.assertEqual(kind, "application/x-npy")
            y = np.load(io.BytesIO(body))
            self.assertEqual(y.dtype, np.float32)
            np.testing.assert_array_equal(y, array / 2 + 2)

    def test_objects_are_refused(self):
        file = io.BytesIO()
        np.save(file, np.array([1.0, "a"], dtype=object))
        with self.assertRaises(urllib.error.HTTPError) as raised:
            self.post("half_plus_two", file.getvalue(), Content_Type="application/x-npy")
        self.assertEqual(raised.exception.code, 400)
        self.assertIn("Python objects", raised.exception.read().decode())

    def test_messages(self):
        request = predict_pb2.PredictRequest()
        request.inputs["text"].CopyFrom(tf.make_tensor_proto(["  H\u00c9llo  World "]))
        kind, body = self.post(
            "text_normalizer", request.SerializeToString(), Content_Type="application/x-protobuf"
        )
        self.assertEqual(kind, "application/x-protobuf")
        answer = predict_pb2.PredictResponse.FromString(body)
        self.assertEqual(answer.model_spec.name, "text_normalizer")
        normalized = tf.make_ndarray(answer.outputs["normalized"])
        self.assertEqual(normalized[0].decode(), "h\u00e9llo world")
        self.assertEqual(tf.make_ndarray(answer.outputs["token_count"]).tolist(), [2])


if __name__ == "__main__":
    unittest.main()
