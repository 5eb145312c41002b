"""Programs of ExecuTorch on libexecutorch, which `tensorserve fetch executorch` installs here: they return
what ExecuTorch's own runtime does."""

import concurrent.futures
import os
import shutil
import sys
import tempfile
import unittest

import numpy as np
import requests

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from test_pytorch import ROWS, ids, images, run, table

from running import ROOT, Running, environment

DATA = os.path.join(ROOT, "tests/data/platforms/executorch")
EXPECTED = np.load(os.path.join(DATA, "expected.npz"))
SERVED = [
    "channels_last",
    "counter",
    "encoder",
    "lengths",
    "methods",
    "phone",
    "portable",
    "quantized",
    "resnet",
    "several",
    "unplanned",
]
# A program of which libexecutorch does not survive the first run.
ENDS_ITS_PROCESS = [(1509, 128)]
MASK = (np.arange(12) <= np.arange(ROWS)[:, None] % 12).astype(np.int64)
INPUTS = {
    "resnet": {"input": images(ROWS)},
    "encoder": {"input": ids(ROWS)},
    "phone": {"input": table(ROWS)},
    "portable": {"input": table(ROWS)},
    "unplanned": {"input": table(ROWS)},
    "lengths": {"input_0": ids(ROWS), "input_1": MASK},
}


def write(folder, models):
    for model in models:
        version = os.path.join(folder, model, "1")
        os.makedirs(version)
        shutil.copy(os.path.join(DATA, f"{model}.pte"), version)


class WithoutLibrary(unittest.TestCase):
    """What is known without libexecutorch."""

    def setUp(self):
        self.home = self.enterContext(tempfile.TemporaryDirectory())
        self.env = {"PATH": os.environ["PATH"], "HOME": self.home}

    def refused(self, content, part):
        path = os.path.join(self.home, "model.pte")
        with open(path, "wb") as file:
            file.write(content)
        answer = run("inspect", path, env=self.env)
        self.assertEqual(answer.returncode, 1, answer.stderr)
        self.assertIn(part, answer.stderr)

    def test_what_is_not_served_is_told(self):
        with open(os.path.join(DATA, "phone.pte"), "rb") as file:
            content = file.read()
        other = content.replace(b"XnnpackBackend", b"CoreMLBackend\0")
        self.refused(other, "is compiled for CoreMLBackend")
        self.refused(content[:100], "damaged")
        self.refused(b"PK\3\4" + content, "is not a program of ExecuTorch")
        self.refused(content, "tensorserve fetch executorch")

    def test_a_folder_that_is_no_package_is_told(self):
        answer = run("fetch", "executorch", "--from", self.home, env=self.env)
        self.assertIn("is not the Python package `executorch`", answer.stderr)
        answer = run("fetch", "litert", "--from", self.home, env=self.env)
        self.assertIn("--from is for torch and executorch only", answer.stderr)


class Served(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.env = environment()
        fetched = run("fetch", "executorch", "--dest", cls.env["TENSORSERVE_LIB_DIR"])
        assert fetched.returncode == 0, fetched.stderr
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        write(folder.name, SERVED)
        cls.server = cls.start(folder.name)
        cls.addClassCleanup(cls.server.stop)

    @classmethod
    def start(cls, folder, **options):
        arguments = ["serve", folder, "--http-port", "0", "--grpc-port", "off"]
        return Running(arguments, cls.env, **options)

    def columns(self, model, inputs, status=200, signature="serving_default"):
        url = f"{self.server.url}/v1/models/{model}:predict"
        body = {"signature_name": signature, "inputs": inputs}
        answer = requests.post(url, json=body, timeout=60)
        self.assertEqual(answer.status_code, status, answer.text)
        return answer.json().get("outputs", answer.json())

    def compare(self, model, start, end, exact=True):
        inputs = {name: value[start:end].tolist() for name, value in INPUTS[model].items()}
        outputs = self.columns(model, inputs)
        outputs = outputs if isinstance(outputs, dict) else {"output": outputs}
        for name, values in outputs.items():
            got = np.float32(values)
            wanted = EXPECTED[f"{model}/{name}"][start:end]
            if exact:
                np.testing.assert_array_equal(got, wanted, f"{model} {name}")
            wanted = EXPECTED[f"{model}/{name}/pytorch"][start:end]
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6, err_msg=model)

    def test_a_thousand_rows_equal_executorch(self):
        for model in INPUTS:
            for start in range(0, ROWS, 250):
                with self.subTest(model, start=start):
                    self.compare(model, start, start + 250)

    def test_concurrent_requests_equal_executorch(self):
        for model in INPUTS:
            with self.subTest(model), concurrent.futures.ThreadPoolExecutor(8) as threads:
                # Operations of another number of rows may add in another order.
                tasks = [
                    threads.submit(self.compare, model, i, i + 1 + i % 3, exact=False)
                    for i in range(64)
                ]
                for task in tasks:
                    task.result()

    def test_signatures_come_from_the_program(self):
        def metadata(model):
            answer = requests.get(f"{self.server.url}/v2/models/{model}", timeout=60).json()
            self.assertEqual(answer["platform"], "executorch")
            pairs = answer["inputs"] + answer["outputs"]
            return {pair["name"]: (pair["datatype"], pair["shape"]) for pair in pairs}

        self.assertEqual(
            metadata("encoder"),
            {
                "input": ("INT64", [-1, 12]),
                "logits": ("FP32", [-1, 5]),
                "pooled": ("FP32", [-1, 32]),
            },
        )
        self.assertEqual(
            metadata("lengths"),
            {
                "input_0": ("INT64", [-1, -1]),
                "input_1": ("INT64", [-1, -1]),
                "each": ("FP32", [-1, -1, 5]),
                "scores": ("FP32", [-1, 5]),
            },
        )
        self.assertEqual(metadata("phone")["input"], ("FP32", [-1, 4]))
        self.assertEqual(metadata("counter")["input"], ("FP32", [1, 2]))

    def test_values_that_are_no_tensors_are_those_of_the_export(self):
        inputs = {"input_0": [[1, 2, 3]], "input_2": [[10, 20, 30]]}
        wanted = {"output_0": [[12.5, 25, 37.5]], "output_1_0": [[-9, -18, -27]]}
        self.assertEqual(self.columns("several", inputs), wanted)

    def test_channels_may_be_last_in_memory(self):
        values = images(8)[:, :, :4, :5]
        got = np.float32(self.columns("channels_last", {"input": values.tolist()}))
        wanted = EXPECTED["channels_last/output/pytorch"]
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)

    def test_methods_are_signatures(self):
        values = table(8).tolist()
        got = np.float32(self.columns("methods", {"input": values}, signature="scores"))
        np.testing.assert_allclose(got, EXPECTED["methods/scores"], rtol=1e-4, atol=1e-4)
        got = np.float32(self.columns("methods", {"input": values}))
        np.testing.assert_array_equal(got, EXPECTED["phone/output"][:8])
        got = np.float32(self.columns("quantized", {"input": table(64)[1::10].tolist()}))
        np.testing.assert_allclose(got.sum(1), 1, atol=0.02)

    def test_a_program_that_counts_is_not_run_before_its_first_request(self):
        for count in (1, 2, 3):
            self.assertEqual(self.columns("counter", {"input": [[0, 5]]}), [[count, 5 + count]])

    def test_other_shapes_are_refused_and_disturb_nothing(self):
        for model, inputs in [
            ("phone", [[1, 2, 3]]),
            ("phone", []),
            ("resnet", images(1, 17).tolist()),
            ("encoder", [[1] * 13]),
            ("counter", [[1, 2], [3, 4]]),
        ]:
            error = self.columns(model, {"input": inputs}, status=400)["error"]
            self.assertIn("input", error)
        # No such word: the operation reports it.
        error = self.columns("encoder", {"input": [[64] * 12]}, status=400)["error"]
        self.assertNotIn("\n", error)
        for model in INPUTS:
            self.compare(model, 0, 8, exact=False)

    def test_inputs_can_be_named_and_narrowed(self):
        with tempfile.TemporaryDirectory() as folder:
            write(folder, ["phone", "resnet"])
            for model, declared in [
                (
                    "resnet",
                    (
                        '[[signature.inputs]]\nname = "image"\ndtype = "float32"\n'
                        'shape = [-1, 3, 16, 16]\n[[signature.outputs]]\nname = "scores"\n'
                    ),
                ),
                ("phone", '[[signature.inputs]]\nname = "x"\ndtype = "int64"\nshape = [-1, 4]\n'),
            ]:
                with open(os.path.join(folder, model, "tensorserve.toml"), "w") as file:
                    file.write(declared)
            server = self.start(folder, may_be_unready=True)
            self.addCleanup(server.stop)
            url = f"{server.url}/v1/models"
            answer = requests.get(f"{url}/phone", timeout=60).json()["model_version_status"][0]
            message = answer["status"]["error_message"]
            self.assertIn('the program takes float32 for input "x"', message)
            body = {"inputs": {"image": images(2).tolist()}}
            answer = requests.post(f"{url}/resnet:predict", json=body, timeout=60).json()
            got = np.float32(answer["outputs"])
            np.testing.assert_array_equal(got, EXPECTED["resnet/output"][:2])
            body = {"inputs": {"image": images(2, 15).tolist()}}
            answer = requests.post(f"{url}/resnet:predict", json=body, timeout=60)
            self.assertEqual(answer.status_code, 400, answer.text)

    def test_damaged_programs_disturb_no_others(self):
        with open(os.path.join(DATA, "lengths.pte"), "rb") as file:
            whole = file.read()
        with tempfile.TemporaryDirectory() as folder:
            write(folder, ["phone"])
            damaged = {"cut": whole[:3000], "ends_its_process": bytearray(whole)}
            for place, value in ENDS_ITS_PROCESS:
                damaged["ends_its_process"][place] = value
            for place in range(64, len(whole), 800):
                damaged[f"changed_{place}"] = bytearray(whole)
                damaged[f"changed_{place}"][place] ^= 0xFF
            for model, content in damaged.items():
                os.makedirs(os.path.join(folder, model, "1"))
                with open(os.path.join(folder, model, "1/model.pte"), "wb") as file:
                    file.write(content)
            server = self.start(folder, may_be_unready=True)
            self.addCleanup(server.stop)
            body = {"inputs": {"input": table(8).tolist()}}
            url = f"{server.url}/v1/models"
            answer = requests.post(f"{url}/phone:predict", json=body, timeout=60)
            got = np.float32(answer.json()["outputs"])
            np.testing.assert_array_equal(got, EXPECTED["phone/output"][:8])
            for model in ("cut", "ends_its_process"):
                answer = requests.get(f"{url}/{model}", timeout=60).json()
                status = answer["model_version_status"][0]["status"]
                self.assertNotEqual(status["error_code"], "OK", status)

    def test_a_connection_for_another_version_is_refused_with_the_command(self):
        parent = self.env["TENSORSERVE_LIB_DIR"]
        found = [entry for entry in os.listdir(parent) if entry.startswith("executorch-")]
        libraries = os.path.join(parent, found[0], "executorch/lib")
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(libraries):
                shutil.copy(os.path.join(libraries, name), folder)
            with open(os.path.join(folder, "libexecutorch.so"), "ab") as file:
                file.write(b"\0")
            env = {**self.env, "TENSORSERVE_LIBEXECUTORCH": folder}
            answer = run("inspect", os.path.join(DATA, "phone.pte"), env=env)
        self.assertEqual(answer.returncode, 1)
        self.assertIn("was compiled for another version of it", answer.stderr)
        self.assertIn("run `tensorserve fetch executorch`", answer.stderr)


if __name__ == "__main__":
    unittest.main()
