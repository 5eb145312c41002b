"""Files of PyTorch on libtorch, which `tensorserve fetch torch` installs here: they return what PyTorch does."""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import requests

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import BINARY, ROOT, Running, environment

DATA = os.path.join(ROOT, "tests/data/platforms/pytorch")
EXPECTED = np.load(os.path.join(DATA, "expected.npz"))
ROWS = 1000

# The input of each model that is compared with PyTorch, and what is declared of it.
ENCODER = '[[signature.inputs]]\nname = "ids"\ndtype = "int64"\nshape = [-1, 12]\n'
IRIS = '[[signature.inputs]]\nname = "x"\ndtype = "float32"\nshape = [-1, 4]\n'
COMPARED = {
    "resnet": ("resnet.pt", ""),
    "resnet_package": ("resnet.pt2", ""),
    "encoder": ("encoder.pt", ENCODER),
    "encoder_package": ("encoder.pt2", ""),
    "iris_mlp_script": ("iris_mlp_script.pt", IRIS),
    "iris_mlp_trace": ("iris_mlp_trace.pt", ""),
}
# The packages are machine code of a CPU with AVX-512: others refuse them, with SIGILL in the load probe.
RUNS_PACKAGES = "avx512f" in pathlib.Path("/proc/cpuinfo").read_text()
PACKAGES = ("resnet_package", "encoder_package")
if not RUNS_PACKAGES:
    COMPARED = {name: model for name, model in COMPARED.items() if name not in PACKAGES}
# Other models that are served.
OTHERS = {
    "dict_two_inputs": ("dict_two_inputs.pt", ""),
    "structures": (
        "structures.pt",
        (
            '[[signature.inputs]]\nname = "x"\ndtype = "float32"\nshape = [-1, 2]\n'
            '[[signature.inputs]]\nname = "scale"\ndtype = "float64"\nshape = []\n'
            '[[signature.inputs]]\nname = "bias"\ndtype = "float32"\nshape = [-1, 2]\n'
        ),
    ),
    "echo": (
        "echo.pt",
        (
            '[[signature.inputs]]\nname = "value"\ndtype = "uint16"\nshape = [-1, 2]\n'
            '[[signature.outputs]]\nname = "same"\n[[signature.outputs]]\nname = "first"\n'
        ),
    ),
    "in_place": ("in_place.pt", IRIS),
    "counter": ("counter.pt", IRIS),
}
REFUSED = {
    "state_dict.pth": ["the weights", "torch.load(", "torch.jit.script("],
    "exported.pt2": ["torch.export", "torch.export.load(", "aoti_compile_and_package("],
}


def images(rows, side=16):
    generator = np.random.default_rng(1)
    return generator.integers(-128, 128, (rows, 3, side, side)).astype(np.float32) / 64


def ids(rows, words=64, length=12):
    return np.random.default_rng(2).integers(0, words, (rows, length))


def table(rows):
    generator = np.random.default_rng(3)
    values = generator.integers(-64, 512, (rows, 4)).astype(np.float32) / 64
    values[::10] *= np.float32(2.0**20)
    values[5::10] *= np.float32(2.0**-20)
    return values


def inputs_of(model):
    if model.startswith("resnet"):
        return images(ROWS)
    return ids(ROWS) if model.startswith("encoder") else table(ROWS)


def run(*arguments, env=None):
    command = [BINARY, *arguments]
    return subprocess.run(
        command, check=False, env=env or environment(), capture_output=True, text=True, timeout=3600
    )


def write(folder, models):
    for name, (file, declared) in models.items():
        version = os.path.join(folder, name, "1")
        os.makedirs(version)
        shutil.copy(os.path.join(DATA, file), version)
        if declared:
            with open(os.path.join(folder, name, "tensorserve.toml"), "w") as target:
                target.write(declared)


class WithoutLibrary(unittest.TestCase):
    """What is known without libtorch."""

    def setUp(self):
        self.home = self.enterContext(tempfile.TemporaryDirectory())
        self.env = {"PATH": os.environ["PATH"], "HOME": self.home}

    def test_what_holds_no_program_is_refused_with_the_lines_that_convert_it(self):
        for file, parts in REFUSED.items():
            answer = run("inspect", os.path.join(DATA, file), env=self.env)
            self.assertNotEqual(answer.returncode, 0, file)
            for part in parts:
                self.assertIn(part, answer.stderr)

    def test_a_missing_library_is_told_with_its_command(self):
        answer = run("inspect", os.path.join(DATA, "echo.pt"), env=self.env)
        self.assertNotEqual(answer.returncode, 0)
        self.assertIn("tensorserve fetch torch", answer.stderr)

    def test_a_folder_that_is_no_package_and_a_missing_compiler_are_told(self):
        answer = run("fetch", "torch", "--from", self.home, env=self.env)
        self.assertIn("is not the Python package `torch`", answer.stderr)
        for file in ["include/torch/script.h", "lib/libtorch_cpu.so"]:
            os.makedirs(os.path.dirname(os.path.join(self.home, file)), exist_ok=True)
            with open(os.path.join(self.home, file), "w"):
                pass
        without = {**self.env, "PATH": self.home}
        answer = run("fetch", "torch", "--from", self.home, env=without)
        self.assertIn("apt-get install g++", answer.stderr)
        env = {**self.env, "TENSORSERVE_LIBTORCH": os.path.join(self.home, "lib")}
        answer = run("inspect", os.path.join(DATA, "echo.pt"), env=env)
        self.assertNotEqual(answer.returncode, 0)
        self.assertIn(f"`tensorserve fetch torch --from {self.home}`", answer.stderr)


class Served(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.env = environment()
        fetched = run("fetch", "torch", "--dest", cls.env["TENSORSERVE_LIB_DIR"])
        assert fetched.returncode == 0, fetched.stderr
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        write(folder.name, {**COMPARED, **OTHERS})
        arguments = ["serve", folder.name, "--http-port", "0", "--grpc-port", "off"]
        cls.server = Running(arguments, cls.env)
        cls.addClassCleanup(cls.server.stop)

    def predict(self, model, instances):
        url = f"{self.server.url}/v1/models/{model}:predict"
        answer = requests.post(url, json={"instances": instances}, timeout=60)
        self.assertEqual(answer.status_code, 200, answer.text)
        return answer.json()["predictions"]

    def columns(self, model, inputs, status=200):
        url = f"{self.server.url}/v1/models/{model}:predict"
        answer = requests.post(url, json={"inputs": inputs}, timeout=60)
        self.assertEqual(answer.status_code, status, answer.text)
        return answer.json().get("outputs", answer.json())

    def compare(self, model, values, start=0):
        predictions = self.predict(model, values.tolist())
        names = [name for name in EXPECTED if model.startswith(name.split("/")[0])]
        for name in names:
            output = name.split("/")[1]
            got = [row[output] if isinstance(row, dict) else row for row in predictions]
            wanted = EXPECTED[name][start : start + len(values)]
            np.testing.assert_allclose(np.float32(got), wanted, rtol=1e-4, atol=1e-5, err_msg=name)
        self.assertTrue(names)

    def test_a_thousand_rows_equal_pytorch(self):
        for model in COMPARED:
            with self.subTest(model):
                values = inputs_of(model)
                for start in range(0, ROWS, 250):
                    self.compare(model, values[start : start + 250], start)

    def test_concurrent_rows_are_batched_and_equal_pytorch(self):
        for model in COMPARED:
            values = inputs_of(model)[:64]
            with self.subTest(model), concurrent.futures.ThreadPoolExecutor(8) as threads:
                tasks = [
                    threads.submit(self.compare, model, values[i : i + 1], i) for i in range(64)
                ]
                for task in tasks:
                    task.result()

    def test_signatures_come_from_the_module_and_the_file_beside_it(self):
        def metadata(model):
            answer = requests.get(f"{self.server.url}/v2/models/{model}", timeout=60).json()
            pairs = answer["inputs"] + answer["outputs"]
            return {pair["name"]: (pair["datatype"], pair["shape"]) for pair in pairs}

        self.assertEqual(
            metadata("resnet"),
            {"image": ("FP32", [-1, 3, -1, -1]), "output": ("FP32", [-1, 10])},
        )
        if RUNS_PACKAGES:
            self.assertEqual(
                metadata("encoder_package"),
                {
                    "input": ("INT64", [-1, 12]),
                    "logits": ("FP32", [-1, 5]),
                    "pooled": ("FP32", [-1, 32]),
                },
            )
        self.assertEqual(metadata("encoder")["ids"], ("INT64", [-1, 12]))
        self.assertEqual(metadata("echo")["same"], ("UINT16", [-1, 2]))

    def test_structures_are_named(self):
        x = np.float32([5.1, 3.5]).tolist()
        outputs = self.columns("dict_two_inputs", {"x": x, "y": x})
        self.assertEqual(sorted(outputs), ["prod", "sum"])
        np.testing.assert_allclose(outputs["sum"], [10.2, 7.0], rtol=1e-6)
        np.testing.assert_allclose(outputs["prod"], [26.01, 12.25], rtol=1e-6)
        outputs = self.columns("structures", {"x": [[1, 2]], "scale": 3, "bias": [[0.5, 0.5]]})
        self.assertEqual(
            outputs, {"total": [10.0], "parts_0": [[3.5, 6.5]], "parts_1": [[3.5, 6.5]]}
        )

    def test_outputs_that_share_memory_and_inputs_that_are_written_to_stay_apart(self):
        outputs = self.columns("echo", {"value": [[1, 65535], [3, 4]]})
        self.assertEqual(outputs, {"same": [[1, 65535], [3, 4]], "first": [[1, 65535]]})
        for _ in range(3):
            self.assertEqual(self.predict("in_place", [[1, 2, 3, 4]]), [[2, 3, 4, 5]])

    def test_a_module_that_counts_is_not_run_before_its_first_request(self):
        first = self.predict("counter", [[0, 0, 0, 0]])[0][0]
        self.assertEqual(first, 1)
        self.assertEqual(self.predict("counter", [[0, 0, 0, 0]])[0][0], 2)

    def test_messages_of_pytorch_are_errors_of_the_request(self):
        error = self.columns("iris_mlp_script", {"x": [[1, 2, 3]]}, status=400)["error"]
        self.assertIn("shapes cannot be multiplied", error)
        self.assertNotIn("\n", error)
        if RUNS_PACKAGES:
            error = self.columns("resnet_package", {"input": [[1, 2, 3]]}, status=400)["error"]
            self.assertIn("shape", error)
            self.compare("resnet_package", inputs_of("resnet")[:2])

    def test_operations_can_be_denied(self):
        # What the module writes when it is allowed to, as the last options do.
        written = pathlib.Path("/tmp/tensorserve_test_saved.pt")
        self.addCleanup(written.unlink, missing_ok=True)
        models = {"saves": "saves.pt", "native": "resnet.pt2", "plain": "iris_mlp_trace.pt"}
        if not RUNS_PACKAGES:
            del models["native"]
        with tempfile.TemporaryDirectory() as folder:
            write(folder, {name: (file, "") for name, file in models.items()})
            for options, refused in [
                (
                    ["external"],
                    {"saves": "aten::save, which writes a file", "native": "AOTInductor"},
                ),
                (["aten::save"], {"saves": "deny_ops refuses it", "native": "add AOTInductor to"}),
                (["external", "--allow-ops", "AOTInductor"], {"saves": "aten::save"}),
                (["external", "--allow-ops", "external"], {}),
            ]:
                arguments = ["serve", folder, "--http-port", "0", "--grpc-port", "off"]
                arguments += ["--deny-ops", *options]
                server = Running(arguments, self.env, may_be_unready=True)
                try:
                    for model in models:
                        url = f"{server.url}/v1/models/{model}"
                        status = requests.get(url, timeout=60).json()["model_version_status"][0]
                        message = status["status"]["error_message"]
                        with self.subTest(model=model, options=options):
                            self.assertEqual(status["state"] == "AVAILABLE", model not in refused)
                            self.assertIn(refused.get(model, ""), message)
                finally:
                    server.stop()

    def test_damaged_files_are_errors(self):
        with open(os.path.join(DATA, "encoder.pt"), "rb") as file:
            whole = file.read()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "damaged.pt")
            for cut in [100, len(whole) // 2, len(whole) - 10]:
                with open(path, "wb") as file:
                    file.write(whole[:cut])
                answer = run("inspect", path)
                self.assertEqual(answer.returncode, 1, answer.stderr)
                self.assertIn("damaged", answer.stderr)
            for place in range(64, 4000, 500):
                changed = bytearray(whole)
                changed[place] ^= 0xFF
                with open(path, "wb") as file:
                    file.write(changed)
                self.assertIn(run("inspect", path).returncode, (0, 1))

    def test_a_connection_for_another_version_is_refused_with_the_command(self):
        found = [
            entry
            for entry in os.listdir(self.env["TENSORSERVE_LIB_DIR"])
            if entry.startswith("torch-")
        ]
        tree = os.path.join(self.env["TENSORSERVE_LIB_DIR"], found[0])
        libraries = os.path.join(tree, "torch/lib")
        with tempfile.TemporaryDirectory() as package:
            folder = os.path.join(package, "torch/lib")
            os.makedirs(folder)
            os.symlink(os.path.join(tree, "nvidia"), os.path.join(package, "nvidia"))
            for name in os.listdir(libraries):
                if name != "libtensorserve_torch.so":
                    os.symlink(os.path.join(libraries, name), os.path.join(folder, name))
            source = 'extern "C" unsigned ts_interface() { return 999; }'
            shim = os.path.join(folder, "libtensorserve_torch.so")
            command = ["g++", "-x", "c++", "-", "-shared", "-fPIC", "-o", shim]
            subprocess.run(command, input=source, text=True, check=True)
            env = {**self.env, "TENSORSERVE_LIBTORCH": folder}
            answer = run("inspect", os.path.join(DATA, "echo.pt"), env=env)
        self.assertNotEqual(answer.returncode, 0)
        self.assertIn("run `tensorserve fetch torch`", answer.stderr)


if __name__ == "__main__":
    unittest.main()
