"""The settings of traces and of the log, as Triton's clients read them. They cannot be changed."""

import unittest

import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from google.protobuf.json_format import MessageToDict
from tritonclient.utils import InferenceServerException

from inference import grpc_address, http_address

TRACE = {"trace_file", "trace_level", "trace_rate", "trace_count", "log_frequency"}
LOG = {
    "log_file": str,
    "log_info": bool,
    "log_warning": bool,
    "log_error": bool,
    "log_verbose_level": int,
    "log_format": str,
}


def log_settings(answer):
    """The settings of a message, or of an answer as JSON, by their names."""
    if isinstance(answer, dict):
        return answer
    settings = MessageToDict(answer, preserving_proto_field_name=True)["settings"]
    return {name: next(iter(value.values())) for name, value in settings.items()}


def trace_settings(answer):
    """The settings, each as a list."""
    if not isinstance(answer, dict):
        answer = MessageToDict(answer, preserving_proto_field_name=True)["settings"]
        return {name: setting.get("value", []) for name, setting in answer.items()}
    return {
        name: setting if isinstance(setting, list) else [setting]
        for name, setting in answer.items()
    }


class Settings:
    """The tests of both."""

    def setUp(self):
        self.client = self.connect()
        self.addCleanup(self.client.close)

    def refused(self, words, call, *arguments, **options):
        with self.assertRaises(InferenceServerException) as caught:
            call(*arguments, **options)
        for word in words:
            self.assertIn(word, caught.exception.message())

    def log(self):
        return log_settings(self.client.get_log_settings())

    def trace(self, model=None):
        return trace_settings(self.client.get_trace_settings(model))

    def test_the_log(self):
        settings = self.log()
        self.assertEqual(set(settings), set(LOG))
        for name, kind in LOG.items():
            self.assertIs(type(settings[name]), kind, name)
        # The tests start the server with the level error.
        self.assertEqual(
            [settings[name] for name in ("log_info", "log_warning", "log_error")],
            [False, False, True],
        )

    def test_traces(self):
        settings = self.trace()
        self.assertLessEqual(TRACE, set(settings))
        self.assertEqual(settings["trace_level"], ["OFF"])
        self.assertEqual(self.trace("simple"), settings)

    def test_the_log_cannot_be_changed(self):
        before = self.log()
        for change in ({"log_info": True}, {"log_verbose_level": 1}, {"log_file": "other.log"}):
            self.refused(["log_level"], self.client.update_log_settings, change)
        self.assertEqual(self.log(), before)

    def test_traces_cannot_be_changed(self):
        before = self.trace()
        for change in ({"trace_level": ["TIMESTAMPS"]}, {"trace_rate": "1"}, {"trace_rate": None}):
            for model in (None, "simple"):
                self.refused(
                    [], self.client.update_trace_settings, model_name=model, settings=change
                )
        self.assertEqual(self.trace(), before)

    def test_models_that_do_not_exist(self):
        words = ["Request for unknown model", "nothing"]
        self.refused(words, self.client.get_trace_settings, "nothing")


class Http(Settings, unittest.TestCase):
    def connect(self):
        return http_client.InferenceServerClient(http_address())


class Grpc(Settings, unittest.TestCase):
    def connect(self):
        return grpc_client.InferenceServerClient(grpc_address())


if __name__ == "__main__":
    unittest.main()
