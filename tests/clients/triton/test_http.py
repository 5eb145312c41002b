"""tritonclient.http: inference over REST."""

import threading
import unittest

import numpy as np
import tritonclient.http as client
from tritonclient.utils import InferenceServerException

from inference import (
    DIFFERENCE,
    FIRST,
    RAW_ONLY,
    SECOND,
    SUM,
    VALUES,
    encoded,
    http_address,
    pair,
    same,
    tensor,
    text,
)
from proxy import Proxy


class Http(unittest.TestCase):
    def setUp(self):
        self.client = client.InferenceServerClient(http_address())
        self.addCleanup(self.client.close)

    def check(self, result):
        self.assertTrue(same(result.as_numpy("OUTPUT0"), SUM))
        self.assertTrue(same(result.as_numpy("OUTPUT1"), DIFFERENCE))

    def refused(self, status, words, *arguments, **options):
        with self.assertRaises(InferenceServerException) as caught:
            self.client.infer(*arguments, **options)
        self.assertEqual(caught.exception.status(), status, caught.exception)
        for word in words:
            self.assertIn(word, caught.exception.message())

    def test_all_outputs_are_binary_by_default(self):
        result = self.client.infer("simple", pair(client))
        self.check(result)
        for output in result.get_response()["outputs"]:
            self.assertEqual(output["parameters"], {"binary_data_size": 64})
            self.assertNotIn("data", output)

    def test_json_and_binary_can_be_mixed(self):
        for first in (True, False):
            for second in (True, False):
                for wanted in (True, False):
                    with self.subTest(first=first, second=second, wanted=wanted):
                        inputs = [
                            tensor(client, "INPUT0", FIRST, binary_data=first),
                            tensor(client, "INPUT1", SECOND, binary_data=second),
                        ]
                        outputs = [
                            client.InferRequestedOutput("OUTPUT0", binary_data=wanted),
                            client.InferRequestedOutput("OUTPUT1", binary_data=not wanted),
                        ]
                        result = self.client.infer("simple", inputs, outputs=outputs)
                        self.check(result)
                        self.assertEqual("data" in result.get_output("OUTPUT0"), not wanted)
                        self.assertEqual("data" in result.get_output("OUTPUT1"), wanted)

    def test_the_requested_outputs_in_their_order(self):
        names = ["OUTPUT1", "OUTPUT0"]
        outputs = [client.InferRequestedOutput(name) for name in names]
        result = self.client.infer("simple", pair(client), outputs=outputs)
        self.check(result)
        answer = result.get_response()
        self.assertEqual([output["name"] for output in answer["outputs"]], names)
        one = self.client.infer("simple", pair(client), outputs=outputs[:1])
        self.assertTrue(same(one.as_numpy("OUTPUT1"), DIFFERENCE))
        self.assertIsNone(one.as_numpy("OUTPUT0"))

    def test_every_datatype(self):
        for datatype, values in VALUES.items():
            model = datatype.lower()
            for sent in (True, False):
                for wanted in (True, False):
                    if datatype in RAW_ONLY and not (sent and wanted):
                        continue
                    with self.subTest(datatype=datatype, sent=sent, wanted=wanted):
                        given = tensor(client, f"in_{model}", values, binary_data=sent)
                        output = client.InferRequestedOutput(f"out_{model}", binary_data=wanted)
                        result = self.client.infer(model, [given], outputs=[output])
                        got = result.as_numpy(f"out_{model}")
                        if datatype == "BYTES" and not wanted:
                            got = encoded(got)
                        self.assertTrue(same(got, values), got)
                        self.assertEqual(result.get_output(f"out_{model}")["datatype"], datatype)

    def test_every_datatype_in_one_request(self):
        inputs = [
            tensor(client, f"in_{datatype.lower()}", values, binary_data=datatype in RAW_ONLY)
            for datatype, values in VALUES.items()
        ]
        result = self.client.infer("all_types", inputs)
        for datatype, values in VALUES.items():
            self.assertTrue(same(result.as_numpy(f"out_{datatype.lower()}"), values), datatype)

    def test_text_as_unicode_and_as_fixed_length_bytes(self):
        for values in (np.array([["a", "ß"]], np.object_), np.array([[b"a", b"bc"]], "S2")):
            for binary in (True, False):
                given = tensor(client, "INPUT0", values, "BYTES", binary_data=binary)
                result = self.client.infer("simple_identity", [given])
                expected = [
                    item if isinstance(item, bytes) else item.encode() for item in values[0]
                ]
                self.assertEqual(result.as_numpy("OUTPUT0").tolist(), [expected])

    def test_bytes_that_are_not_text(self):
        values = np.array([[b"\xff\xfe", b"\0"]], np.object_)
        given = [tensor(client, "INPUT0", values)]
        result = self.client.infer("simple_identity", given)
        self.assertTrue(same(result.as_numpy("OUTPUT0"), values))
        outputs = [client.InferRequestedOutput("OUTPUT0", binary_data=False)]
        self.refused("400", ["OUTPUT0"], "simple_identity", given, outputs=outputs)

    def test_integers_as_text_and_as_bytes(self):
        result = self.client.infer("simple_string", pair(client, text(FIRST), text(SECOND)))
        self.assertEqual(result.as_numpy("OUTPUT0").tolist(), text(SUM).tolist())
        self.assertEqual(result.as_numpy("OUTPUT1").tolist(), text(DIFFERENCE).tolist())
        small = pair(client, FIRST.astype(np.int8), SECOND.astype(np.int8), binary_data=False)
        result = self.client.infer("simple_int8", small)
        self.assertTrue(same(result.as_numpy("OUTPUT0"), SUM.astype(np.int8)))

    def test_empty_tensors(self):
        none = np.zeros((0, 16), np.int32)
        for binary in (True, False):
            outputs = [client.InferRequestedOutput("OUTPUT0", binary_data=binary)]
            inputs = pair(client, none, none, binary_data=binary)
            result = self.client.infer("simple", inputs, outputs=outputs)
            self.assertTrue(same(result.as_numpy("OUTPUT0"), none))
        nothing = np.zeros((0, 0), np.object_)
        result = self.client.infer("simple_identity", [tensor(client, "INPUT0", nothing)])
        self.assertEqual(result.as_numpy("OUTPUT0").shape, (0, 0))

    def test_large_tensors(self):
        values = np.arange(3_000_000, dtype=np.float32).reshape(1, -1)
        result = self.client.infer("fp32", [tensor(client, "in_fp32", values)])
        self.assertTrue(np.array_equal(result.as_numpy("out_fp32"), values))

    def test_the_identifier_of_a_request(self):
        for identifier in ("1", "grüße", 'a "quoted" one'):
            result = self.client.infer("simple", pair(client), request_id=identifier)
            self.assertEqual(result.get_response()["id"], identifier)

    def test_parameters(self):
        result = self.client.infer(
            "simple",
            pair(client),
            priority=1,
            timeout=20_000_000,
            sequence_id=7,
            sequence_start=True,
            parameters={"text": "a", "whole": 1, "fraction": 1.5, "flag": True},
            headers={"X-More": "1"},
            query_params={"more": "1", "list": [1, 2]},
        )
        self.check(result)

    def test_requests_that_may_take_a_microsecond(self):
        """They may be answered, as by Triton, where the time limits only the wait in a queue."""
        for _ in range(20):
            try:
                self.check(self.client.infer("simple", pair(client), timeout=1))
            except InferenceServerException as error:
                self.assertEqual(error.status(), "504")
                self.assertIn("deadline", error.message())

    def test_versions(self):
        row = np.array([[1, 2, 3]], np.float32)
        given = [tensor(client, "INPUT0", row)]
        result = self.client.infer("versions", given)
        self.assertEqual(result.get_response()["model_version"], "2")
        result = self.client.infer("versions", given, model_version="2")
        self.assertTrue(same(result.as_numpy("OUTPUT0"), row * 3))
        missing = ["Request for unknown model", "'versions' version 1"]
        self.refused("404", missing, "versions", given, model_version="1")

    def check_compression(self, request):
        """The server may leave responses uncompressed."""
        values = np.zeros((1, 100_000), np.float32)
        with Proxy(http_address()) as proxy, client.InferenceServerClient(proxy.address) as other:
            for response in (None, "gzip", "deflate"):
                for binary in (True, False):
                    with self.subTest(response=response, binary=binary):
                        result = other.infer(
                            "fp32",
                            [tensor(client, "in_fp32", values, binary_data=binary)],
                            outputs=[client.InferRequestedOutput("out_fp32", binary)],
                            request_compression_algorithm=request,
                            response_compression_algorithm=response,
                        )
                        self.assertTrue(np.array_equal(result.as_numpy("out_fp32"), values))
            self.assertLess(proxy.sent, 20_000)

    def test_requests_compressed_with_gzip(self):
        self.check_compression("gzip")

    def test_requests_compressed_with_deflate(self):
        self.check_compression("deflate")

    def test_bodies_made_and_read_without_the_client(self):
        body, size = client.InferenceServerClient.generate_request_body(pair(client))
        self.assertEqual(len(body), size + 2 * 64)
        with Proxy(http_address()) as proxy:
            headers, answer = proxy.post("/v2/models/simple/infer", body, size)
        result = client.InferenceServerClient.parse_response_body(
            answer, header_length=int(headers["Inference-Header-Content-Length"])
        )
        self.check(result)

    def test_asynchronous_requests(self):
        with client.InferenceServerClient(http_address(), concurrency=4) as parallel:
            pending = [
                parallel.async_infer("simple", pair(client, FIRST + n), request_id=str(n))
                for n in range(20)
            ]
            for n, request in enumerate(pending):
                result = request.get_result(timeout=30)
                self.assertEqual(result.get_response()["id"], str(n))
                self.assertTrue(same(result.as_numpy("OUTPUT0"), SUM + n))
            failing = parallel.async_infer("nothing", pair(client))
            with self.assertRaises(InferenceServerException) as caught:
                failing.get_result(timeout=30)
            self.assertEqual(caught.exception.status(), "404")

    def test_one_connection_serves_all_requests_of_a_client(self):
        with Proxy(http_address()) as proxy, client.InferenceServerClient(proxy.address) as other:
            for _ in range(10):
                self.check(other.infer("simple", pair(client)))
                with self.assertRaises(InferenceServerException):
                    other.infer("nothing", pair(client))
                with self.assertRaises(InferenceServerException):
                    other.infer("simple", pair(client)[:1])
                self.assertTrue(other.is_server_ready())
            self.assertEqual(proxy.connections, 1)

    def test_a_client_in_each_of_many_threads(self):
        failures = []

        def run(number):
            try:
                with client.InferenceServerClient(http_address()) as own:
                    for n in range(number, number + 20):
                        result = own.infer("simple", pair(client, FIRST + n))
                        assert same(result.as_numpy("OUTPUT0"), SUM + n)
            except Exception as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=run, args=[100 * n]) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_errors_of_the_model(self):
        unknown = ["Request for unknown model: 'nothing' is not found"]
        self.refused("404", unknown, "nothing", pair(client))
        self.refused("404", ["'ü b%'"], "ü b%", pair(client))

    def test_errors_of_the_inputs(self):
        self.refused("400", ["INPUT1", "'simple'"], "simple", pair(client)[:1])
        more = [*pair(client), tensor(client, "INPUT2", SECOND)]
        self.refused("400", ["INPUT2", "'simple'"], "simple", more)
        self.refused("400", ["INPUT0", "'simple'"], "simple", [*pair(client), pair(client)[0]])
        short = [client.InferInput("INPUT0", [1, 16], "INT32"), pair(client)[1]]
        self.refused("400", ["INPUT0"], "simple", short)
        words = pair(client, text(FIRST), np.array([["x"] * 16], np.object_))
        self.refused("400", ["StringToNumberOp"], "simple_string", words)
        # One row with two rows: they cannot be a batch.
        uneven = pair(client, np.zeros((3, 16), np.int32), np.zeros((2, 16), np.int32))
        self.refused("400", [], "simple", uneven)

    def test_errors_of_the_outputs(self):
        wrong = [client.InferRequestedOutput("OUTPUT2")]
        self.refused("400", ["OUTPUT2", "'simple'"], "simple", pair(client), outputs=wrong)
        classes = [client.InferRequestedOutput("OUTPUT0", class_count=2)]
        self.refused("501", ["classification"], "simple", pair(client), outputs=classes)
        json = [client.InferRequestedOutput("out_fp16", binary_data=False)]
        given = [tensor(client, "in_fp16", VALUES["FP16"])]
        self.refused("400", ["out_fp16", "binary_data"], "fp16", given, outputs=json)
        as_json = [tensor(client, "in_fp16", VALUES["FP16"], binary_data=False)]
        self.refused("400", ["in_fp16", "FP16"], "fp16", as_json)


if __name__ == "__main__":
    unittest.main()
