"""`tensorserve transform` from a store to a store: listing, parts, resuming after kills, and faults."""

import gzip
import os
import random
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import BINARY, ROOT, environment
from stores import S3

MODEL = os.path.join(ROOT, "models/half_plus_two")
ROWS = 1_200_000


def rows(start, count):
    return "".join(f"{n / 4}\n" for n in range(start, start + count)).encode()


def outputs(start, count):
    return "".join(f"{n / 8 + 2}\n" for n in range(start, start + count)).encode()


class Transform(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.store = S3()
        cls.expected = {"large.csv.out": outputs(0, ROWS)}
        cls.store.put("in/large.csv", rows(0, ROWS))
        for index in range(30):
            name = f"small/{index:02}.csv"
            cls.expected[f"{name}.gz.out"] = outputs(index, 1000)
            cls.store.put(f"in/{name}.gz", gzip.compress(rows(index, 1000)))
        # Not below the prefix.
        cls.store.put("index.csv", b"x")

    @classmethod
    def tearDownClass(cls):
        cls.store.close()

    def start(self, output, *more):
        command = [BINARY, "transform", MODEL, "--input", "s3://bucket/in/", "--range-mb", "2"]
        command += ["--output", f"s3://bucket/{output}", "--batch-rows", "4096", *more]
        variables = environment() | {"NO_PROXY": "*"} | self.store.env
        return subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)

    def run_to_end(self, output, *more):
        process = self.start(output, *more)
        _, said = process.communicate(timeout=300)
        return process.returncode, said

    def assert_outputs(self, output):
        found = self.store.outputs(f"{output}/")
        self.assertEqual(sorted(found), sorted(self.expected))
        for key, content in self.expected.items():
            self.assertTrue(found[key] == content, f"{key} differs")

    def test_1_objects_become_objects(self):
        status, said = self.run_to_end("whole")
        self.assertEqual(status, 0, said)
        self.assert_outputs("whole")
        head = self.store.client.head_object(Bucket="bucket", Key="whole/large.csv.out")
        # The ETag of an object that was uploaded in parts.
        self.assertIn("-", head["ETag"])
        # Nothing is left to do.
        status, said = self.run_to_end("whole")
        self.assertEqual((status, "nothing to do, " in said), (0, True), said)

    def test_2_killed_runs_go_on(self):
        chance = random.Random(3)
        for _ in range(8):
            process = self.start("killed")
            try:
                process.communicate(timeout=chance.uniform(0.3, 3))
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        status, said = self.run_to_end("killed")
        self.assertEqual(status, 0, said)
        self.assert_outputs("killed")

    def test_3_a_faulty_network(self):
        self.store.proxy.is_faulty = True
        self.addCleanup(setattr, self.store.proxy, "is_faulty", False)
        for _ in range(10):
            status, said = self.run_to_end("faulty", "--retries", "8")
            if status == 0:
                break
            self.assertIn(status, (1, 3), said)
        self.store.proxy.is_faulty = False
        self.assertEqual(status, 0, said)
        self.assert_outputs("faulty")

    def test_4_a_store_that_is_away_or_refuses(self):
        self.store.proxy.is_down = True
        self.addCleanup(setattr, self.store.proxy, "is_down", False)
        status, said = self.run_to_end("away", "--retries", "1")
        self.assertEqual(status, 3, said)
        self.assertIn("s3://bucket", said)


if __name__ == "__main__":
    unittest.main()
