"""tritonclient.grpc: inference over gRPC, with the client and with its generated messages."""

import threading
import unittest

import grpc
import numpy as np
import tritonclient.grpc as client
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, deserialize_bytes_tensor

from inference import (
    DIFFERENCE,
    FIRST,
    RAW_ONLY,
    SECOND,
    SUM,
    VALUES,
    grpc_address,
    pair,
    same,
    tensor,
    text,
)

# The fields of InferTensorContents that hold the datatypes.
FIELDS = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


class Grpc(unittest.TestCase):
    def setUp(self):
        self.client = client.InferenceServerClient(grpc_address())
        self.addCleanup(self.client.close)

    def check(self, result):
        self.assertTrue(same(result.as_numpy("OUTPUT0"), SUM))
        self.assertTrue(same(result.as_numpy("OUTPUT1"), DIFFERENCE))

    def refused(self, code, words, *arguments, **options):
        with self.assertRaises(InferenceServerException) as caught:
            self.client.infer(*arguments, **options)
        self.assertEqual(caught.exception.status(), f"StatusCode.{code}", caught.exception)
        for word in words:
            self.assertIn(word, caught.exception.message())

    def test_infer(self):
        result = self.client.infer("simple", pair(client))
        self.check(result)
        answer = result.get_response()
        self.assertEqual((answer.model_name, answer.model_version), ("simple", "1"))
        self.assertEqual(len(answer.raw_output_contents), 2)
        self.assertEqual(list(result.get_output("OUTPUT0").shape), [1, 16])
        self.assertEqual(result.get_output("OUTPUT0").datatype, "INT32")

    def test_the_requested_outputs_in_their_order(self):
        names = ["OUTPUT1", "OUTPUT0"]
        outputs = [client.InferRequestedOutput(name) for name in names]
        result = self.client.infer("simple", pair(client), outputs=outputs)
        self.check(result)
        self.assertEqual([output.name for output in result.get_response().outputs], names)
        one = self.client.infer("simple", pair(client), outputs=outputs[:1])
        self.assertTrue(same(one.as_numpy("OUTPUT1"), DIFFERENCE))
        self.assertIsNone(one.as_numpy("OUTPUT0"))

    def test_every_datatype(self):
        for datatype, values in VALUES.items():
            with self.subTest(datatype=datatype):
                model = datatype.lower()
                result = self.client.infer(model, [tensor(client, f"in_{model}", values)])
                self.assertTrue(same(result.as_numpy(f"out_{model}"), values))
                self.assertEqual(result.get_output(f"out_{model}").datatype, datatype)

    def test_every_datatype_in_one_request(self):
        inputs = [tensor(client, f"in_{name.lower()}", values) for name, values in VALUES.items()]
        result = self.client.infer("all_types", inputs)
        for datatype, values in VALUES.items():
            self.assertTrue(same(result.as_numpy(f"out_{datatype.lower()}"), values), datatype)

    def test_integers_as_text_and_as_bytes(self):
        result = self.client.infer("simple_string", pair(client, text(FIRST), text(SECOND)))
        self.assertEqual(result.as_numpy("OUTPUT0").tolist(), text(SUM).tolist())
        small = pair(client, FIRST.astype(np.int8), SECOND.astype(np.int8))
        result = self.client.infer("simple_int8", small)
        self.assertTrue(same(result.as_numpy("OUTPUT0"), SUM.astype(np.int8)))

    def test_empty_and_large_tensors(self):
        none = np.zeros((0, 16), np.int32)
        result = self.client.infer("simple", pair(client, none, none))
        self.assertTrue(same(result.as_numpy("OUTPUT0"), none))
        values = np.arange(3_000_000, dtype=np.float32).reshape(1, -1)
        result = self.client.infer("fp32", [tensor(client, "in_fp32", values)])
        self.assertTrue(np.array_equal(result.as_numpy("out_fp32"), values))

    def test_options(self):
        result = self.client.infer(
            "simple",
            pair(client),
            request_id="grüße",
            priority=1,
            timeout=20_000_000,
            client_timeout=20,
            sequence_id="seven",
            sequence_start=True,
            headers={"x-more": "1", "x-binary-bin": b"\xff"},
            parameters={"text": "a", "whole": 1, "fraction": 1.5, "flag": True},
        )
        self.check(result)
        self.assertEqual(result.get_response().id, "grüße")

    def test_requests_that_may_take_a_microsecond(self):
        """They may be answered, as by Triton, where the time limits only the wait in a queue."""
        for _ in range(20):
            try:
                self.check(self.client.infer("simple", pair(client), timeout=1))
            except InferenceServerException as error:
                self.assertEqual(error.status(), "StatusCode.DEADLINE_EXCEEDED")
                self.assertIn("deadline", error.message())

    def test_versions(self):
        row = np.array([[1, 2, 3]], np.float32)
        given = [tensor(client, "INPUT0", row)]
        result = self.client.infer("versions", given, model_version="2")
        self.assertTrue(same(result.as_numpy("OUTPUT0"), row * 3))
        self.assertEqual(result.get_response().model_version, "2")
        missing = ["Request for unknown model", "'versions' version 1"]
        self.refused("NOT_FOUND", missing, "versions", given, model_version="1")

    def test_messages_compressed_with_gzip(self):
        values = np.zeros((1, 100_000), np.float32)
        given = [tensor(client, "in_fp32", values)]
        result = self.client.infer("fp32", given, compression_algorithm="gzip")
        self.assertTrue(np.array_equal(result.as_numpy("out_fp32"), values))

    def test_messages_compressed_with_deflate(self):
        values = np.zeros((1, 100_000), np.float32)
        given = [tensor(client, "in_fp32", values)]
        result = self.client.infer("fp32", given, compression_algorithm="deflate")
        self.assertTrue(np.array_equal(result.as_numpy("out_fp32"), values))

    def test_asynchronous_requests(self):
        done = threading.Semaphore(0)
        answers = {}

        def finished(number):
            def callback(result, error):
                answers[number] = result if error is None else error
                done.release()

            return callback

        for n in range(20):
            self.client.async_infer("simple", pair(client, FIRST + n), finished(n))
        self.client.async_infer("nothing", pair(client), finished("nothing"))
        for _ in range(21):
            self.assertTrue(done.acquire(timeout=30))
        self.assertEqual(answers.pop("nothing").status(), "StatusCode.NOT_FOUND")
        for n, result in answers.items():
            self.assertTrue(same(result.as_numpy("OUTPUT0"), SUM + n))

    def test_a_cancelled_request(self):
        done = threading.Event()
        errors = []

        def callback(result, error):
            errors.append(error if result is None else None)
            done.set()

        # It is so large that the call cannot be over when it is cancelled.
        values = np.zeros((1, 10_000_000), np.float32)
        given = [tensor(client, "in_fp32", values)]
        self.client.async_infer("fp32", given, callback).cancel()
        self.assertTrue(done.wait(30))
        [error] = errors
        self.assertEqual(error.status(), "StatusCode.CANCELLED")
        self.check(self.client.infer("simple", pair(client)))

    def test_one_client_in_many_threads(self):
        failures = []

        def run(number):
            try:
                for n in range(number, number + 20):
                    result = self.client.infer("simple", pair(client, FIRST + n))
                    assert same(result.as_numpy("OUTPUT0"), SUM + n)
            except Exception as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=run, args=[100 * n]) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_options_of_the_channel(self):
        keep_alive = client.KeepAliveOptions(
            keepalive_time_ms=1000,
            keepalive_timeout_ms=1000,
            keepalive_permit_without_calls=True,
            http2_max_pings_without_data=0,
        )
        with client.InferenceServerClient(grpc_address(), keepalive_options=keep_alive) as other:
            self.check(other.infer("simple", pair(client)))
        arguments = [("grpc.primary_user_agent", "tests"), ("grpc.lb_policy_name", "pick_first")]
        with client.InferenceServerClient(grpc_address(), channel_args=arguments) as other:
            self.check(other.infer("simple", pair(client)))

    def test_errors(self):
        unknown = ["Request for unknown model: 'nothing' is not found"]
        self.refused("NOT_FOUND", unknown, "nothing", pair(client))
        self.refused("INVALID_ARGUMENT", ["INPUT1", "'simple'"], "simple", pair(client)[:1])
        more = [*pair(client), tensor(client, "INPUT2", SECOND)]
        self.refused("INVALID_ARGUMENT", ["INPUT2", "'simple'"], "simple", more)
        wrong = [client.InferRequestedOutput("OUTPUT2")]
        self.refused("INVALID_ARGUMENT", ["OUTPUT2"], "simple", pair(client), outputs=wrong)
        words = pair(client, text(FIRST), np.array([["x"] * 16], np.object_))
        self.refused("INVALID_ARGUMENT", ["StringToNumberOp"], "simple_string", words)


class Messages(unittest.TestCase):
    """Requests built from the generated messages, sent with the generated stub."""

    def setUp(self):
        channel = grpc.insecure_channel(grpc_address())
        self.addCleanup(channel.close)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def request(self, model, **inputs):
        """A request with the values of `inputs` in their contents."""
        request = service_pb2.ModelInferRequest(model_name=model)
        for name, (datatype, values) in inputs.items():
            one = request.inputs.add(name=name, datatype=datatype, shape=values.shape)
            getattr(one.contents, FIELDS[datatype]).extend(values.flatten().tolist())
        return request

    def simple(self):
        return self.request("simple", INPUT0=("INT32", FIRST), INPUT1=("INT32", SECOND))

    def refused(self, code, words, request):
        with self.assertRaises(grpc.RpcError) as caught:
            self.stub.ModelInfer(request)
        self.assertEqual(caught.exception.code().name, code)
        for word in words:
            self.assertIn(word, caught.exception.details())

    def test_contents_are_answered_with_raw_bytes(self):
        """Scripts that build such requests read only `raw_output_contents`, as InferResult does."""
        answer = self.stub.ModelInfer(self.simple())
        self.assertEqual([output.name for output in answer.outputs], ["OUTPUT0", "OUTPUT1"])
        for raw, expected in zip(answer.raw_output_contents, [SUM, DIFFERENCE], strict=True):
            self.assertEqual(np.frombuffer(raw, np.int32).tolist(), expected[0].tolist())

    def test_contents_of_every_datatype(self):
        for datatype, values in VALUES.items():
            if datatype in RAW_ONLY:
                continue
            with self.subTest(datatype=datatype):
                model = datatype.lower()
                request = self.request(model, **{f"in_{model}": (datatype, values)})
                result = client.InferResult(self.stub.ModelInfer(request))
                self.assertTrue(same(result.as_numpy(f"out_{model}"), values))

    def test_text_in_contents(self):
        inputs = {"INPUT0": ("BYTES", text(FIRST)), "INPUT1": ("BYTES", text(SECOND))}
        answer = self.stub.ModelInfer(self.request("simple_string", **inputs))
        sums = deserialize_bytes_tensor(answer.raw_output_contents[0])
        self.assertEqual(sums.tolist(), text(SUM)[0].tolist())

    def test_requested_outputs_and_parameters(self):
        request = self.simple()
        request.outputs.add(name="OUTPUT1")
        request.id = "8"
        request.parameters["a"].uint64_param = 2**64 - 1
        request.parameters["b"].double_param = 0.5
        request.inputs[0].parameters["c"].string_param = "x"
        answer = self.stub.ModelInfer(request)
        self.assertEqual(answer.id, "8")
        self.assertEqual([output.name for output in answer.outputs], ["OUTPUT1"])

    def test_contents_beside_raw_bytes_are_refused(self):
        request = self.simple()
        request.raw_input_contents.append(FIRST.tobytes())
        request.raw_input_contents.append(SECOND.tobytes())
        words = ["raw_input_contents", "'INPUT0'", "'simple'"]
        self.refused("INVALID_ARGUMENT", words, request)

    def test_contents_that_do_not_fit(self):
        request = self.simple()
        request.inputs[0].contents.int_contents.append(1)
        self.refused("INVALID_ARGUMENT", ["INPUT0"], request)
        request = self.simple()
        request.inputs[0].contents.ClearField("int_contents")
        request.inputs[0].contents.fp32_contents.extend([0.5] * 16)
        self.refused("INVALID_ARGUMENT", ["INPUT0"], request)
        request = self.request("int8", in_int8=("INT8", np.array([[128]])))
        self.refused("INVALID_ARGUMENT", ["in_int8"], request)

    def test_raw_bytes_that_do_not_fit(self):
        request = service_pb2.ModelInferRequest(model_name="fp32")
        request.inputs.add(name="in_fp32", datatype="FP32", shape=[1, 3])
        request.raw_input_contents.append(b"\0" * 11)
        self.refused("INVALID_ARGUMENT", ["in_fp32"], request)
        request.raw_input_contents.append(b"\0" * 12)
        self.refused("INVALID_ARGUMENT", ["raw_input_contents"], request)
        request = service_pb2.ModelInferRequest(model_name="bytes")
        request.inputs.add(name="in_bytes", datatype="BYTES", shape=[1, 1])
        request.raw_input_contents.append(b"\5\0\0\0shor")
        self.refused("INVALID_ARGUMENT", ["in_bytes"], request)

    def test_what_no_client_sends(self):
        request = service_pb2.ModelInferRequest()
        self.refused("NOT_FOUND", ["unknown model"], request)
        request.model_name = "simple"
        self.refused("INVALID_ARGUMENT", ["INPUT0"], request)
        request = self.simple()
        request.inputs[0].datatype = "INT33"
        self.refused("INVALID_ARGUMENT", ["INT33"], request)
        request = self.simple()
        request.inputs[0].shape[0] = -1
        self.refused("INVALID_ARGUMENT", ["INPUT0"], request)

    def test_a_stub_reads_everything_that_has_no_request(self):
        self.assertTrue(self.stub.ServerLive(service_pb2.ServerLiveRequest()).live)
        self.assertTrue(self.stub.ServerReady(service_pb2.ServerReadyRequest()).ready)
        ready = self.stub.ModelReady(service_pb2.ModelReadyRequest(name="simple", version="1"))
        self.assertTrue(ready.ready)
        server = self.stub.ServerMetadata(service_pb2.ServerMetadataRequest())
        self.assertIn("binary_tensor_data", server.extensions)
        model = self.stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="simple"))
        self.assertEqual(MessageToDict(model)["inputs"][0]["shape"], ["-1", "16"])
        config = self.stub.ModelConfig(service_pb2.ModelConfigRequest(name="simple")).config
        self.assertEqual(config.input[0].dims, [16])
        request = service_pb2.RepositoryIndexRequest(ready=True)
        index = self.stub.RepositoryIndex(request).models
        self.assertIn(("simple", "1", "READY"), [(m.name, m.version, m.state) for m in index])
        request = service_pb2.ModelStatisticsRequest(name="simple", version="1")
        self.assertEqual(self.stub.ModelStatistics(request).model_stats[0].name, "simple")


if __name__ == "__main__":
    unittest.main()
