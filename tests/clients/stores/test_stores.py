"""Models that come from a store: versions go live under load, a server is killed while it downloads, the
store fails, and the network is away."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import BINARY, wait_until
from stores import S3, Azure, Gcs, Load, Server, command, value_of


class OfAnyStore:
    """What must hold for every store."""

    @classmethod
    def setUpClass(cls):
        cls.store = cls.kind()
        cls.store.put_version(1)

    @classmethod
    def tearDownClass(cls):
        cls.store.close()

    def setUp(self):
        self.cache = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.cache, ignore_errors=True)

    def test_1_versions_go_live_while_clients_send(self):
        server = Server(self.store, self.cache)
        self.addCleanup(server.stop)
        self.assertEqual(server.value(), value_of(1))
        with Load(server) as load:
            for version in range(2, 5):
                self.store.put_version(version)
                server.wait_for_version(version)
                self.assertEqual(server.value(), value_of(version))
        self.assertEqual(load.failed, [], f"of {load.sent} requests")
        self.assertGreater(load.sent, 100)
        self.assertEqual(os.listdir(os.path.join(self.cache, "trees"))[0][:8], "process-")

    def test_2_a_store_that_is_down_and_a_restart_without_it(self):
        server = Server(self.store, self.cache)
        newest = server.version()
        self.store.proxy.is_down = True
        try:
            wait_until(lambda: server.store()["error"], "an error of the store")
            self.assertEqual(server.value(), value_of(newest))
            server.stop()
            server = Server(self.store, self.cache)
            self.assertEqual((server.version(), server.value()), (newest, value_of(newest)))
            self.assertTrue(server.store()["offline"])
        finally:
            self.store.proxy.is_down = False
        self.store.put_version(newest + 1)
        server.wait_for_version(newest + 1)
        server.stop()


class OfS3(OfAnyStore, unittest.TestCase):
    kind = S3

    def test_0_a_server_that_is_killed_while_it_downloads(self):
        for index in range(4):
            self.store.put(f"models/m/1/assets/{index}", bytes([index]) * 5_000_000)
        arguments, env = command(self.store, self.cache)
        for tenths in range(1, 14, 2):
            process = subprocess.Popen([BINARY, *arguments], env=env, stdout=subprocess.DEVNULL)
            time.sleep(tenths / 10)
            process.kill()
            process.wait()
            units = os.path.join(self.cache, "units")
            for unit in os.listdir(units) if os.path.exists(units) else []:
                is_whole = "." not in unit
                self.assertTrue(not is_whole or os.path.exists(f"{units}/{unit}/unit.json"))
        server = Server(self.store, self.cache)
        self.addCleanup(server.stop)
        self.assertEqual(server.value(), value_of(1))
        [unit] = [unit for unit in os.listdir(f"{self.cache}/units") if "." not in unit]
        for index in range(4):
            with open(f"{self.cache}/units/{unit}/files/1/assets/{index}", "rb") as file:
                self.assertEqual(file.read(), bytes([index]) * 5_000_000)

    def test_3_a_network_that_damages_connections(self):
        self.store.proxy.is_faulty = True
        try:
            server = Server(self.store, self.cache, may_be_unready=True)
            self.addCleanup(server.stop)
            newest = max(self.versions())
            server.wait_for_version(newest, seconds=180)
            with Load(server) as load:
                for version in (newest + 1, newest + 2):
                    self.store.put_version(version)
                    server.wait_for_version(version, seconds=180)
            self.assertEqual(load.failed, [], f"of {load.sent} requests")
            faults = self.store.proxy.faults
            self.assertGreater(min(faults["cut"], faults["refuse"]), 0, faults)
        finally:
            self.store.proxy.is_faulty = False

    def versions(self):
        """The versions in the store."""
        found = self.store.client.list_objects_v2(Bucket="bucket", Prefix="models/m/")
        return {int(item["Key"].split("/")[2]) for item in found["Contents"]}

    def test_4_wrong_buckets_and_keys(self):
        wrong = S3.__new__(S3)
        wrong.location, wrong.env = "s3://nothing/models", self.store.env
        server = Server(wrong, self.cache, may_be_unready=True)
        self.addCleanup(server.stop)
        self.assertIn("there is no such object or bucket (404, NoSuchBucket", server.reasons())


class OfGcs(OfAnyStore, unittest.TestCase):
    kind = Gcs


class OfAzure(OfAnyStore, unittest.TestCase):
    kind = Azure


if __name__ == "__main__":
    unittest.main()
