"""/openapi.json is valid OpenAPI, and its schemas match the requests and responses of models."""

import json
import os
import sys
import tempfile
import unittest
import urllib.request

from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import ROOT, Running, environment

NAMES = {
    "half_plus_two": "models/half_plus_two",
    "digits": "models/digits",
    "recommender": "models/recommender",
    "classify_three": "tests/data/tensorflow-serving/generated/classify_three",
    "<img onerror=x> {y} ü": "tests/data/tensorflow-serving/generated/echo_two",
}


class Server:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        config = os.path.join(self.folder.name, "tensorserve.toml")
        with open(config, "w", encoding="utf-8") as file:
            for name, model in NAMES.items():
                path = os.path.join(ROOT, model)
                file.write(f"[[models]]\nname = {json.dumps(name)}\npath = {json.dumps(path)}\n")
        command = ["serve", "--config", config, "--http-port", "0", "--grpc-port", "off"]
        self.running = Running([*command, "--log-level", "warn"], environment())
        self.url = self.running.url

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def close(self):
        self.running.stop()
        self.folder.cleanup()


class Description(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.close)
        cls.description = cls.server.ask("/openapi.json")

    def models(self):
        for path, item in self.description["paths"].items():
            operation = item.get("post", {})
            if "models" in operation.get("tags", []):
                yield path, operation

    def test_is_valid(self):
        validate(self.description)

    def test_has_the_console_and_every_model(self):
        paths = self.description["paths"]
        for path in ["/api/v1/status", "/api/v1/models/{model}/load", "/openapi.json"]:
            self.assertIn(path, paths)
        for path in paths:
            if path.startswith("/v2/models/{model}"):
                for operation in paths[path].values():
                    if isinstance(operation, dict):
                        self.assertNotIn("default", operation["responses"], path)
        self.assertIn("/v2/models/half_plus_two/infer", paths)
        titles = {operation["summary"] for _, operation in self.models()}
        self.assertEqual(len(titles), len(NAMES))
        self.assertIn("/v1/models/classify_three:classify", paths)

    def test_examples_are_as_described_and_work(self):
        tried = 0
        for path, operation in self.models():
            content = operation["requestBody"]["content"]["application/json"]
            request = Draft202012Validator(content["schema"])
            given = operation["responses"]["200"]["content"]["application/json"]["schema"]
            example = content.get("example")
            if example is None:
                continue
            request.validate(example)
            if "/models/classify_three" in path:
                continue  # Its strings are messages, which no schema describes.
            with self.subTest(path):
                answer = self.server.ask(path, example)
                Draft202012Validator(given).validate(answer)
                tried += 1
        self.assertGreaterEqual(tried, 3)

    def test_other_inputs_are_not_as_described(self):
        operation = self.description["paths"]["/v1/models/half_plus_two:predict"]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        request = Draft202012Validator(schema)
        request.validate({"instances": [1.0, 2.0]})
        for wrong in [{}, {"instances": 1.0}, {"instances": [[True]]}, {"inputs": {"x": {}}}]:
            self.assertFalse(request.is_valid(wrong), wrong)


if __name__ == "__main__":
    unittest.main()
