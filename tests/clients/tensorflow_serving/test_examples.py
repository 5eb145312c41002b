"""Classify, Regress and MultiInference through tensorflow-serving-api."""

import os
import unittest

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    input_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from serving import DATA, Server

GENERATED = os.path.join(DATA, "generated")
UPSTREAM = os.path.join(DATA, "upstream/testdata")
CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"


def example(**features):
    made = tf.train.Example()
    for name, values in features.items():
        feature = made.features.feature[name]
        if isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif isinstance(values[0], int):
            feature.int64_list.value.extend(values)
        else:
            feature.float_list.value.extend(values)
    return made


def examples(*made, context=None):
    given = input_pb2.Input()
    if context is None:
        given.example_list.examples.extend(made)
    else:
        given.example_list_with_context.examples.extend(made)
        given.example_list_with_context.context.CopyFrom(context)
    return given


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(
            {
                "half_plus_two": os.path.join(UPSTREAM, "saved_model_half_plus_two_cpu"),
                "three": os.path.join(GENERATED, "classify_three"),
                "features": os.path.join(GENERATED, "regress_features"),
            }
        )
        cls.channel = cls.server.channel()
        cls.stub = prediction_service_pb2_grpc.PredictionServiceStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.server.close()

    def classify(self, model, given, signature=""):
        request = classification_pb2.ClassificationRequest(input=given)
        request.model_spec.name, request.model_spec.signature_name = model, signature
        return self.stub.Classify(request, timeout=30)

    def regress(self, model, given, signature=""):
        request = regression_pb2.RegressionRequest(input=given)
        request.model_spec.name, request.model_spec.signature_name = model, signature
        return self.stub.Regress(request, timeout=30)

    def assert_fails(self, code, text, call, *args):
        with self.assertRaises(grpc.RpcError) as caught:
            call(*args)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        self.assertIn(text, caught.exception.details())

    def test_classify(self):
        answer = self.classify("three", examples(example(x=[1.0, 2.0, 3.0])))
        [result] = answer.result.classifications
        self.assertEqual([c.label for c in result.classes], ["cat", "dog", "fish"])
        self.assertAlmostEqual(result.classes[2].score, 0.665240884, places=6)
        self.assertEqual(answer.model_spec.signature_name, "serving_default")

    def test_classify_and_regress_as_the_reference_tests_them(self):
        given = examples(example(x=[2.0]))
        answer = self.classify("half_plus_two", given, "classify_x_to_y")
        self.assertEqual(answer.result.classifications[0].classes[0].score, 3.0)
        answer = self.regress("half_plus_two", given, "regress_x_to_y")
        self.assertEqual([r.value for r in answer.result.regressions], [3.0])
        self.assertEqual(answer.model_spec.version.value, 123)
        self.assertEqual(answer.model_spec.signature_name, "regress_x_to_y")

    def test_a_context_goes_before_each(self):
        given = examples(example(ratings=[6.0]), example(ratings=[1.0]), context=example(age=[20]))
        values = [r.value for r in self.regress("features", given).result.regressions]
        self.assertEqual(values, [26.0, 21.0])

    def test_mistakes(self):
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        good = examples(example(x=[2.0]))
        self.assert_fails(invalid, "Input is empty.", self.regress, "features", examples())
        self.assert_fails(invalid, "Input is empty.", self.regress, "features", input_pb2.Input())
        self.assert_fails(
            invalid,
            "No signature was found with the name: none",
            self.classify,
            "three",
            good,
            "none",
        )
        self.assert_fails(invalid, "Expected one output Tensor.", self.regress, "three", good)
        self.assert_fails(grpc.StatusCode.NOT_FOUND, "Latest(none)", self.classify, "none", good)
        self.assert_fails(invalid, "", self.classify, "three", examples(example(x=[b"text"])))

    def multi(self, *tasks):
        request = inference_pb2.MultiInferenceRequest(input=examples(example(x=[2.0])))
        for model, signature, method in tasks:
            task = request.tasks.add(method_name=method)
            task.model_spec.name, task.model_spec.signature_name = model, signature
        return self.stub.MultiInference(request, timeout=30)

    def test_multi_inference(self):
        answer = self.multi(
            ("half_plus_two", "regress_x_to_y", REGRESS),
            ("half_plus_two", "classify_x_to_y", CLASSIFY),
        )
        regression, classification = answer.results
        self.assertEqual(regression.regression_result.regressions[0].value, 3.0)
        self.assertEqual(regression.model_spec.signature_name, "regress_x_to_y")
        classes = classification.classification_result.classifications[0].classes
        self.assertEqual(classes[0].score, 3.0)

    def test_multi_inference_mistakes(self):
        invalid, model = grpc.StatusCode.INVALID_ARGUMENT, "half_plus_two"
        regress = (model, "regress_x_to_y", REGRESS)
        self.assert_fails(
            invalid,
            "Duplicate evaluation of signature: regress_x_to_y",
            self.multi,
            regress,
            regress,
        )
        self.assert_fails(
            invalid,
            "All ModelSpecs in a MultiInferenceRequest must access the same model name.",
            self.multi,
            regress,
            ("three", "", CLASSIFY),
        )
        self.assert_fails(
            invalid,
            "Found ModelSpec with an empty model name.",
            self.multi,
            regress,
            ("", "", CLASSIFY),
        )
        self.assert_fails(
            grpc.StatusCode.UNIMPLEMENTED,
            "Unsupported signature method_name: other",
            self.multi,
            (model, "regress_x_to_y", "other"),
        )
        self.assert_fails(
            invalid,
            "Requested signature not found in model graph: none",
            self.multi,
            (model, "none", REGRESS),
        )


if __name__ == "__main__":
    unittest.main()
