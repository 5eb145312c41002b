"""A Ray cluster and a store on this machine, and the driver as a process."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../stores"), os.path.join(HERE, "..")]
from running import BINARY, ROOT, environment

MODEL = os.path.join(ROOT, "models/half_plus_two")
# The nodes of the cluster inherit them: the package of this checkout, and nothing of the user.
VARIABLES = environment() | {
    "NO_PROXY": "*",
    "PYTHONPATH": os.path.join(ROOT, "python"),
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TENSORSERVE_BINARY": BINARY,
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
os.environ.clear()
os.environ.update(VARIABLES)
# A shell starts background jobs with Ctrl-C ignored, and drivers would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

from ray.cluster_utils import Cluster

from stores import S3

# The shortest row that makes an object large without making its model slow.
_ROW = 1000


def rows(start, count):
    """Rows of CSV: a number for the model, and text that makes them long."""
    return "".join(f"{n / 4},{'x' * _ROW}\n" for n in range(start, start + count)).encode()


class Fleet:
    """A store that counts what is published, and nodes with one CPU each."""

    def __init__(self):
        self.store = S3()
        self.store.client.put_bucket_versioning(
            Bucket="bucket", VersioningConfiguration={"Status": "Enabled"}
        )

    def start_nodes(self, count):
        # Short: the path of a socket has at most 107 bytes.
        self.folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        # Ray writes the address of the cluster into a folder that it does not create, /tmp/ray unless
        # this variable names another.
        os.environ["RAY_TMPDIR"] = self.folder.name
        sessions = os.path.join(self.folder.name, "ray")
        os.mkdir(sessions)
        options = {"temp_dir": sessions, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=self.node_options() | options)
        self.nodes = [self.cluster.add_node(**self.node_options()) for _ in range(count - 1)]

    @staticmethod
    def node_options():
        return {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80 << 20}

    def stop_nodes(self):
        self.cluster.shutdown()
        self.folder.cleanup()

    def close(self):
        self.store.close()

    def add_node(self):
        self.nodes.append(self.cluster.add_node(wait=False, **self.node_options()))

    def kill_node(self):
        self.cluster.remove_node(self.nodes.pop(), allow_graceful=False)

    def start_alone(self, arguments):
        """Starts `tensorserve transform` itself."""
        variables = VARIABLES | self.store.env
        variables.pop("TENSORSERVE_BINARY")
        return subprocess.Popen(
            [BINARY, "transform", *arguments, "--progress=none"],
            env=variables,
            stderr=subprocess.DEVNULL,
        )

    def start(self, arguments, program=("-m", "tensorserve.ray")):
        """Starts a driver."""
        command = [sys.executable, *program, "transform", "--address", self.cluster.address]
        variables = VARIABLES | self.store.env
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*command, *arguments], env=variables, **pipes)

    def run(self, arguments):
        """Runs a driver to its end: its status, and what it has said."""
        driver = self.start(arguments)
        printed, said = driver.communicate(timeout=300)
        return driver.returncode, printed, said

    def versions(self, prefix):
        """How often each object was published, by its key without the prefix."""
        found = {}
        pages = self.store.client.get_paginator("list_object_versions")
        for page in pages.paginate(Bucket="bucket", Prefix=prefix):
            for item in page.get("Versions", []):
                key = item["Key"].removeprefix(prefix)
                found[key] = found.get(key, 0) + 1
        return found

    def done(self, prefix):
        """The numbers of the entries that are done."""
        listed = self.store.client.list_objects_v2(
            Bucket="bucket", Prefix=f"{prefix}_transform/done/"
        )
        keys = [item["Key"] for item in listed.get("Contents", [])]
        return {int(re.search(r"(\d+)\.json$", key).group(1)) for key in keys}


def processes(output):
    """The processes on the nodes that write to an output."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit():
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    command = file.read().decode(errors="replace").split("\0")
                if "--entries-from-stdin" in command and f"--output={output}" in command:
                    found.append(int(name))
    return found
