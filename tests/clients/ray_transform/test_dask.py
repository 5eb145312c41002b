"""The example for Dask: other schedulers can do what tensorserve-ray does."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from fleet import BINARY, MODEL, ROOT, VARIABLES

EXAMPLE = os.path.join(ROOT, "examples/dask/transform.py")
# Workers are processes of one thread, as `dask worker --nthreads 1` starts them.
CLUSTER = f"""
import runpy, sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(2, threads_per_worker=1, dashboard_address=None, scheduler_port=0) as cluster:
        example = runpy.run_path({EXAMPLE!r})
        example["main"](cluster, *sys.argv[1:])
"""


class Dask(unittest.TestCase):
    def test_the_example(self):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "in").mkdir()
            # One is divided into ranges.
            for name, count in (("a", 100), ("b", 400_000), ("c", 3)):
                rows = "".join(f"{row / 4}\n" for row in range(count))
                (place / f"in/{name}.csv").write_text(rows)
            options = [MODEL, f"--input={place}/in", "--range-mb=1", "--batch-rows=512"]
            program = place / "program.py"
            program.write_text(CLUSTER)
            command = [sys.executable, program, *options, f"--output={place}/dask"]
            self.run_to_end(command, VARIABLES)
            variables = {k: v for k, v in VARIABLES.items() if k != "TENSORSERVE_BINARY"}
            self.run_to_end([BINARY, "transform", *options, f"--output={place}/alone"], variables)
            for name in ("a", "b", "c"):
                found, alone = (place / where / f"{name}.csv.out" for where in ("dask", "alone"))
                self.assertTrue(found.read_bytes() == alone.read_bytes(), name)

    def run_to_end(self, command, variables):
        ended = subprocess.run(
            command, env=variables, check=False, capture_output=True, text=True, timeout=300
        )
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)


if __name__ == "__main__":
    unittest.main()
