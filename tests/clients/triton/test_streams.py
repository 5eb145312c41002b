"""tritonclient.grpc: inference in streams, as Triton answers it."""

import queue
import time
import unittest

import grpc
import numpy as np
import tritonclient.grpc as client
import tritonclient.grpc.aio as aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from inference import FIRST, SUM, VALUES, grpc_address, pair, same, tensor


class Streams(unittest.TestCase):
    def setUp(self):
        self.client = client.InferenceServerClient(grpc_address())
        self.addCleanup(self.client.close)
        self.answers = queue.Queue()

    def start(self, **options):
        def callback(result, error):
            self.answers.put((result, error))

        self.client.start_stream(callback, **options)

    def answer(self):
        result, error = self.answers.get(timeout=30)
        if error is not None:
            raise error
        return result

    def test_answers_come_in_the_order_of_the_requests(self):
        self.start()
        for n in range(50):
            inputs = pair(client, FIRST + n)
            self.client.async_stream_infer("simple", inputs, request_id=f"r{n}")
        for n in range(50):
            result = self.answer()
            self.assertEqual(result.get_response().id, f"r{n}")
            self.assertTrue(same(result.as_numpy("OUTPUT0"), SUM + n))
        self.client.stop_stream()
        self.assertTrue(self.answers.empty())

    def test_one_stream_serves_several_models(self):
        self.start()
        for datatype, values in VALUES.items():
            model = datatype.lower()
            given = [tensor(client, f"in_{model}", values)]
            outputs = [client.InferRequestedOutput(f"out_{model}")]
            self.client.async_stream_infer(model, given, outputs=outputs)
        for datatype, values in VALUES.items():
            self.assertTrue(same(self.answer().as_numpy(f"out_{datatype.lower()}"), values))

    def test_every_answer_is_final(self):
        """A model that is not decoupled has one response for a request."""
        self.start()
        for option in (False, True):
            self.client.async_stream_infer(
                "simple", pair(client), enable_empty_final_response=option
            )
            response = self.answer().get_response()
            self.assertIs(response.parameters["triton_final_response"].bool_param, True)
            self.assertEqual(len(response.outputs), 2)

    def test_an_error_does_not_end_the_stream(self):
        self.start()
        self.client.async_stream_infer("nothing", pair(client))
        self.client.async_stream_infer("simple", pair(client)[:1])
        self.client.async_stream_infer("simple", pair(client), request_id="after")
        with self.assertRaisesRegex(InferenceServerException, "Request for unknown model"):
            self.answer()
        with self.assertRaisesRegex(InferenceServerException, "INPUT1"):
            self.answer()
        self.assertEqual(self.answer().get_response().id, "after")

    def test_options(self):
        self.start(headers={"x-more": "1"}, compression_algorithm="gzip", stream_timeout=30)
        self.client.async_stream_infer(
            "versions",
            [tensor(client, "INPUT0", np.array([[1, 2, 3]], np.float32))],
            model_version="2",
            sequence_id=7,
            sequence_start=True,
            priority=1,
            timeout=20_000_000,
            parameters={"text": "a", "flag": True},
        )
        self.assertEqual(self.answer().as_numpy("OUTPUT0").tolist(), [[3, 6, 9]])

    def test_another_stream_can_follow(self):
        for n in range(3):
            self.start()
            self.client.async_stream_infer("simple", pair(client, FIRST + n))
            self.assertTrue(same(self.answer().as_numpy("OUTPUT0"), SUM + n))
            self.client.stop_stream()

    def test_stopping_waits_for_the_answers(self):
        self.start()
        for _ in range(20):
            self.client.async_stream_infer("simple", pair(client))
        self.client.stop_stream()
        self.assertEqual(self.answers.qsize(), 20)
        for _ in range(20):
            self.answer()

    def test_a_cancelled_stream(self):
        self.start()
        self.client.async_stream_infer("simple", pair(client))
        self.answer()
        self.client.stop_stream(cancel_requests=True)
        with self.assertRaises(InferenceServerException) as caught:
            self.answer()
        self.assertEqual(caught.exception.status(), "StatusCode.CANCELLED")
        self.assertTrue(self.client.is_server_ready())

    def test_a_stream_that_takes_too_long(self):
        self.start(stream_timeout=0.3)
        with self.assertRaises(InferenceServerException) as caught:
            self.answer()
        self.assertEqual(caught.exception.status(), "StatusCode.DEADLINE_EXCEEDED")

    def test_an_idle_stream_stays_open(self):
        self.start()
        time.sleep(2)
        self.client.async_stream_infer("simple", pair(client))
        self.assertTrue(same(self.answer().as_numpy("OUTPUT0"), SUM))

    def test_large_tensors(self):
        values = np.arange(3_000_000, dtype=np.float32).reshape(1, -1)
        self.start()
        for _ in range(3):
            self.client.async_stream_infer("fp32", [tensor(client, "in_fp32", values)])
        for _ in range(3):
            self.assertTrue(np.array_equal(self.answer().as_numpy("out_fp32"), values))


class Messages(unittest.TestCase):
    def test_an_error_names_its_request(self):
        with grpc.insecure_channel(grpc_address()) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = service_pb2.ModelInferRequest(model_name="nothing", id="the failed one")
            [answer] = stub.ModelStreamInfer(iter([request]), timeout=30)
        self.assertIn("Request for unknown model", answer.error_message)
        self.assertEqual(answer.infer_response.id, "the failed one")

    def test_an_empty_stream_ends(self):
        with grpc.insecure_channel(grpc_address()) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            self.assertEqual(list(stub.ModelStreamInfer(iter([]), timeout=30)), [])


class Asynchronous(unittest.IsolatedAsyncioTestCase):
    async def test_stream(self):
        async def requests():
            for n in range(10):
                yield {
                    "model_name": "simple" if n != 5 else "nothing",
                    "inputs": pair(client, FIRST + n),
                    "request_id": str(n),
                }

        async with aio.InferenceServerClient(grpc_address()) as connected:
            number = 0
            async for result, error in connected.stream_infer(requests(), stream_timeout=30):
                if number == 5:
                    self.assertIn("Request for unknown model", error.message())
                else:
                    self.assertIsNone(error)
                    self.assertEqual(result.get_response().id, str(number))
                    self.assertTrue(same(result.as_numpy("OUTPUT0"), SUM + number))
                number += 1
            self.assertEqual(number, 10)


if __name__ == "__main__":
    unittest.main()
