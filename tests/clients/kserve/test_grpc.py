"""KServe's InferenceGRPCClient, and the service of its SDK."""

import asyncio
import unittest

import grpc
import numpy as np
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub
from kserve.protocol.infer_type import RequestedOutput

from inference import (
    DIFFERENCE,
    FIRST,
    RAW_ONLY,
    SUM,
    VALUES,
    pair,
    request,
    same,
    server,
)
from kserve import InferenceGRPCClient


class Grpc(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = InferenceGRPCClient(server().grpc)
        self.addAsyncCleanup(self.client.close)

    async def refused(self, code, words, call):
        with self.assertRaises(grpc.aio.AioRpcError) as caught:
            await call
        self.assertEqual(caught.exception.code().name, code)
        for word in words:
            self.assertIn(word, caught.exception.details())

    async def test_health(self):
        self.assertIs(await self.client.is_server_live(), True)
        self.assertIs(await self.client.is_server_ready(headers=[("x-more", "1")]), True)
        self.assertIs(await self.client.is_model_ready("simple", timeout=20), True)

    async def test_a_model_that_does_not_exist(self):
        # As in Triton.
        self.assertIs(await self.client.is_model_ready("nothing"), False)

    async def test_infer(self):
        for raw in (True, False):
            data = request("simple", *pair(raw), request_id="grüße", parameters={"a": 1, "b": "x"})
            answer = await self.client.infer(data)
            self.assertEqual((answer.id, answer.model_name), ("grüße", "simple"))
            self.assertEqual(answer.model_version, "1")
            self.assertTrue(same(answer.outputs[0].as_numpy(), SUM))
            self.assertTrue(same(answer.outputs[1].as_numpy(), DIFFERENCE))

    async def test_requested_outputs(self):
        wanted = [RequestedOutput("OUTPUT1")]
        answer = await self.client.infer(request("simple", *pair(), request_outputs=wanted))
        self.assertEqual([output.name for output in answer.outputs], ["OUTPUT1"])

    async def test_every_datatype(self):
        for datatype, values in VALUES.items():
            for raw in (True, False):
                if datatype in RAW_ONLY and not raw:
                    continue
                with self.subTest(datatype=datatype, raw=raw):
                    model = datatype.lower()
                    data = request(model, (f"in_{model}", values, raw))
                    [output] = (await self.client.infer(data)).outputs
                    self.assertEqual((output.name, output.datatype), (f"out_{model}", datatype))
                    self.assertTrue(same(output.as_numpy(), values))

    async def test_large_tensors(self):
        values = np.arange(3_000_000, dtype=np.float32).reshape(1, -1)
        answer = await self.client.infer(request("fp32", ("in_fp32", values, True)))
        self.assertTrue(np.array_equal(answer.outputs[0].as_numpy(), values))

    async def test_requests_at_the_same_time(self):
        async def one(n):
            data = request("simple", ("INPUT0", FIRST + n, True), pair()[1])
            return same((await self.client.infer(data)).outputs[0].as_numpy(), SUM + n)

        self.assertTrue(all(await asyncio.gather(*map(one, range(64)))))

    async def test_errors(self):
        infer = self.client.infer
        unknown = ["Request for unknown model: 'nothing' is not found"]
        await self.refused("NOT_FOUND", unknown, infer(request("nothing", *pair())))
        await self.refused("INVALID_ARGUMENT", ["INPUT1"], infer(request("simple", pair()[0])))
        wanted = [RequestedOutput("OUTPUT2")]
        data = request("simple", *pair(), request_outputs=wanted)
        await self.refused("INVALID_ARGUMENT", ["OUTPUT2"], infer(data))


class Service(unittest.TestCase):
    """The calls that the client lacks, with the messages of KServe's SDK."""

    def setUp(self):
        channel = grpc.insecure_channel(server().grpc)
        self.addCleanup(channel.close)
        self.stub = GRPCInferenceServiceStub(channel)

    def test_the_server(self):
        answer = self.stub.ServerMetadata(messages.ServerMetadataRequest())
        self.assertEqual(answer.name, "tensorserve")
        self.assertIn("model_repository", answer.extensions)

    def test_a_model(self):
        answer = self.stub.ModelMetadata(messages.ModelMetadataRequest(name="simple", version="1"))
        self.assertEqual((answer.name, list(answer.versions)), ("simple", ["1"]))
        self.assertEqual(answer.platform, "tensorflow_savedmodel")
        tensors = [(one.name, one.datatype, list(one.shape)) for one in answer.inputs]
        self.assertEqual(tensors[0], ("INPUT0", "INT32", [-1, 16]))
        self.assertEqual([one.name for one in answer.outputs], ["OUTPUT0", "OUTPUT1"])

    def test_a_model_can_be_unloaded_and_loaded(self):
        """KServe's messages have the name where Triton's have that of a repository."""
        unload = messages.RepositoryModelUnloadRequest(model_name="cube")
        answer = self.stub.RepositoryModelUnload(unload)
        self.assertEqual((answer.model_name, answer.isUnloaded), ("cube", True))
        ready = self.stub.ModelReady(messages.ModelReadyRequest(name="cube"))
        self.assertIs(ready.ready, False)
        load = messages.RepositoryModelLoadRequest(model_name="cube")
        answer = self.stub.RepositoryModelLoad(load)
        self.assertEqual((answer.model_name, answer.isLoaded), ("cube", True))
        self.assertIs(self.stub.ModelReady(messages.ModelReadyRequest(name="cube")).ready, True)

    def test_models_that_do_not_exist(self):
        for call, message in [
            (self.stub.ModelMetadata, messages.ModelMetadataRequest(name="nothing")),
            (
                self.stub.RepositoryModelLoad,
                messages.RepositoryModelLoadRequest(model_name="nothing"),
            ),
        ]:
            with self.assertRaises(grpc.RpcError) as caught:
                call(message)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)


if __name__ == "__main__":
    unittest.main()
