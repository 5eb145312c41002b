"""Schemathesis draws requests from /openapi.json and holds the responses against it.

The Open Inference Protocol's operations are described completely, with every status and header. A failure
is a fault of the server, or of the description. EXAMPLES and SEED make the run longer, or another one.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import BINARY, ROOT, Running, environment

HERE = Path(__file__).parent
OPEN_INFERENCE = "tests/data/open_inference/models"
# Batches of numbers and of strings, several inputs, and declared sizes.
NAMES = {
    "half_plus_two": "models/half_plus_two",
    "text_normalizer": "models/text_normalizer",
    "simple": f"{OPEN_INFERENCE}/simple",
    "cube": f"{OPEN_INFERENCE}/cube",
    "raw_bytes": f"{OPEN_INFERENCE}/raw_bytes",
    "echo_bool": f"{OPEN_INFERENCE}/types/bool",
    "echo_int8": f"{OPEN_INFERENCE}/types/int8",
    "echo_uint64": f"{OPEN_INFERENCE}/types/uint64",
    "echo_fp64": f"{OPEN_INFERENCE}/types/fp64",
    "two wörds {x}": f"{OPEN_INFERENCE}/raw_fp32",
    "spare": f"{OPEN_INFERENCE}/simple_identity",
}
EXAMPLES = os.environ.get("EXAMPLES", "20")
SEED = os.environ.get("SEED", "20")


class OpenInference(unittest.TestCase):
    def setUp(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        # With keys, so that Schemathesis also asks without one.
        auth = folder / "auth.toml"
        command = [BINARY, "auth", "add-key", "tests", "--role", "admin", f"--file={auth}"]
        added = subprocess.run(
            command, check=True, capture_output=True, text=True, env=environment()
        )
        self.key = added.stdout.strip()
        config = folder / "tensorserve.toml"
        lines = [f"auth_file = {json.dumps(str(auth))}", "shared_memory = true"]
        for name, path in NAMES.items():
            place = json.dumps(os.path.join(ROOT, path))
            lines += ["[[models]]", f"name = {json.dumps(name)}", f"path = {place}"]
        config.write_text("\n".join(lines))
        command = ["serve", "--config", str(config), "--http-port", "0", "--grpc-port", "off"]
        self.server = Running([*command, "--log-level", "error"], environment())
        self.addCleanup(self.server.stop)
        self.folder = folder

    def test_requests_and_responses_are_as_described(self):
        command = [
            os.path.join(os.path.dirname(sys.executable), "schemathesis"),
            f"--config-file={HERE / 'schemathesis.toml'}",
            "run",
            f"{self.server.url}/openapi.json",
            f"--header=Authorization: Bearer {self.key}",
            "--include-path-regex=^/v2",
            f"--max-examples={EXAMPLES}",
            f"--seed={SEED}",
            "--generation-database=none",
            "--continue-on-failure",
            "--suppress-health-check=all",
            "--request-timeout=30",
            "--no-color",
            "--warnings=off",
        ]
        variables = environment() | {
            "SCHEMATHESIS_HOOKS": str(HERE / "schemathesis_hooks.py"),
            "SCHEMA_TEST_MODELS": json.dumps(list(NAMES)),
        }
        ended = subprocess.run(
            command, check=False, env=variables, cwd=self.folder, capture_output=True, text=True
        )
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        (cases,) = re.findall(r"(\d+) generated", ended.stdout)
        # A description that lost its operations would draw few.
        self.assertGreater(int(cases), 5000)


if __name__ == "__main__":
    unittest.main()
