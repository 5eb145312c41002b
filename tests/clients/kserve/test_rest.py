"""KServe's InferenceRESTClient, with the protocols v1 and v2."""

import asyncio
import os
import tempfile
import unittest

import httpx
import numpy as np
from kserve.errors import UnsupportedProtocol
from kserve.protocol.infer_type import RequestedOutput

from inference import (
    DIFFERENCE,
    FIRST,
    OPTIONS,
    RAW_ONLY,
    SUM,
    VALUES,
    Running,
    encoded,
    environment,
    pair,
    request,
    same,
    server,
)
from kserve import InferenceRESTClient, RESTConfig

ROWS = [[1, 2, 3], [4, 5, 6]]
DOUBLED = [[2, 4, 6], [8, 10, 12]]


class Rest(unittest.IsolatedAsyncioTestCase):
    protocol = None

    def setUp(self):
        self.url = server().url

    async def asyncSetUp(self):
        self.client = InferenceRESTClient(RESTConfig(protocol=self.protocol, retries=0))
        self.addAsyncCleanup(self.client.close)

    async def refused(self, status, words, call):
        with self.assertRaises(httpx.HTTPStatusError) as caught:
            await call
        self.assertEqual(caught.exception.response.status_code, status)
        for word in words:
            self.assertIn(word, str(caught.exception))


class Version1(Rest):
    protocol = "v1"

    async def test_health(self):
        self.assertIs(await self.client.is_server_live(self.url), True)
        self.assertIs(await self.client.is_model_ready(self.url, "simple"), True)
        with self.assertRaises(UnsupportedProtocol):
            await self.client.is_server_ready(self.url)
        await self.refused(404, ["nothing"], self.client.is_model_ready(self.url, "nothing"))

    async def test_predict(self):
        for data in ({"instances": ROWS}, {"signature_name": "serving_default", "instances": ROWS}):
            answer = await self.client.infer(self.url, data, "raw_fp32")
            self.assertEqual(answer, {"predictions": DOUBLED})
        rows = [{"INPUT0": FIRST[0].tolist(), "INPUT1": FIRST[0].tolist()}]
        answer = await self.client.infer(self.url, {"instances": rows}, "simple")
        [row] = answer["predictions"]
        self.assertEqual(row["OUTPUT0"], (2 * FIRST)[0].tolist())
        self.assertEqual(row["OUTPUT1"], [0] * 16)

    async def test_predict_with_columns(self):
        answer = await self.client.infer(self.url, {"inputs": ROWS}, "raw_fp32")
        self.assertEqual(answer, {"outputs": DOUBLED})

    async def test_headers(self):
        headers = {}
        await self.client.infer(
            self.url,
            {"instances": ROWS},
            "raw_fp32",
            headers={"Content-Type": "application/json; charset=utf-8", "X-Request-Id": "seven"},
            response_headers=headers,
            timeout=20,
        )
        self.assertEqual(headers["content-type"], "application/json")

    async def test_errors(self):
        infer = self.client.infer
        await self.refused(404, ["nothing"], infer(self.url, {"instances": ROWS}, "nothing"))
        await self.refused(400, ["instances"], infer(self.url, {}, "raw_fp32"))
        await self.refused(400, [], infer(self.url, {"instances": [["x"]]}, "raw_fp32"))
        explain = self.client.explain(self.url, "raw_fp32", {"instances": ROWS})
        await self.refused(501, ["explain"], explain)


class Version2(Rest):
    protocol = "v2"

    def check(self, answer):
        self.assertEqual(answer.model_name, "simple")
        found = {output.name: output for output in answer.outputs}
        self.assertTrue(same(found["OUTPUT0"].as_numpy(), SUM))
        self.assertTrue(same(found["OUTPUT1"].as_numpy(), DIFFERENCE))

    async def test_health(self):
        self.assertIs(await self.client.is_server_live(self.url), True)
        self.assertIs(await self.client.is_server_ready(self.url), True)
        self.assertIs(await self.client.is_model_ready(self.url, "simple"), True)
        self.assertIs(await self.client.is_model_ready(self.url, "nothing"), False)

    async def test_tensors_as_json_and_as_bytes(self):
        for sent in (True, False):
            for parameters in (None, {"binary_data_output": False}, {"binary_data_output": True}):
                with self.subTest(sent=sent, parameters=parameters):
                    data = request("simple", *pair(sent), parameters=parameters)
                    self.check(await self.client.infer(self.url, data, "simple"))

    async def test_requested_outputs(self):
        for binary in (True, False):
            wanted = [RequestedOutput("OUTPUT1", {"binary_data": binary})]
            data = request("simple", *pair(binary), request_outputs=wanted)
            answer = await self.client.infer(self.url, data, "simple")
            [output] = answer.outputs
            self.assertEqual(output.name, "OUTPUT1")
            self.assertTrue(same(output.as_numpy(), DIFFERENCE))

    async def test_the_identifier_of_a_request(self):
        data = request("simple", *pair(), request_id="grüße")
        self.assertEqual((await self.client.infer(self.url, data, "simple")).id, "grüße")
        # KServe's own types require one.
        body = self.body()
        del body["id"]
        self.assertTrue((await self.client.infer(self.url, body, "simple")).id)

    def body(self):
        row = FIRST[0].tolist()
        inputs = [
            {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": row},
            {"name": "INPUT1", "shape": [1, 16], "datatype": "INT32", "data": [[1] * 16]},
        ]
        return {"id": "5", "inputs": inputs, "outputs": [{"name": "OUTPUT1"}, {"name": "OUTPUT0"}]}

    async def test_a_dictionary(self):
        answer = await self.client.infer(self.url, self.body(), "simple")
        self.check(answer)
        self.assertEqual([output.name for output in answer.outputs], ["OUTPUT1", "OUTPUT0"])

    async def test_every_datatype(self):
        for datatype, values in VALUES.items():
            for sent in (True, False):
                for wanted in (True, False):
                    if datatype in RAW_ONLY and not (sent and wanted):
                        continue
                    with self.subTest(datatype=datatype, sent=sent, wanted=wanted):
                        model = datatype.lower()
                        data = request(
                            model,
                            (f"in_{model}", values, sent),
                            parameters={"binary_data_output": wanted},
                        )
                        [output] = (await self.client.infer(self.url, data, model)).outputs
                        self.assertEqual((output.name, output.datatype), (f"out_{model}", datatype))
                        got = output.as_numpy()
                        # The SDK decodes raw bytes, too.
                        if datatype == "BYTES":
                            got = encoded(got)
                        self.assertTrue(same(got, values), got)

    async def test_large_tensors(self):
        values = np.arange(1_000_000, dtype=np.float32).reshape(1, -1)
        data = request("fp32", ("in_fp32", values, True), parameters={"binary_data_output": True})
        [output] = (await self.client.infer(self.url, data, "fp32")).outputs
        self.assertTrue(np.array_equal(output.as_numpy(), values))

    async def test_requests_at_the_same_time(self):
        async def one(n):
            data = request("simple", ("INPUT0", FIRST + n, True), pair()[1])
            answer = await self.client.infer(self.url, data, "simple")
            return same(answer.outputs[0].as_numpy(), SUM + n)

        self.assertTrue(all(await asyncio.gather(*map(one, range(64)))))

    async def test_the_address_of_a_graph(self):
        url = f"{self.url}/v2/models/simple/infer"
        answer = await self.client.infer(url, self.body(), is_graph_endpoint=True)
        self.assertEqual(answer["id"], "5")
        self.assertEqual(answer["outputs"][1]["data"], SUM[0].tolist())

    async def test_errors(self):
        def infer(data, model="simple"):
            return self.client.infer(self.url, data, model)

        unknown = ["Request for unknown model: 'nothing' is not found"]
        await self.refused(404, unknown, infer(self.body(), "nothing"))
        await self.refused(400, ["INPUT1"], infer(request("simple", pair()[0])))
        wanted = [RequestedOutput("OUTPUT2")]
        data = request("simple", *pair(), request_outputs=wanted)
        await self.refused(400, ["OUTPUT2"], infer(data))
        await self.refused(400, ["inputs"], infer({}))
        body = self.body()
        body["inputs"][0]["data"].append(1)
        await self.refused(400, ["INPUT0"], infer(body))
        data = request("fp16", ("in_fp16", VALUES["FP16"], True))
        await self.refused(400, ["out_fp16", "binary_data"], infer(data, "fp16"))


class NotReady(unittest.IsolatedAsyncioTestCase):
    """A server of a model that has no version yet."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        path = os.path.join(folder.name, "later")
        os.mkdir(path)
        options = [*OPTIONS, "--model-name", "later", "--kserve-v1"]
        running = Running(["serve", path, *options], environment(), True)
        cls.addClassCleanup(running.stop)
        cls.url = running.url

    async def test_version_1(self):
        async with InferenceRESTClient(RESTConfig(protocol="v1", retries=0)) as client:
            self.assertIs(await client.is_server_live(self.url), True)
            self.assertIs(await client.is_model_ready(self.url, "later"), False)

    async def test_version_2(self):
        async with InferenceRESTClient(RESTConfig(protocol="v2", retries=0)) as client:
            self.assertIs(await client.is_server_live(self.url), True)
            self.assertIs(await client.is_model_ready(self.url, "later"), False)
            with self.assertRaises(httpx.HTTPStatusError) as caught:
                await client.is_server_ready(self.url)
            self.assertEqual(caught.exception.response.status_code, 503)


if __name__ == "__main__":
    unittest.main()
