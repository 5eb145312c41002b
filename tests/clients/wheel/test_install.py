"""The wheel as pip installs it, into empty environments."""

import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile

from support import IRIS, MODELS, WHEEL, XGBOOST

# Nothing of the user who runs the tests: no activated environment, no library, no setting.
EMPTY = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PIP_CONFIG_FILE": os.devnull}


def run(*command, env=EMPTY, **options):
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, check=False, env=env, text=True, **output, **options)


def pip_install(python, *arguments):
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    return run(*pip, "install", "--no-index", "--quiet", *arguments, env={**EMPTY, "HOME": "/tmp"})


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.home = os.path.join(cls.folder.name, "venv")
        venv.create(cls.home, with_pip=False)
        cls.python = os.path.join(cls.home, "bin/python")
        cls.program = os.path.join(cls.home, "bin/tensorserve")
        installed = pip_install(cls.python, WHEEL)
        assert installed.returncode == 0, installed.stdout

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_it_contains_the_program_and_the_typed_package(self):
        with zipfile.ZipFile(WHEEL) as wheel:
            names = wheel.namelist()
            metadata = wheel.read(next(n for n in names if n.endswith(".dist-info/METADATA")))
        for part in (".data/scripts/tensorserve", "tensorserve/py.typed", "/licenses/LICENSE"):
            self.assertTrue(any(name.endswith(part) for name in names), f"{part}: {names}")
        # The code of worker processes is embedded in the program.
        self.assertFalse([name for name in names if name.endswith("worker.py")], names)
        text = metadata.decode()
        for line in (
            "Requires-Python: >=3.9",
            "Provides-Extra: tensorflow",
            "Provides-Extra: onnx",
            "Provides-Extra: ray",
        ):
            self.assertIn(line, text)

    def test_it_is_for_glibc_2_28_and_pip_refuses_it_on_an_older_one(self):
        machine = os.uname().machine
        self.assertTrue(WHEEL.endswith(f"-py3-none-manylinux_2_28_{machine}.whl"), WHEEL)
        target = os.path.join(self.folder.name, "target")
        for platform, is_accepted in (("manylinux_2_28", True), ("manylinux_2_17", False)):
            options = ["--only-binary=:all:", "--dry-run", "--no-deps", "--target", target]
            ended = pip_install(self.python, *options, "--platform", f"{platform}_{machine}", WHEEL)
            self.assertEqual(ended.returncode == 0, is_accepted, ended.stdout)
            if not is_accepted:
                self.assertIn("is not a supported wheel on this platform", ended.stdout)
        symbols = run("objdump", "-T", self.program, env=os.environ).stdout
        versions = re.findall(r"GLIBC_(\d+)\.(\d+)", symbols)
        self.assertTrue(versions, symbols)
        self.assertLessEqual(max((int(a), int(b)) for a, b in versions), (2, 28))

    def test_libraries_that_it_opens_get_its_pread(self):
        exported = run("nm", "-D", "--defined-only", self.program, env=os.environ).stdout
        for name in ("pread", "pread64"):
            self.assertRegex(exported, rf"(?m) T {name}$")
        # Its unwinder is its own: C++ libraries keep that of their compiler.
        self.assertNotIn("_Unwind", exported)

    def test_the_script_for_ray_says_what_it_needs(self):
        script = os.path.join(self.home, "bin/tensorserve-ray")
        ended = run(script, "transform", "model", "--input=in", "--output=out")
        self.assertIn("pip install 'tensorserve[ray]'", ended.stdout)
        self.assertEqual(ended.returncode, 3, ended.stdout)
        # What needs no cluster is what the program does.
        ended = run(
            script, "transform", "/no/such/model", "--input=in", "--output=out", "--dry-run"
        )
        self.assertEqual(ended.returncode, 2, ended.stdout)

    def test_it_runs_as_a_script_and_as_a_module(self):
        for command in ([self.program], [self.python, "-m", "tensorserve"]):
            ended = run(*command, "--version")
            self.assertRegex(ended.stdout, r"^tensorserve \d+\.\d+\.\d+\n")
            self.assertEqual(ended.returncode, 0, ended.stdout)
            ended = run(*command, "serve", "--http-prot=1")
            self.assertIn("did you mean --http-port?", ended.stdout)
            self.assertEqual(ended.returncode, 2, ended.stdout)

    def test_an_empty_environment_serves_a_model_that_needs_no_library(self):
        script = f"""
import tensorserve
with tensorserve.Server({XGBOOST!r}) as server:
    print(server.client().predict("iris_softprob", {IRIS!r}))
"""
        ended = run(self.python, "-c", script)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        row = [float(number) for number in re.findall(r"\d\.\d+(?:e-\d+)?", ended.stdout)]
        self.assertEqual(len(row), 3, ended.stdout)
        self.assertAlmostEqual(sum(row), 1, places=5)

    def test_libraries_are_found_in_the_environment_of_the_program(self):
        # As `pip install tensorflow-cpu` lays them out.
        fetched = glob.glob(os.path.join(os.environ["TENSORSERVE_LIB_DIR"], "tensorflow-*-cpu-*"))
        site = glob.glob(os.path.join(self.home, "lib/python3*/site-packages"))[0]
        package = os.path.join(site, "tensorflow")
        os.symlink(os.path.join(max(fetched), "tensorflow"), package)
        self.addCleanup(os.unlink, package)
        # Not activated, and not from its working directory.
        ended = run(self.program, "--version", cwd="/")
        self.assertIn(f"({os.path.realpath(self.home)}", ended.stdout)
        script = f"""
import tensorserve
with tensorserve.Server({MODELS!r}) as server:
    print(server.client().predict("half_plus_two", [1.0, 2.0, 5.0]))
"""
        self.assertEqual(run(self.python, "-c", script).stdout, "[2.5, 3.0, 4.5]\n")

    def test_a_missing_library_is_told_with_how_to_get_it(self):
        ended = run(self.program, "serve", os.path.join(MODELS, "half_plus_two"), timeout=300)
        self.assertEqual(ended.returncode, 1, ended.stdout)
        self.assertIn("pip install", ended.stdout)

    def test_it_runs_from_a_target_folder_and_says_when_its_program_is_missing(self):
        target = os.path.join(self.folder.name, "site")
        ended = pip_install(self.python, "--target", target, WHEEL)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        module = ["/usr/bin/python3", "-m", "tensorserve", "--version"]
        env = {**EMPTY, "PYTHONPATH": target}
        self.assertRegex(run(*module, env=env).stdout, r"^tensorserve \d")
        os.unlink(os.path.join(target, "bin/tensorserve"))
        ended = run(*module, env=env)
        self.assertEqual(ended.returncode, 1, ended.stdout)
        self.assertIn("pip install --force-reinstall", ended.stdout)
        self.assertNotIn("Traceback", ended.stdout)


if __name__ == "__main__":
    unittest.main()
