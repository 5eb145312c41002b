"""PredictionService.Predict and the metadata of models, through tensorflow-serving-api."""

import os
import tempfile
import threading
import time
import unittest

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import wrappers_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from serving import DATA, Server

GENERATED = os.path.join(DATA, "generated")
MIB = 1 << 20


def request(model, signature="", version=None, **inputs):
    message = predict_pb2.PredictRequest()
    message.model_spec.name = model
    message.model_spec.signature_name = signature
    if version is not None:
        message.model_spec.version.CopyFrom(wrappers_pb2.Int64Value(value=version))
    for alias, value in inputs.items():
        proto = value if isinstance(value, TensorProto) else tf.make_tensor_proto(value)
        message.inputs[alias].CopyFrom(proto)
    return message


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        echoes = sorted(name for name in os.listdir(GENERATED) if name.startswith("echo_"))
        models = {name: os.path.join(GENERATED, name) for name in echoes}
        models["half_plus_two"] = "models/half_plus_two"
        models["recommender"] = "models/recommender"
        models["slow"] = os.path.join(GENERATED, "slow_add_zero")
        models["times_six"] = os.path.join(GENERATED, "tf2_times_six")
        cls.socket = os.path.join(tempfile.mkdtemp(), "grpc.sock")
        cls.server = Server(
            models, "--grpc-max-message-bytes", "160MiB", "--grpc-socket-path", cls.socket
        )
        cls.channel = cls.server.channel()
        cls.predictions = prediction_service_pb2_grpc.PredictionServiceStub(cls.channel)
        cls.models = model_service_pb2_grpc.ModelServiceStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.server.close()
        assert not os.path.exists(cls.socket), "the socket was left behind"

    def predict(self, *args, **kwargs):
        return self.predictions.Predict(request(*args, **kwargs), timeout=60)

    def assert_fails(self, code, text, call):
        with self.assertRaises(grpc.RpcError) as caught:
            call()
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        self.assertIn(text, caught.exception.details())


class Predict(Case):
    def test_values_and_spec(self):
        answer = self.predict("half_plus_two", x=[1.0, 2.0, 5.0])
        np.testing.assert_array_equal(tf.make_ndarray(answer.outputs["y"]), [2.5, 3.0, 4.5])
        self.assertEqual(answer.model_spec.name, "half_plus_two")
        self.assertEqual(answer.model_spec.version.value, 1)
        self.assertEqual(answer.model_spec.signature_name, "serving_default")

    def test_every_type_both_ways(self):
        types = {
            "float32": np.float32,
            "float64": np.float64,
            "int8": np.int8,
            "int16": np.int16,
            "int32": np.int32,
            "int64": np.int64,
            "uint8": np.uint8,
            "uint32": np.uint32,
            "uint64": np.uint64,
            "bool": np.bool_,
            "float16": np.float16,
            "bfloat16": tf.bfloat16.as_numpy_dtype,
            "complex64": np.complex64,
        }
        for name, dtype in types.items():
            with self.subTest(name):
                values = np.array([[0, 1, 2], [3, 100, 0]]).astype(dtype)
                proto = tf.make_tensor_proto(values)
                raw = TensorProto(dtype=proto.dtype, tensor_content=values.tobytes())
                raw.tensor_shape.CopyFrom(proto.tensor_shape)
                answers = [self.predict(f"echo_{name}", x=raw)]
                # The values as lists of numbers, which older clients send.
                listed = TensorProto(dtype=proto.dtype)
                listed.tensor_shape.CopyFrom(proto.tensor_shape)
                fill(listed, name, values)
                answers.append(self.predict(f"echo_{name}", x=listed))
                for answer in answers:
                    got = tf.make_ndarray(answer.outputs["y"])
                    self.assertEqual(got.dtype, values.dtype)
                    np.testing.assert_array_equal(got, values)

    def test_strings_hold_any_bytes(self):
        values = np.array([b"", b"\x00\xff\xfe", "é".encode(), b"x" * 100_000], dtype=object)
        answer = self.predict("echo_string", x=values)
        self.assertEqual(list(tf.make_ndarray(answer.outputs["y"])), list(values))

    def test_few_values_are_repeated(self):
        proto = TensorProto(dtype=1, float_val=[1.0, 2.0])
        proto.tensor_shape.dim.add().size = 4
        answer = self.predict("echo_float32", x=proto)
        np.testing.assert_array_equal(tf.make_ndarray(answer.outputs["y"]), [1, 2, 2, 2])

    def test_64_megabytes_both_ways(self):
        values = np.arange(16 * MIB, dtype=np.float32)
        answer = self.predict("echo_float32", x=values)
        np.testing.assert_array_equal(tf.make_ndarray(answer.outputs["y"]), values)

    def test_several_inputs_and_a_filter(self):
        inputs = {
            "user_id": np.array([7], np.int64),
            "item_id": np.array([42], np.int64),
            "features": np.zeros((1, 13), np.float32),
        }
        self.assertEqual(list(self.predict("recommender", **inputs).outputs), ["score"])
        message = request("recommender", **inputs)
        message.output_filter.append("score")
        self.assertEqual(list(self.predictions.Predict(message).outputs), ["score"])
        message.output_filter.append("score")
        self.assert_fails(
            grpc.StatusCode.INVALID_ARGUMENT,
            "duplicate output tensor alias: score",
            lambda: self.predictions.Predict(message),
        )
        message.output_filter[:] = ["nothing"]
        self.assert_fails(
            grpc.StatusCode.INVALID_ARGUMENT,
            "output tensor alias not found in signature: nothing Outputs expected to be in the "
            "set {score}.",
            lambda: self.predictions.Predict(message),
        )

    def test_the_unix_socket(self):
        with grpc.insecure_channel(f"unix:{self.socket}") as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            answer = stub.Predict(request("half_plus_two", x=[2.0]), timeout=10)
            self.assertEqual(tf.make_ndarray(answer.outputs["y"]), [3.0])

    def test_compressed_calls(self):
        answer = self.predictions.Predict(
            request("half_plus_two", x=[1.0] * 1000), compression=grpc.Compression.Gzip
        )
        self.assertEqual(len(tf.make_ndarray(answer.outputs["y"])), 1000)


def fill(proto, name, values):
    flat = values.ravel()
    if name in ("float16", "bfloat16"):
        proto.half_val.extend(int(bits) for bits in flat.view(np.uint16))
    elif name == "complex64":
        proto.scomplex_val.extend(float(part) for part in flat.view(np.float32))
    else:
        field = {
            "float32": "float_val",
            "float64": "double_val",
            "int64": "int64_val",
            "uint32": "uint32_val",
            "uint64": "uint64_val",
            "bool": "bool_val",
        }.get(name, "int_val")
        getattr(proto, field).extend(flat.tolist())


class Mistakes(Case):
    def fails(self, code, text, *args, **kwargs):
        self.assert_fails(code, text, lambda: self.predict(*args, **kwargs))

    def test_what_is_not_there(self):
        code = grpc.StatusCode
        self.fails(code.NOT_FOUND, "Servable not found for request: Latest(none)", "none", x=[1.0])
        self.fails(
            code.NOT_FOUND, "Specific(half_plus_two, 9)", "half_plus_two", version=9, x=[1.0]
        )
        self.fails(code.INVALID_ARGUMENT, "ModelSpec has no name specified.", "", x=[1.0])
        self.fails(
            code.FAILED_PRECONDITION,
            'Serving signature key "none" not found.',
            "half_plus_two",
            "none",
            x=[1.0],
        )
        self.assert_fails(
            code.INVALID_ARGUMENT,
            "Missing ModelSpec",
            lambda: self.predictions.Predict(predict_pb2.PredictRequest()),
        )
        message = request("half_plus_two", x=[1.0])
        message.model_spec.version_label = "canary"
        self.assert_fails(
            code.INVALID_ARGUMENT,
            "Unrecognized servable version label: canary",
            lambda: self.predictions.Predict(message),
        )

    def test_inputs_that_do_not_match(self):
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        self.fails(
            invalid,
            "input size does not match signature: 2!=1 len({a,x}) != len({x}). "
            "Sent extra: {a}. Missing but required: {}.",
            "half_plus_two",
            x=[1.0],
            a=[1.0],
        )
        self.fails(invalid, "input size does not match signature: 0!=1", "half_plus_two")
        self.fails(invalid, "Signature input alias: x(feed name: ", "half_plus_two", z=[1.0])
        self.fails(invalid, "x", "half_plus_two", x=[b"text"])

    def test_tensors_that_lie(self):
        def proto(*dims, **fields):
            tensor = TensorProto(dtype=1, **fields)
            for dim in dims:
                tensor.tensor_shape.dim.add().size = dim
            return tensor

        lies = {
            "content too short": proto(3, tensor_content=b"\0" * 8),
            "content too long": proto(1, tensor_content=b"\0" * 8),
            "overflow": proto(1 << 62, 1 << 62, float_val=[1.0]),
            "negative": proto(-1, float_val=[1.0]),
            "huge, from one value": proto(1 << 40, float_val=[1.0]),
        }
        for name, tensor in lies.items():
            with self.subTest(name):
                self.fails(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    "tensor parsing error: x",
                    "echo_float32",
                    x=tensor,
                )
        self.test_still_serves()

    def test_a_message_over_the_limit(self):
        values = np.zeros(48 * MIB, np.float32)
        with self.assertRaises(grpc.RpcError) as caught:
            self.predict("echo_float32", x=values)
        self.assertIn(
            caught.exception.code(),
            (grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.RESOURCE_EXHAUSTED),
        )
        self.test_still_serves()

    def test_a_deadline(self):
        rows = np.zeros((1, 1), np.float32)
        self.predict("slow", x=rows)
        start = time.monotonic()
        self.assert_fails(
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "",
            lambda: self.predictions.Predict(request("slow", x=rows), timeout=0.02),
        )
        self.assertLess(time.monotonic() - start, 5)
        self.test_still_serves()

    def test_a_cancelled_call(self):
        calls = [
            self.predictions.Predict.future(request("slow", x=np.zeros((1, 1), np.float32)))
            for _ in range(20)
        ]
        time.sleep(0.05)
        for call in calls:
            call.cancel()
        self.assertTrue(any(call.cancelled() for call in calls))
        self.test_still_serves()

    def test_still_serves(self):
        self.assertEqual(
            tf.make_ndarray(self.predict("half_plus_two", x=[2.0]).outputs["y"]), [3.0]
        )

    def test_many_at_once_get_their_own_answers(self):
        wrong = []

        def ask(number):
            for step in range(50):
                value = float(number * 100 + step)
                answer = self.predict("half_plus_two", x=[value])
                if tf.make_ndarray(answer.outputs["y"])[0] != value / 2 + 2:
                    wrong.append(value)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


class Descriptions(Case):
    def metadata(self, model, *fields):
        message = get_model_metadata_pb2.GetModelMetadataRequest()
        message.model_spec.name = model
        message.metadata_field.extend(fields)
        return self.predictions.GetModelMetadata(message, timeout=10)

    def test_metadata(self):
        answer = self.metadata("recommender", "signature_def")
        self.assertEqual(answer.model_spec.version.value, 1)
        found = get_model_metadata_pb2.SignatureDefMap()
        self.assertTrue(answer.metadata["signature_def"].Unpack(found))
        signature = found.signature_def["serving_default"]
        self.assertEqual(sorted(signature.inputs), ["features", "item_id", "user_id"])
        self.assertEqual(signature.inputs["user_id"].dtype, tf.int64.as_datatype_enum)
        self.assertEqual([d.size for d in signature.inputs["features"].tensor_shape.dim], [-1, 13])
        self.assertEqual(signature.method_name, "tensorflow/serving/predict")

    def test_metadata_mistakes(self):
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        self.assert_fails(
            invalid,
            "must specify at least one metadata_field",
            lambda: self.metadata("recommender"),
        )
        self.assert_fails(
            invalid,
            "Metadata field other is not supported",
            lambda: self.metadata("recommender", "other"),
        )
        self.assert_fails(
            grpc.StatusCode.NOT_FOUND,
            "Latest(none)",
            lambda: self.metadata("none", "signature_def"),
        )

    def test_status(self):
        message = get_model_status_pb2.GetModelStatusRequest()
        message.model_spec.name = "half_plus_two"
        [status] = self.models.GetModelStatus(message).model_version_status
        available = get_model_status_pb2.ModelVersionStatus.AVAILABLE
        self.assertEqual((status.version, status.state), (1, available))
        self.assertEqual(status.status.error_code, 0)
        message.model_spec.name = "none"
        self.assert_fails(
            grpc.StatusCode.NOT_FOUND,
            "Could not find any versions of model none",
            lambda: self.models.GetModelStatus(message),
        )

    def test_clients_do_not_choose_models_of_our_own_front(self):
        request = model_management_pb2.ReloadConfigRequest()
        request.config.model_config_list.config.add(
            name="m", base_path="/etc", model_platform="tensorflow"
        )
        self.assert_fails(
            grpc.StatusCode.PERMISSION_DENIED,
            "tensorflow_model_server",
            lambda: self.models.HandleReloadConfigRequest(request),
        )

    def test_health(self):
        stub = health_pb2_grpc.HealthStub(self.channel)
        for service in ("", "PredictionService", "tensorflow.serving.PredictionService"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING)

    def test_reflection(self):
        stub = reflection_pb2_grpc.ServerReflectionStub(self.channel)
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        [answer] = stub.ServerReflectionInfo(iter([ask]))
        names = [service.name for service in answer.list_services_response.service]
        self.assertIn("tensorflow.serving.PredictionService", names)
        self.assertIn("tensorflow.serving.ModelService", names)
        self.assertIn("grpc.health.v1.Health", names)


if __name__ == "__main__":
    unittest.main()
