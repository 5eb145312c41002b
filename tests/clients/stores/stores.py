"""Stores on this machine: moto as Amazon S3, Azurite as Azure Blob Storage, and moto again as Google Cloud
Storage, whose XML API is that of S3; and a proxy that damages connections."""

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

import boto3
import botocore.config
import requests
from azure.storage.blob import BlobServiceClient

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import ROOT, Running, environment, free_port, wait_until

TESTDATA = os.path.join(ROOT, "tests/data/tensorflow-serving/upstream/testdata")
# Odd versions are the first one: 2.5 for 1.0. Even ones are the second: 3.5.
MODELS = [
    os.path.join(TESTDATA, "saved_model_half_plus_two_cpu/00000123"),
    os.path.join(TESTDATA, "saved_model_half_plus_three/00000123"),
]
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


def files_of(version):
    """The files of a version, by their path in it; the main file last."""
    folder = MODELS[(version + 1) % 2]
    files = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with open(path, "rb") as file:
                files[os.path.relpath(path, folder)] = file.read()
    return dict(sorted(files.items(), key=lambda item: item[0] == "saved_model.pb"))


def value_of(version):
    return 2.5 if version % 2 else 3.5


def wait_for_port(port):
    def is_open():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(is_open, f"something listens on port {port}", pause=0.1)


class Emulator:
    """A server of a store behind a proxy; `env` lets tensorserve reach it."""

    def __init__(self):
        self.port = free_port()
        self.folder = tempfile.mkdtemp()
        self.process = subprocess.Popen(
            self.command(), cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for_port(self.port)
        self.proxy = Proxy(self.port)
        self.url = f"http://127.0.0.1:{self.proxy.port}"

    def close(self):
        self.proxy.listener.close()
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def put_version(self, version):
        for path, content in files_of(version).items():
            self.put(f"models/m/{version}/{path}", content)


class S3(Emulator):
    location = "s3://bucket/models"

    def __init__(self):
        super().__init__()
        self.client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
            config=botocore.config.Config(retries={"max_attempts": 3}),
        )
        self.client.create_bucket(Bucket="bucket")
        self.env = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }

    def command(self):
        return [
            os.path.join(sys.prefix, "bin/moto_server"),
            "-H",
            "127.0.0.1",
            "-p",
            str(self.port),
        ]

    def put(self, key, content):
        self.client.put_object(Bucket="bucket", Key=key, Body=content)

    def outputs(self, prefix):
        """The outputs of a transform below a prefix: their contents by their keys, without its state."""
        found = {}
        pages = self.client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket="bucket", Prefix=prefix):
            for item in page.get("Contents", []):
                key = item["Key"].removeprefix(prefix)
                if not key.startswith("_transform/"):
                    answer = self.client.get_object(Bucket="bucket", Key=item["Key"])
                    found[key] = answer["Body"].read()
        return found


class Gcs(S3):
    location = "gs://bucket/models"

    def __init__(self):
        super().__init__()
        self.env = {"STORAGE_EMULATOR_HOST": self.url}

    def put(self, key, content):
        # Clients of an emulator of Google's send no credentials.
        self.client.put_object(Bucket="bucket", Key=key, Body=content, ACL="public-read")


class Azure(Emulator):
    location = "az://container/models"

    def __init__(self):
        super().__init__()
        endpoint = f"{self.url}/devstoreaccount1"
        text = (
            "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
            f"AccountKey={AZURE_KEY};BlobEndpoint={endpoint};"
        )
        self.env = {"AZURE_STORAGE_CONNECTION_STRING": text}
        self.container = BlobServiceClient.from_connection_string(text).create_container(
            "container"
        )

    def command(self):
        home = os.environ.get("CLIENTS_HOME", os.path.join(ROOT, "target/clients"))
        azurite = os.path.join(home, "stores/node_modules/.bin/azurite-blob")
        return [
            azurite,
            "--silent",
            "--skipApiVersionCheck",
            "--location",
            self.folder,
            "--blobPort",
            str(self.port),
        ]

    def put(self, key, content):
        self.container.upload_blob(key, content, overwrite=True)


def command(store, cache):
    """The command that serves the models of a store, and its variables."""
    variables = environment() | {"TENSORSERVE_MODEL_CACHE_DIR": cache, "NO_PROXY": "*"} | store.env
    return ["serve", store.location, "--http-port=0", "--grpc-port=0"], variables


class Server:
    """tensorserve with the models of a store."""

    def __init__(self, store, cache, may_be_unready=False):
        self.running = Running(*command(store, cache), may_be_unready)

    def value(self):
        """The prediction for 1.0; None for an error."""
        url = f"{self.running.url}/v1/models/m:predict"
        answer = requests.post(url, json={"instances": [1.0]}, timeout=30)
        return answer.json()["predictions"][0] if answer.status_code == 200 else None

    def version(self):
        """The version that is available."""
        answer = requests.get(f"{self.running.url}/v1/models/m", timeout=30).json()
        states = answer.get("model_version_status", [])
        return max((int(s["version"]) for s in states if s["state"] == "AVAILABLE"), default=None)

    def wait_for_version(self, version, seconds=300):
        wait_until(
            lambda: self.version() == version,
            lambda: f"version {version} is served: {self.reasons()}",
            seconds,
        )

    def reasons(self):
        return requests.get(f"{self.running.url}/readyz", timeout=30).text

    def store(self):
        return requests.get(f"{self.running.url}/api/v1/status", timeout=30).json()["stores"][0]

    def stop(self):
        self.running.stop()


class Load:
    """Clients that send requests until the block ends, and count what failed."""

    def __init__(self, server, clients=8):
        self.server, self.sent, self.failed, self.ends = server, 0, [], False
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.send) for _ in range(clients)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ends = True
        for thread in self.threads:
            thread.join()

    def send(self):
        url = f"{self.server.running.url}/v1/models/m:predict"
        with requests.Session() as session:
            while not self.ends:
                try:
                    answer = session.post(url, json={"instances": [1.0]}, timeout=30)
                    is_good = answer.status_code == 200 and answer.json()["predictions"][0] in (
                        2.5,
                        3.5,
                    )
                except requests.RequestException as error:
                    answer, is_good = error, False
                with self.lock:
                    self.sent += 1
                    if not is_good:
                        self.failed.append(str(answer))


class Proxy:
    """Forwards connections to a port. If `is_faulty`, it cuts off, stalls or answers some of them with 503;
    if `is_down`, it forwards nothing."""

    def __init__(self, port, stall=10.0, seed=1):
        self.target, self.stall, self.random = port, stall, random.Random(seed)
        self.faults = {"none": 0, "cut": 0, "stall": 0, "refuse": 0}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.is_faulty = self.is_down = False
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.forward, args=(client,), daemon=True).start()

    def forward(self, client):
        fault = self.random.choices(["none", "cut", "stall", "refuse"], [5, 2, 1, 2])[0]
        fault = fault if self.is_faulty else "none"
        self.faults[fault] += 1
        with client:
            if self.is_down:
                return
            if fault == "refuse":
                client.recv(65536)
                client.sendall(
                    b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
                return
            try:
                with socket.create_connection(("127.0.0.1", self.target)) as server:
                    up = threading.Thread(target=self.copy, args=(client, server), daemon=True)
                    up.start()
                    self.damage(server, client, fault)
            except OSError:
                pass
            # `close` alone ends nothing while the other thread reads.
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def copy(source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def damage(self, source, target, fault):
        left = self.random.randrange(200, 20000)
        while (data := source.recv(4096)) and not self.is_down:
            if fault == "cut" and len(data) >= left:
                target.sendall(data[:left])
                return
            left -= len(data)
            target.sendall(data)
            if fault == "stall":
                time.sleep(self.stall)
                fault = "none"
