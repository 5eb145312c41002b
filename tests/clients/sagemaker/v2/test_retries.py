"""boto3 retries requests that load shedding refused, and no others.

Both sides are counted: the client's attempts by an event of botocore, the server's refusals by its
metrics.
"""

import io
import json
import os
import re
import sys
import threading
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from container import WIDE_MLP, Container, use_aws

use_aws()
import boto3
import numpy
from botocore.config import Config
from botocore.exceptions import ClientError

MODES = ("legacy", "standard")


def npy(rows):
    file = io.BytesIO()
    numpy.save(file, numpy.zeros((rows, 784), dtype=numpy.float32))
    return file.getvalue()


class Flood:
    """Other clients, which occupy the only thread and the only place in its queue until stopped."""

    def __init__(self, url):
        self.url, self.body = url + "/invocations", npy(1500)
        self.ends = threading.Event()
        self.threads = [threading.Thread(target=self.send) for _ in range(6)]
        for thread in self.threads:
            thread.start()

    def send(self):
        headers = {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}
        while not self.ends.is_set():
            try:
                request = urllib.request.Request(self.url, self.body, headers)
                urllib.request.urlopen(request, timeout=60).read()
            except urllib.error.HTTPError as refused:
                refused.close()

    def stop(self):
        self.ends.set()
        for thread in self.threads:
            thread.join()


class Retries(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.container = Container(
            WIDE_MLP,
            TENSORSERVE_NUM_BATCH_THREADS="1",
            TENSORSERVE_MAX_ENQUEUED_BATCHES="1",
            TENSORSERVE_INLINE_BUDGET_MICROS="0",
        )
        use_aws(cls.container.url)

    @classmethod
    def tearDownClass(cls):
        cls.container.close()

    def client(self, mode):
        """A client, and the times at which it sent requests."""
        retries = {"mode": mode, "total_max_attempts": 8}
        client = boto3.client("sagemaker-runtime", config=Config(retries=retries))
        self.addCleanup(client.close)
        sent = []
        client.meta.events.register(
            "before-send.sagemaker-runtime.*", lambda **_: sent.append(time.monotonic())
        )
        return client, sent

    def failures(self, code):
        """The number of requests that the server has refused with `code`."""
        with urllib.request.urlopen(self.container.url + "/metrics", timeout=60) as answer:
            text = answer.read().decode()
        lines = re.findall(
            r'^tensorserve_requests_total\{.*code="' + code + r'".*\} (\d+)', text, re.MULTILINE
        )
        return sum(map(int, lines))

    def test_a_full_queue_is_tried_again(self):
        for mode in MODES:
            client, sent = self.client(mode)
            flood = Flood(self.container.url)
            self.addCleanup(flood.stop)
            before = self.failures("UNAVAILABLE")

            # Refused once; the queue now has room for the retry.
            def on_retry(sent=sent, flood=flood, **_):
                if len(sent) > 1:
                    flood.ends.set()

            client.meta.events.register("before-send.sagemaker-runtime.*", on_retry)
            end = time.monotonic() + 300
            while len(sent) < 2:
                self.assertLess(time.monotonic(), end, "the queue is never full")
                del sent[:]
                answer = client.invoke_endpoint(
                    EndpointName="e", Body=npy(1), ContentType="application/x-npy"
                )
                self.assertIn("predictions", json.load(answer["Body"]))
            self.assertEqual(answer["ResponseMetadata"]["RetryAttempts"], len(sent) - 1, mode)
            self.assertGreaterEqual(self.failures("UNAVAILABLE") - before, len(sent) - 1)
            flood.stop()

    def test_a_models_error_is_not(self):
        for mode in MODES:
            client, sent = self.client(mode)
            before = self.failures("INVALID_ARGUMENT")
            with self.assertRaises(client.exceptions.ModelError) as raised:
                client.invoke_endpoint(
                    EndpointName="e", Body=b'{"instances": ["a"]}', ContentType="application/json"
                )
            answer = raised.exception.response
            self.assertEqual(answer["ResponseMetadata"]["HTTPStatusCode"], 424)
            self.assertEqual(answer["OriginalStatusCode"], 400)
            self.assertEqual(answer["ResponseMetadata"]["RetryAttempts"], 0)
            self.assertEqual(len(sent), 1, mode)
            self.assertEqual(self.failures("INVALID_ARGUMENT") - before, 1, mode)

    def test_a_wrong_call_is_not(self):
        for mode in MODES:
            client, sent = self.client(mode)
            # No directory for results is configured.
            with self.assertRaises(ClientError) as raised:
                client.invoke_endpoint_async(EndpointName="e", InputLocation="file:///x")
            answer = raised.exception.response
            self.assertEqual(answer["ResponseMetadata"]["HTTPStatusCode"], 400)
            self.assertEqual(answer["Error"]["Code"], "ValidationError")
            self.assertEqual(len(sent), 1, mode)


if __name__ == "__main__":
    unittest.main()
