"""SageMaker's SDK 2: TensorFlowPredictor over the service's API."""

import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from container import HALF_PLUS_THREE, HALF_PLUS_TWO, WIDE_MLP, Container, use_aws

use_aws()
import numpy
from sagemaker.deserializers import BytesDeserializer, JSONDeserializer, NumpyDeserializer
from sagemaker.serializers import (
    CSVSerializer,
    IdentitySerializer,
    JSONLinesSerializer,
    NumpySerializer,
)
from sagemaker.tensorflow import TensorFlowPredictor

import sagemaker

# No telemetry.
SILENT = {
    "SchemaVersion": "1.0",
    "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}},
}


class Predictor(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.container = Container(
            HALF_PLUS_THREE,
            HALF_PLUS_TWO,
            WIDE_MLP,
            SAGEMAKER_TFS_DEFAULT_MODEL_NAME="half_plus_three",
        )
        use_aws(cls.container.url)
        cls.session = sagemaker.Session(sagemaker_config=SILENT)

    @classmethod
    def tearDownClass(cls):
        cls.session.sagemaker_runtime_client.close()
        cls.container.close()

    def predictor(self, **more):
        return TensorFlowPredictor("endpoint", sagemaker_session=self.session, **more)

    def test_predict(self):
        answer = self.predictor().predict({"instances": [1.0, 2.0, 5.0]})
        self.assertEqual(answer, {"predictions": [3.5, 4.0, 5.5]})
        array = numpy.array([1.0, 2.0, 5.0], dtype=numpy.float32)
        self.assertEqual(self.predictor().predict({"instances": array}), answer)

    def test_the_simplified_forms(self):
        self.assertEqual(self.predictor().predict([1.0, 2.0]), {"predictions": [[3.5, 4.0]]})
        answer = self.predictor().predict([[1.0, 2.0], [3.0, 4.0]])
        self.assertEqual(answer, {"predictions": [[3.5, 4.0], [4.5, 5.0]]})

    def test_regress_and_classify(self):
        examples = {"signature_name": "tensorflow/serving/regress", "examples": [{"x": 1.0}]}
        answer = self.predictor(model_name="half_plus_three").regress(examples)
        self.assertEqual(answer, {"results": [3.5]})
        examples = {"signature_name": "classify_x_to_y", "examples": [{"x": 1.0}]}
        answer = self.predictor(model_name="half_plus_two").classify(examples)
        self.assertEqual(answer, {"results": [[["", 2.5]]]})

    def test_a_model_and_its_version(self):
        predictor = self.predictor(model_name="half_plus_three", model_version="123")
        self.assertEqual(predictor.predict({"instances": [1.0]}), {"predictions": [3.5]})
        predictor = self.predictor(model_name="half_plus_two")
        self.assertEqual(predictor.predict({"instances": [1.0]}), {"predictions": [2.5]})
        predictor = self.predictor(model_name="half_plus_three", model_version="7")
        with self.assertRaises(
            self.session.sagemaker_runtime_client.exceptions.ModelError
        ) as raised:
            predictor.predict({"instances": [1.0]})
        self.assertEqual(raised.exception.response["OriginalStatusCode"], 404)

    def test_csv(self):
        predictor = self.predictor(serializer=CSVSerializer(), deserializer=JSONDeserializer())
        answer = predictor.predict([[1.0, 2.0], [3.0, 4.0]])
        self.assertEqual(answer, {"predictions": [[3.5, 4.0], [4.5, 5.0]]})
        self.assertEqual(predictor.predict("1.0\n2.0\n"), {"predictions": [3.5, 4.0]})

    def test_json_lines(self):
        predictor = self.predictor(
            serializer=JSONLinesSerializer(), deserializer=JSONDeserializer()
        )
        answer = predictor.predict([[1.0, 2.0], [3.0, 4.0]])
        self.assertEqual(answer, {"predictions": [[3.5, 4.0], [4.5, 5.0]]})
        predictor = self.predictor(
            serializer=IdentitySerializer("application/jsons"), deserializer=BytesDeserializer()
        )
        answer = predictor.predict('{"x": 1.0}\n{"x": 2.0}')
        self.assertEqual(json.loads(answer), {"predictions": [3.5, 4.0]})

    def test_numpy(self):
        predictor = self.predictor(serializer=NumpySerializer(), deserializer=NumpyDeserializer())
        answer = predictor.predict(numpy.array([1.0, 2.0, 5.0], dtype=numpy.float32))
        self.assertEqual((answer.dtype, answer.tolist()), (numpy.float32, [3.5, 4.0, 5.5]))
        # Numbers are converted to the model's dtype, and lists to arrays.
        self.assertEqual(predictor.predict(numpy.arange(3)).tolist(), [3.0, 3.5, 4.0])
        self.assertEqual(predictor.predict([1.0, 2.0]).tolist(), [3.5, 4.0])

        # Several dimensions in both directions, with the same result as JSON.
        rows = numpy.random.default_rng(7).random((5, 784), dtype=numpy.float32)
        predictor = self.predictor(
            model_name="wide_mlp",
            serializer=NumpySerializer(dtype="float32"),
            deserializer=NumpyDeserializer(),
        )
        answer = predictor.predict(rows)
        self.assertEqual((answer.dtype, answer.shape), (numpy.float32, (5, 10)))
        json_answer = self.predictor(model_name="wide_mlp").predict({"instances": rows})
        numpy.testing.assert_allclose(answer, json_answer["predictions"], rtol=1e-5)

    def test_numpy_of_a_wrong_shape(self):
        predictor = self.predictor(
            model_name="wide_mlp", serializer=NumpySerializer(), deserializer=NumpyDeserializer()
        )
        with self.assertRaises(
            self.session.sagemaker_runtime_client.exceptions.ModelError
        ) as raised:
            predictor.predict(numpy.zeros((2, 3), dtype=numpy.float32))
        self.assertEqual(raised.exception.response["OriginalStatusCode"], 400)


if __name__ == "__main__":
    unittest.main()
