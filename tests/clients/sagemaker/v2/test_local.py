"""SageMaker's SDK 2 in local mode, with the binary as its docker."""

import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from container import BINARY, DATA, HALF_PLUS_THREE, Container, free_port, pack, use_aws

use_aws()
import boto3
from sagemaker.local import LocalSession
from sagemaker.local.local_session import LocalSagemakerRuntimeClient
from sagemaker.tensorflow import TensorFlowModel

from test_predictor import SILENT

ROLE = "arn:aws:iam::111111111111:role/any"


class Local(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        tools = os.path.join(self.folder.name, "bin")
        os.mkdir(tools)
        os.symlink(BINARY, os.path.join(tools, "docker"))
        path = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        os.environ["PATH"] = f"{tools}{os.pathsep}{path}"

    def session(self, port):
        session = LocalSession(boto_session=boto3.Session(), sagemaker_config=SILENT)
        session.config = {"local": {"local_code": True, "serving_port": port}}
        # Otherwise the session asks S3 for it; there is no public way to set it.
        session._default_bucket = "bucket"  # noqa: SLF001
        return session

    def test_deploy_predict_and_transform(self):
        port = free_port()
        models, inputs, outputs = (
            os.path.join(self.folder.name, name) for name in ("models", "in", "out")
        )
        for folder in (models, inputs, outputs):
            os.mkdir(folder)
        model = TensorFlowModel(
            model_data="file://" + pack(models, HALF_PLUS_THREE),
            role=ROLE,
            image_uri="tensorflow-inference:2.18-cpu",
            framework_version="2.18",
            sagemaker_session=self.session(port),
        )
        predictor = model.deploy(initial_instance_count=1, instance_type="local")
        try:
            answer = predictor.predict({"instances": [1.0, 2.0, 5.0]})
            self.assertEqual(answer, {"predictions": [3.5, 4.0, 5.5]})
        finally:
            predictor.delete_endpoint()

        with open(os.path.join(inputs, "rows.csv"), "w", encoding="utf-8") as file:
            file.write("1.0\n2.0\n5.0\n")
        transformer = model.transformer(
            instance_count=1,
            instance_type="local",
            output_path="file://" + outputs,
            strategy="MultiRecord",
            assemble_with="Line",
            accept="application/json",
        )
        # The job is done when this returns; wait() would request its log from AWS.
        transformer.transform(
            "file://" + inputs, content_type="text/csv", split_type="Line", wait=False
        )
        files = [os.path.join(at, name) for at, _, names in os.walk(outputs) for name in names]
        self.assertEqual([os.path.basename(path) for path in files], ["rows.csv.out"])
        with open(files[0], encoding="utf-8") as file:
            self.assertEqual(json.load(file), {"predictions": [3.5, 4.0, 5.5]})

    def test_the_runtime_client(self):
        container = Container(HALF_PLUS_THREE)
        self.addCleanup(container.close)
        client = LocalSagemakerRuntimeClient({"local": {"serving_port": container.port}})
        with open(os.path.join(DATA, "inputs/test.csv"), "rb") as file:
            body = file.read()
        answer = client.invoke_endpoint(
            Body=body, EndpointName="any", ContentType="text/csv", Accept="application/json"
        )
        self.assertEqual(len(json.loads(answer["Body"].read())["predictions"]), 10)
        # The SDK ignores the status.
        answer = client.invoke_endpoint(Body="", EndpointName="any", ContentType="text/csv")
        self.assertIn("error", json.loads(answer["Body"].read()))


if __name__ == "__main__":
    unittest.main()
