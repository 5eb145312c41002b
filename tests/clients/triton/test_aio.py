"""tritonclient.http.aio and tritonclient.grpc.aio: clients for asyncio."""

import asyncio
import unittest
from types import MappingProxyType

import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException

from inference import (
    FIRST,
    SECOND,
    SUM,
    VALUES,
    grpc_address,
    http_address,
    pair,
    same,
    tensor,
    text,
)


class Asynchronous:
    """The tests of both; `client` makes tensors, and connect() returns a client."""

    async def test_infer(self):
        async with self.connect() as connected:
            outputs = [self.client.InferRequestedOutput("OUTPUT0")]
            result = await connected.infer(
                "simple", pair(self.client), outputs=outputs, request_id="9", model_version="1"
            )
            self.assertTrue(same(result.as_numpy("OUTPUT0"), SUM))
            self.assertIsNone(result.as_numpy("OUTPUT1"))
            inputs = pair(self.client, text(FIRST), text(SECOND))
            result = await connected.infer("simple_string", inputs)
            self.assertEqual(result.as_numpy("OUTPUT0").tolist(), text(SUM).tolist())

    async def test_every_datatype(self):
        async with self.connect() as connected:
            for datatype, values in VALUES.items():
                model = datatype.lower()
                given = [tensor(self.client, f"in_{model}", values)]
                result = await connected.infer(model, given)
                self.assertTrue(same(result.as_numpy(f"out_{model}"), values), datatype)

    async def test_requests_at_the_same_time(self):
        async with self.connect() as connected:

            async def one(n):
                result = await connected.infer("simple", pair(self.client, FIRST + n))
                return same(result.as_numpy("OUTPUT0"), SUM + n)

            self.assertTrue(all(await asyncio.gather(*map(one, range(64)))))

    async def test_compressed_requests(self):
        async with self.connect() as connected:
            result = await connected.infer("simple", pair(self.client), **self.gzip)
            self.assertTrue(same(result.as_numpy("OUTPUT0"), SUM))

    async def test_health_and_descriptions(self):
        async with self.connect() as connected:
            self.assertTrue(await connected.is_server_live())
            self.assertTrue(await connected.is_server_ready())
            self.assertTrue(await connected.is_model_ready("simple", "1"))
            server = await connected.get_server_metadata(**self.as_json)
            self.assertIn("model_repository", server["extensions"])
            model = await connected.get_model_metadata("simple", **self.as_json)
            self.assertEqual([i["name"] for i in model["inputs"]], ["INPUT0", "INPUT1"])
            config = await connected.get_model_config("simple", **self.as_json)
            config = config.get("config", config)
            self.assertEqual(config["input"][0]["data_type"], "TYPE_INT32")
            statistics = await connected.get_inference_statistics("simple", **self.as_json)
            self.assertEqual(statistics["model_stats"][0]["name"], "simple")
            index = await connected.get_model_repository_index(**self.as_json)
            names = [model["name"] for model in (index["models"] if self.as_json else index)]
            self.assertIn("simple", names)

    async def test_models_can_be_unloaded_and_loaded(self):
        async with self.connect() as connected:
            await connected.unload_model(self.own_model)
            with self.assertRaises(InferenceServerException) as caught:
                await connected.get_model_metadata(self.own_model)
            self.assertIn("unknown model", caught.exception.message())
            await connected.load_model(self.own_model)
            self.assertTrue(await connected.is_model_ready(self.own_model))

    async def test_errors(self):
        async with self.connect() as connected:
            for inputs, model, status in [
                (pair(self.client), "nothing", self.not_found),
                (pair(self.client)[:1], "simple", self.invalid),
            ]:
                with self.assertRaises(InferenceServerException) as caught:
                    await connected.infer(model, inputs)
                self.assertEqual(caught.exception.status(), status)
            result = await connected.infer("simple", pair(self.client))
            self.assertTrue(same(result.as_numpy("OUTPUT0"), SUM))


class Http(Asynchronous, unittest.IsolatedAsyncioTestCase):
    client = http_client
    as_json = MappingProxyType({})
    gzip = MappingProxyType(
        {"request_compression_algorithm": "gzip", "response_compression_algorithm": "gzip"}
    )
    not_found = "404"
    invalid = "400"
    own_model = "cube"

    def connect(self):
        return http_aio.InferenceServerClient(http_address())


class Grpc(Asynchronous, unittest.IsolatedAsyncioTestCase):
    client = grpc_client
    as_json = MappingProxyType({"as_json": True})
    gzip = MappingProxyType({"compression_algorithm": "gzip"})
    not_found = "StatusCode.NOT_FOUND"
    invalid = "StatusCode.INVALID_ARGUMENT"
    own_model = "raw_bytes"

    def connect(self):
        return grpc_aio.InferenceServerClient(grpc_address())


if __name__ == "__main__":
    unittest.main()
