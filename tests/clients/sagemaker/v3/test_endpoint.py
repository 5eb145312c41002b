"""SageMaker's SDK 3: Endpoint.invoke, with only its endpoint URL changed."""

import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from container import HALF_PLUS_THREE, HALF_PLUS_TWO, Container, use_aws

use_aws()


class Invoke(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.container = Container(
            HALF_PLUS_THREE, HALF_PLUS_TWO, SAGEMAKER_TFS_DEFAULT_MODEL_NAME="half_plus_three"
        )
        use_aws(cls.container.url)
        from sagemaker.core.resources import Endpoint

        cls.endpoint = Endpoint(endpoint_name="endpoint")

    @classmethod
    def tearDownClass(cls):
        cls.container.close()

    def test_json(self):
        answer = self.endpoint.invoke(
            body=json.dumps({"instances": [1.0, 2.0]}),
            content_type="application/json",
            accept="application/json",
        )
        self.assertEqual(json.load(answer.body), {"predictions": [3.5, 4.0]})

    def test_attributes(self):
        answer = self.endpoint.invoke(
            body="1.0\n2.0",
            content_type="text/csv",
            custom_attributes="tfs-model-name=half_plus_two",
        )
        self.assertEqual(json.load(answer.body), {"predictions": [2.5, 3.0]})

    def test_an_error(self):
        with self.assertRaises(Exception) as raised:
            self.endpoint.invoke(body="{", content_type="application/json")
        self.assertIn("ModelError", f"{type(raised.exception)} {raised.exception}")


if __name__ == "__main__":
    unittest.main()
