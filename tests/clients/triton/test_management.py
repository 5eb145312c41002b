"""tritonclient.http and tritonclient.grpc: health, descriptions, statistics, and loading models."""

import json
import unittest

import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from google.protobuf.json_format import MessageToDict
from tritonclient.utils import InferenceServerException

from inference import FIRST, SUM, grpc_address, http_address, pair, same

TWO_INPUTS = [
    {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]},
    {"name": "INPUT1", "datatype": "INT32", "shape": [-1, 16]},
]


def plain(message):
    """A message, or an answer as JSON, as JSON; numbers of 64 bits are text in messages."""
    if hasattr(message, "DESCRIPTOR"):
        return MessageToDict(message, preserving_proto_field_name=True)
    return json.loads(json.dumps(message))


def numbers(value):
    """The JSON `value` with its integers as text."""
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Management:
    """The tests of both; `module` is the client, and `own_model` is loaded by it alone."""

    def refused(self, statuses, words, call, *arguments, **options):
        with self.assertRaises(InferenceServerException) as caught:
            call(*arguments, **options)
        self.assertIn(caught.exception.status(), statuses, caught.exception)
        for word in words:
            self.assertIn(word, caught.exception.message())

    def index(self):
        index = plain(self.client.get_model_repository_index())
        return {model["name"]: model for model in (index if self.rest else index["models"])}

    def configuration(self, *model):
        config = plain(self.client.get_model_config(*model))
        return config if self.rest else config["config"]

    def statistics(self, *model):
        return plain(self.client.get_inference_statistics(*model))["model_stats"]

    def test_health(self):
        self.assertIs(self.client.is_server_live(), True)
        self.assertIs(self.client.is_server_ready(headers={"x-more": "1"}), True)
        for version in ("", "1"):
            self.assertIs(self.client.is_model_ready("simple", version), True)

    def test_the_server(self):
        server = plain(self.client.get_server_metadata())
        self.assertEqual(server["name"], "tensorserve")
        self.assertRegex(server["version"], r"^\d+\.\d+\.\d+")
        expected = {
            "binary_tensor_data",
            "model_configuration",
            "model_repository",
            "statistics",
        }
        self.assertLessEqual(expected, set(server["extensions"]))

    def test_a_model(self):
        for version in ("", "1"):
            model = plain(self.client.get_model_metadata("simple", version))
            self.assertEqual(model["name"], "simple")
            self.assertEqual(model["versions"], ["1"])
            self.assertEqual(model["platform"], "tensorflow_savedmodel")
            self.assertEqual(numbers(model["inputs"]), numbers(TWO_INPUTS))
            names = [output["name"] for output in model["outputs"]]
            self.assertEqual(names, ["OUTPUT0", "OUTPUT1"])
        self.assertEqual(plain(self.client.get_model_metadata("versions"))["versions"], ["2"])

    def test_the_datatypes_of_a_model(self):
        model = plain(self.client.get_model_metadata("all_types"))
        for tensor in model["inputs"]:
            self.assertEqual(tensor["name"], f"in_{tensor['datatype'].lower()}")
            self.assertEqual(numbers(tensor["shape"]), ["-1", "-1"])
        self.assertEqual(len(model["inputs"]), 14)

    def test_the_configuration_of_a_model(self):
        config = self.configuration("simple")
        self.assertEqual((config["name"], config["backend"]), ("simple", "tensorflow"))
        self.assertEqual(config["platform"], "tensorflow_savedmodel")
        self.assertGreater(config["max_batch_size"], 0)
        # The first dimension is that of batches.
        self.assertEqual(
            numbers(config["input"]),
            [
                {"name": name, "data_type": "TYPE_INT32", "dims": ["16"]}
                for name in ("INPUT0", "INPUT1")
            ],
        )
        self.assertEqual([output["name"] for output in config["output"]], ["OUTPUT0", "OUTPUT1"])
        self.assertEqual(config, self.configuration("simple", "1"))
        text = self.configuration("simple_string")["input"][0]
        self.assertEqual(text["data_type"], "TYPE_STRING")

    def test_statistics_count_requests_and_rows(self):
        def counts():
            [model] = self.statistics("simple_int8", "1")
            self.assertEqual((model["name"], model["version"]), ("simple_int8", "1"))
            durations = model["inference_stats"]
            return {
                "rows": int(model.get("inference_count", 0)),
                "runs": int(model.get("execution_count", 0)),
                "answered": int(durations["success"].get("count", 0)),
                "failed": int(durations["fail"].get("count", 0)),
                "time": int(durations["success"].get("ns", 0)),
                "last": int(model.get("last_inference", 0)),
            }

        before = counts()
        small = FIRST.astype("int8")
        three = small.repeat(3, axis=0)
        self.client.infer("simple_int8", pair(self.module, small, small))
        self.client.infer("simple_int8", pair(self.module, three, three))
        with self.assertRaises(InferenceServerException):
            self.client.infer("simple_int8", pair(self.module, small, small)[:1])
        after = counts()
        changes = {key: after[key] - before[key] for key in after}
        self.assertEqual(changes["answered"], 2)
        self.assertEqual(changes["failed"], 1)
        self.assertEqual(changes["runs"], 2)
        self.assertEqual(changes["rows"], 4)
        self.assertGreater(changes["time"], 0)
        self.assertGreater(after["last"], before["last"])

    def test_statistics_of_all_models(self):
        names = {model["name"] for model in self.statistics()}
        self.assertLessEqual({"simple", "all_types", "versions"}, names)

    def test_the_repository(self):
        index = self.index()
        expected = {"name": "simple", "version": "1", "state": "READY"}
        self.assertEqual({"reason": "", **expected}, {"reason": "", **index["simple"]})
        self.assertIn("all_types", index)

    def test_a_model_can_be_unloaded_and_loaded(self):
        client, model = self.client, self.own_model
        self.assertTrue(client.is_model_ready(model))
        client.unload_model(model, unload_dependents=True)
        self.assertEqual(self.index()[model]["state"], "UNAVAILABLE")
        self.refused(self.not_found, ["unknown model", model], client.get_model_metadata, model)
        self.refused(self.not_found, ["unknown model"], client.infer, model, pair(self.module))
        # The server is ready without a model that was unloaded on request.
        self.assertTrue(client.is_server_ready())
        client.unload_model(model)
        client.load_model(model)
        self.assertEqual(self.index()[model]["state"], "READY")
        self.assertTrue(client.is_model_ready(model))
        # Nothing changes.
        client.load_model(model)
        self.assertTrue(client.is_model_ready(model))

    def test_an_unloaded_model_is_not_ready(self):
        self.client.unload_model(self.own_model)
        self.addCleanup(self.client.load_model, self.own_model)
        self.assertIs(self.client.is_model_ready(self.own_model), False)

    def test_models_that_do_not_exist(self):
        client = self.client
        unknown = "Request for unknown model: 'nothing' is not found"
        for call in (
            client.get_model_metadata,
            client.get_model_config,
            client.get_inference_statistics,
        ):
            self.refused(self.not_found, [unknown], call, "nothing")
            missing = ["Request for unknown model", "'simple' version 7"]
            self.refused(self.not_found, missing, call, "simple", "7")
        self.refused(self.not_found, ["unknown model"], client.unload_model, "nothing")

    def test_a_model_that_cannot_be_loaded(self):
        """Scripts look for this text."""
        words = ["failed to load 'nothing'"]
        self.refused(self.not_found, words, self.client.load_model, "nothing")

    def test_models_cannot_be_sent(self):
        words = ["not supported"]
        for options in ({"config": '{"max_batch_size": 4}'}, {"files": {"file:1/a": b"a"}}):
            if "files" in options:
                options["config"] = "{}"
            self.refused(self.unsupported, words, self.client.load_model, "simple", **options)
        result = self.client.infer("simple", pair(self.module))
        self.assertTrue(same(result.as_numpy("OUTPUT0"), SUM))


class Both(unittest.TestCase):
    """What both protocols say is equal."""

    def setUp(self):
        self.http = http_client.InferenceServerClient(http_address())
        self.grpc = grpc_client.InferenceServerClient(grpc_address())
        self.addCleanup(self.http.close)
        self.addCleanup(self.grpc.close)

    def test_metadata_and_configurations(self):
        for model in ("simple", "all_types", "simple_string", "versions"):
            with self.subTest(model=model):
                over_http = plain(self.http.get_model_metadata(model))
                over_grpc = plain(self.grpc.get_model_metadata(model))
                self.assertEqual(numbers(over_http), numbers(over_grpc))
                over_http = plain(self.http.get_model_config(model))
                over_grpc = plain(self.grpc.get_model_config(model))["config"]
                self.assertEqual(numbers(over_http), numbers(over_grpc))

    def test_the_repository(self):
        over_http = self.http.get_model_repository_index()
        over_grpc = plain(self.grpc.get_model_repository_index())["models"]
        self.assertEqual(over_http, [{"reason": "", **model} for model in over_grpc])


class Http(Management, unittest.TestCase):
    module = http_client
    rest = True
    own_model = "raw_fp32"
    not_found = ("404",)
    unsupported = ("501",)

    def setUp(self):
        self.client = http_client.InferenceServerClient(http_address())
        self.addCleanup(self.client.close)

    def test_a_model_that_does_not_exist_is_not_ready(self):
        self.assertIs(self.client.is_model_ready("nothing"), False)
        self.assertIs(self.client.is_model_ready("simple", "7"), False)


class Grpc(Management, unittest.TestCase):
    module = grpc_client
    rest = False
    own_model = "uint8"
    not_found = ("StatusCode.NOT_FOUND",)
    unsupported = ("StatusCode.UNIMPLEMENTED",)

    def setUp(self):
        self.client = grpc_client.InferenceServerClient(grpc_address())
        self.addCleanup(self.client.close)

    def test_answers_as_json(self):
        metadata = self.client.get_model_metadata("simple", as_json=True)
        self.assertEqual(numbers(metadata["inputs"]), numbers(TWO_INPUTS))
        for answer in (
            self.client.get_server_metadata(as_json=True, client_timeout=20),
            self.client.get_model_config("simple", as_json=True),
            self.client.get_inference_statistics("simple", as_json=True),
            self.client.get_model_repository_index(as_json=True, headers={"x-more": "1"}),
        ):
            self.assertTrue(answer)


if __name__ == "__main__":
    unittest.main()
