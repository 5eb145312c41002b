"""boto3's sagemaker-runtime against the server, with only its endpoint URL changed."""

import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from container import HALF_PLUS_THREE, HALF_PLUS_TWO, Container, use_aws, wait_until

use_aws()
import boto3
from botocore.exceptions import ClientError

BODY = json.dumps({"instances": [1.0, 2.0, 5.0]})


class Runtime(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = tempfile.TemporaryDirectory()
        cls.input, cls.output = (os.path.join(cls.files.name, name) for name in ("in", "out"))
        os.mkdir(cls.input)
        os.mkdir(cls.output)
        cls.container = Container(
            HALF_PLUS_THREE,
            HALF_PLUS_TWO,
            SAGEMAKER_TFS_DEFAULT_MODEL_NAME="half_plus_three",
            TENSORSERVE_SAGEMAKER_ASYNC_INPUT=cls.input,
            TENSORSERVE_SAGEMAKER_ASYNC_OUTPUT=cls.output,
        )
        use_aws(cls.container.url)
        cls.client = boto3.client("sagemaker-runtime")
        cls.sent = []
        cls.client.meta.events.register("before-send.sagemaker-runtime.*", cls.count)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.container.close()
        cls.files.cleanup()

    @classmethod
    def count(cls, request, **_):
        cls.sent.append(request.url)

    def invoke(self, body=BODY, **more):
        more.setdefault("ContentType", "application/json")
        return self.client.invoke_endpoint(EndpointName="endpoint", Body=body, **more)

    def test_an_invocation(self):
        answer = self.invoke(Accept="application/json")
        self.assertEqual(json.load(answer["Body"]), {"predictions": [3.5, 4.0, 5.5]})
        self.assertEqual(answer["ContentType"], "application/json")
        self.assertEqual(answer["InvokedProductionVariant"], "AllTraffic")
        self.assertTrue(answer["ResponseMetadata"]["RequestId"])

    def test_a_body_without_a_type_is_json(self):
        answer = self.client.invoke_endpoint(EndpointName="e", Body=BODY)
        self.assertEqual(json.load(answer["Body"]), {"predictions": [3.5, 4.0, 5.5]})

    def test_csv_and_attributes(self):
        attributes = "trace=7,tfs-model-name=half_plus_two,tfs-model-version=123"
        answer = self.invoke("1\n2\n", ContentType="text/csv", CustomAttributes=attributes)
        self.assertEqual(json.load(answer["Body"]), {"predictions": [2.5, 3.0]})

    def test_the_target_model(self):
        answer = self.invoke(TargetModel="half_plus_two.tar.gz")
        self.assertEqual(json.load(answer["Body"]), {"predictions": [2.5, 3.0, 4.5]})

    def test_a_response_stream(self):
        answer = self.client.invoke_endpoint_with_response_stream(
            EndpointName="endpoint", Body=BODY, ContentType="application/json"
        )
        parts = [event["PayloadPart"]["Bytes"] for event in answer["Body"]]
        self.assertEqual(json.loads(b"".join(parts)), {"predictions": [3.5, 4.0, 5.5]})

    def test_an_asynchronous_invocation(self):
        path = os.path.join(self.input, "request.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(BODY)
        answer = self.client.invoke_endpoint_async(
            EndpointName="endpoint",
            InputLocation=f"file://{path}",
            ContentType="application/json",
            InferenceId="of-a-test",
        )
        self.assertEqual(answer["ResponseMetadata"]["HTTPStatusCode"], 202)
        self.assertEqual(answer["InferenceId"], "of-a-test")
        location = answer["OutputLocation"].removeprefix("file://")
        wait_until(lambda: os.path.exists(location), f"{location} is there")
        with open(location, encoding="utf-8") as file:
            self.assertEqual(json.load(file), {"predictions": [3.5, 4.0, 5.5]})

    def test_a_models_error_is_a_model_error_and_not_retried(self):
        del self.sent[:]
        with self.assertRaises(self.client.exceptions.ModelError) as raised:
            self.invoke('{"instances": ["a"]}')
        answer = raised.exception.response
        self.assertEqual(answer["OriginalStatusCode"], 400)
        self.assertIn("error", json.loads(answer["OriginalMessage"]))
        self.assertIn("LogStreamArn", answer)
        self.assertIn("Received client error (400) from primary", answer["Error"]["Message"])
        self.assertEqual(len(self.sent), 1, self.sent)

    def test_a_type_that_is_not_known(self):
        with self.assertRaises(ClientError) as raised:
            self.invoke("x", ContentType="text/plain")
        answer = raised.exception.response
        self.assertEqual(answer["OriginalStatusCode"], 415)
        self.assertIn("Unsupported Media Type: text/plain", answer["OriginalMessage"])


if __name__ == "__main__":
    unittest.main()
