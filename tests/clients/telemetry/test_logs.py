"""The log as JSON, and the access log in it."""

import json
import os
import signal
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import numpy as np
import tritonclient.grpc as triton

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import ROOT, Running, environment

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
MODEL = os.path.join(ROOT, "models/half_plus_two")
PREDICT = "/v1/models/half_plus_two:predict"
BODY = b'{"instances": [1.0, 2.0]}'


class Logs(unittest.TestCase):
    def serve(self, *options, variables=()):
        log = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115
        self.addCleanup(log.close)
        ports = ["--http-port=0", "--grpc-port=0"]
        env = environment() | dict(variables)
        running = Running(["serve", MODEL, *ports, *options], env, stderr=log)
        self.addCleanup(running.process.kill)
        return running, log

    def lines(self, log):
        with open(log.name, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def accesses(self, log):
        return [line for line in self.lines(log) if line["target"] == "tensorserve_access"]

    def post(self, running, headers=None, body=BODY):
        request = urllib.request.Request(running.url + PREDICT, data=body, headers=headers or {})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()

    def test_a_line_for_each_request(self):
        running, log = self.serve("--log-format=json", "--access-log=1", "--log-level=warn")
        headers = {"traceparent": CALLER, "X-Request-Id": "mine"}
        answer = self.post(running, headers)
        with self.assertRaises(urllib.error.HTTPError):
            self.post(running, body=b"{")
        client = triton.InferenceServerClient(running.grpc)
        tensor = triton.InferInput("x", [2], "FP32")
        tensor.set_data_from_numpy(np.array([1, 2], np.float32))
        client.infer("half_plus_two", [tensor])
        with self.assertRaises(triton.InferenceServerException):
            client.infer("nothing", [tensor])
        client.close()
        running.stop()
        good, bad, call, unknown = self.accesses(log)
        self.assertEqual(list(good)[:4], ["time", "level", "target", "message"])
        expected = {
            "protocol": "http",
            "method": "POST",
            "path": PREDICT,
            "status": 200,
            "model": "half_plus_two",
            "version": 1,
            "signature": "serving_default",
            "request_bytes": len(BODY),
            "response_bytes": len(answer),
            "client": "127.0.0.1",
            "request_id": "mine",
            "trace_id": CALLER[3:35],
        }
        self.assertEqual({key: good.get(key) for key in expected}, expected)
        self.assertGreaterEqual(good["duration_ms"], good["queue_ms"] + good["run_ms"])
        self.assertEqual((bad["status"], bad["request_bytes"]), (400, 1))
        # Nobody knows a trace of it.
        self.assertNotIn("trace_id", bad)
        expected = {
            "protocol": "grpc",
            "path": "/inference.GRPCInferenceService/ModelInfer",
            "status": "OK",
            "model": "half_plus_two",
        }
        self.assertEqual({key: call.get(key) for key in expected}, expected)
        self.assertGreater(min(call["request_bytes"], call["response_bytes"]), 20)
        self.assertEqual(unknown["status"], "NOT_FOUND")

    def test_a_sample_of_the_requests(self):
        running, log = self.serve("--log-format=json", "--access-log=0.2")
        for _ in range(400):
            self.post(running)
        running.stop()
        # 80; the bounds are six standard deviations away.
        self.assertTrue(32 <= len(self.accesses(log)) <= 128, len(self.accesses(log)))

    def test_text_is_the_default(self):
        running, log = self.serve("--access-log=1")
        self.post(running, {"traceparent": CALLER})
        running.stop()
        with open(log.name, encoding="utf-8") as file:
            text = file.read()
        self.assertIn(f' INFO  tensorserve_access] POST "{PREDICT}" 200, {len(BODY)} B in, ', text)
        self.assertIn(f"half_plus_two/1, trace {CALLER[3:35]}\n", text)

    def test_lines_of_libraries_are_events(self):
        running, log = self.serve("--log-format=json", variables={"TF_CPP_MIN_LOG_LEVEL": "0"})
        with open(f"/proc/{running.process.pid}/fd/2", "w", encoding="utf-8") as stderr:
            stderr.write('2026-11-23 20:00:00.123456: W core/x.cc:210] not "good"\nplain\n')
        running.stop()
        native = [line for line in self.lines(log) if line["target"] == "native"]
        found = {(line["level"], line["message"]) for line in native}
        self.assertIn(("WARN", 'core/x.cc:210] not "good"'), found)
        self.assertIn(("INFO", "plain"), found)
        self.assertTrue(any("SavedModel" in message for _, message in found), found)

    def test_the_last_words_of_a_crash_are_not_lost(self):
        running, log = self.serve("--log-format=json")
        # The thread that logs them may be asleep, may have read them, or may be about to log them.
        with open(f"/proc/{running.process.pid}/fd/2", "w", encoding="utf-8") as stderr:
            stderr.write("Check failed: last words\nwithout an end")
            stderr.flush()
            os.kill(running.process.pid, signal.SIGABRT)
        self.assertEqual(running.process.wait(timeout=300), -signal.SIGABRT)
        running.process.stdout.close()
        with open(log.name, encoding="utf-8") as file:
            written = file.read()
        self.assertIn("Check failed: last words", written)
        self.assertIn("without an end", written)

    def test_mistakes_are_told_at_the_end(self):
        with tempfile.TemporaryFile("w+") as log:
            arguments = ["serve", MODEL, "--log-format=json", "--access-log=2"]
            with self.assertRaises(RuntimeError):
                Running(arguments, environment(), stderr=log)
            time.sleep(0.2)
            log.seek(0)
            said = log.read()
        self.assertIn("--access-log: 2 is not from 0 to 1", said)


if __name__ == "__main__":
    unittest.main()
