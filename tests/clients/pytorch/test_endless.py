"""A loop of TorchScript that does not end: other models lose nothing by it, in the server's process and isolated."""

import concurrent.futures
import os
import pathlib
import re
import shutil
import sys
import tempfile
import threading
import time
import unittest

import requests

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from test_pytorch import run

from running import ROOT, Running, environment, wait_until

SHORT = {"inputs": 3}
REQUESTS, CLIENTS = 48, 8


class Endless(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.env = environment()
        if "TENSORSERVE_LIBTORCH" not in cls.env:
            fetched = run("fetch", "torch", "--dest", cls.env["TENSORSERVE_LIB_DIR"])
            assert fetched.returncode == 0, fetched.stderr

    def serve(self, isolation):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        shutil.copytree(os.path.join(ROOT, "models/half_plus_two"), self.folder / "half_plus_two")
        (self.folder / "loop/1").mkdir(parents=True)
        shutil.copy(
            os.path.join(ROOT, "tests/data/platforms/endless/adding.pt"), self.folder / "loop/1"
        )
        declared = '[[signature.inputs]]\nname = "n"\ndtype = "int64"\nshape = []\n'
        (self.folder / "loop/tensorserve.toml").write_text(declared)
        arguments = ["serve", str(self.folder), "--http-port", "0", "--grpc-port", "off"]
        arguments += ["--poll-interval", "100ms"]
        self.server = Running([*arguments, "--isolation", isolation], self.env)
        self.addCleanup(self.server.stop)

    def post(self, model, body):
        url = f"{self.server.url}/v1/models/{model}:predict"
        return requests.post(url, json=body, timeout=300)

    def run_endlessly(self):
        """A run with a deadline of its own: what else is asked has time, however busy the machine is."""
        n = {"name": "n", "datatype": "INT64", "shape": [], "data": [1 << 60]}
        body = {"inputs": [n], "parameters": {"timeout": 1_000_000}}
        return requests.post(f"{self.server.url}/v2/models/loop/infer", json=body, timeout=300)

    def get(self, path):
        return requests.get(self.server.url + path, timeout=300)

    def threads(self):
        status = pathlib.Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(re.search(r"Threads:\s+(\d+)", status)[1])

    def attack(self):
        """The statuses of requests that do not end. Everything else is asked meanwhile, and must answer."""
        ended, failures, rounds = threading.Event(), [], 0

        def ask():
            nonlocal rounds
            while not ended.is_set():
                answers = [self.get(path) for path in ("/healthz", "/metrics", "/")]
                answers.append(self.post("half_plus_two", {"instances": [1.0]}))
                failed = [answer for answer in answers if answer.status_code != 200]
                failures.extend((answer.url, answer.text) for answer in failed)
                rounds += 1

        others = threading.Thread(target=ask)
        others.start()
        try:
            with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
                answers = [clients.submit(self.run_endlessly) for _ in range(REQUESTS)]
                statuses = [answer.result().status_code for answer in answers]
        finally:
            ended.set()
            others.join()
        self.assertEqual(failures, [])
        self.assertGreater(rounds, 0)
        self.assertLessEqual(set(statuses), {503, 504})
        return statuses

    def ticks(self):
        """The clock ticks that the process has worked."""
        stat = pathlib.Path(f"/proc/{self.server.process.pid}/stat").read_text()
        fields = stat.rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    def is_idle(self):
        before = self.ticks()
        time.sleep(0.5)
        return self.ticks() - before < 10

    def test_loops_end_at_the_deadline(self):
        self.serve("none")
        for _ in range(20):
            self.assertEqual(self.post("loop", SHORT).json(), {"outputs": 3})
        # The threads that runs start stay.
        self.assertEqual(set(self.attack()), {504})
        wait_until(lambda: self.post("loop", SHORT).status_code == 200, "it is served again")
        before = self.threads()
        self.assertEqual(set(self.attack()), {504})
        wait_until(lambda: self.post("loop", SHORT).status_code == 200, "it is served again")
        self.assertEqual(self.post("loop", SHORT).json(), {"outputs": 3})
        wait_until(lambda: self.threads() <= before, "no thread is left behind")
        wait_until(self.is_idle, "nothing of it runs")
        version = self.get("/v1/models/loop").json()["model_version_status"][0]
        self.assertEqual(version["status"]["error_message"], "")

    def test_an_isolated_one_serves_again(self):
        self.serve("process")
        for _ in range(20):
            self.assertEqual(self.post("loop", SHORT).json(), {"outputs": 3})
        self.attack()
        wait_until(lambda: self.post("loop", SHORT).status_code == 200, "it is served again")
        threads = self.threads()
        self.attack()
        wait_until(lambda: self.post("loop", SHORT).status_code == 200, "it is served again")
        wait_until(lambda: self.threads() <= threads, "no thread is left behind")


if __name__ == "__main__":
    unittest.main()
