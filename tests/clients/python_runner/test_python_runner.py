"""Models in Python (`runner = "python"`): the same predictions as scikit-learn and as the server's own
evaluator over three protocols, and processes that end, hang or are replaced."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import numpy as np
import tritonclient.grpc as grpc

import models
from models import LAMBDA, QUESTIONS, TITANIC
from running import BINARY, Running, environment, wait_until

OPTIONS = [
    "--http-port",
    "0",
    "--grpc-port",
    "0",
    "--log-level",
    "warn",
    "--poll-interval",
    "100ms",
]
TOLERANCE = 1e-12


def post(url, body, content_type="application/json", model=None):
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    headers = {"Content-Type": content_type}
    if model:
        headers["X-Amzn-SageMaker-Custom-Attributes"] = f"tfs-model-name={model}"
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def processes(path):
    """The ids of processes with `path` among their arguments, without the server's."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                arguments = file.read().split(b"\0")
        except OSError:
            continue
        if len(arguments) > 3 and arguments[1] == b"-c" and path.encode() in arguments[3]:
            found.append(int(pid))
    return found


class PythonRunner(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.root = os.path.join(cls.folder.name, "models")
        models.write(cls.root)
        native = os.path.join(cls.folder.name, "native")
        os.makedirs(native)
        shutil.copytree(os.path.join(cls.root, "titanic"), os.path.join(native, "titanic"))
        shutil.copytree(os.path.join(cls.root, "news"), os.path.join(native, "news"))
        cls.server = cls.serve(cls.root)
        cls.addClassCleanup(cls.server.stop)
        cls.native = Running(["serve", native, *OPTIONS], environment())
        cls.addClassCleanup(cls.native.stop)

    @classmethod
    def serve(cls, root, *options):
        runner = ["--runner", "python", "--runner-python", sys.executable, "--runner-workers", "2"]
        runner += ["--runner-trusted-types", "numpy.dtype"]
        return Running(["serve", root, *runner, *OPTIONS, *options], environment())

    def predict(self, model, rows, server=None):
        url = f"{(server or self.server).url}/v1/models/{model}:predict"
        return post(url, {"instances": rows})

    def predictions(self, model, rows, server=None):
        status, answer = self.predict(model, rows, server)
        self.assertEqual(status, 200, answer)
        return answer["predictions"]

    def assert_titanic(self, predictions, model=TITANIC, rows=QUESTIONS):
        expected = model.predict(rows), model.predict_proba(rows), model.predict_log_proba(rows)
        names = "predict", "predict_proba", "predict_log_proba"
        self.assertEqual(set(predictions[0]), set(names))
        for name, values in zip(names, expected, strict=True):
            found = [row[name] for row in predictions]
            if name == "predict":
                self.assertEqual(found, values.tolist())
            else:
                np.testing.assert_allclose(np.array(found, float), values, TOLERANCE, TOLERANCE)

    def metadata(self, server):
        with urllib.request.urlopen(f"{server.url}/v1/models/titanic/metadata") as answer:
            return json.load(answer)["metadata"]["signature_def"]

    def test_a_table_is_predicted_as_by_scikit_learn_and_by_the_own_evaluator(self):
        rows = models.instances(QUESTIONS)
        predictions = self.predictions("titanic", rows)
        self.assert_titanic(predictions)
        native = self.predictions("titanic", rows, self.native)
        for one, other in zip(predictions, native, strict=True):
            self.assertEqual(one["predict"], other["predict"])
            np.testing.assert_allclose(one["predict_proba"], other["predict_proba"], 1e-9)
        self.assertEqual(self.metadata(self.server), self.metadata(self.native))

    def test_functions_and_lambdas_of_the_user_run(self):
        self.assert_titanic(
            self.predictions("function", models.instances(QUESTIONS[models.COLUMNS])),
            models.FUNCTION,
            QUESTIONS[models.COLUMNS],
        )
        rows = np.linspace(-3, 3, 1000).reshape(-1, 1)
        found = self.predictions("lambda", rows.tolist())
        self.assertEqual([row["predict"] for row in found], LAMBDA.predict(rows).tolist())
        proba = np.array([row["predict_proba"] for row in found])
        np.testing.assert_allclose(proba, LAMBDA.predict_proba(rows), TOLERANCE)

    def test_documents_boosters_and_skops_files(self):
        texts = ["a goal", "shares of the bank", "", "the ünknown"] * 250
        expected = models.NEWS.predict(texts).tolist()
        self.assertEqual(self.predictions("news", texts), expected)
        self.assertEqual(self.predictions("news", texts, self.native), expected)
        rows = QUESTIONS[["age", "fare"]]
        for instances in (models.instances(rows), json.loads(rows.to_json(orient="values"))):
            found = self.predictions("boosted", instances)
            self.assertEqual(
                [row["predict"] for row in found], models.BOOSTED.predict(rows).tolist()
            )
        self.assert_titanic(self.predictions("skops", models.instances(QUESTIONS)))

    def test_csv_and_the_open_inference_protocol(self):
        csv = QUESTIONS[models.COLUMNS].to_csv(index=False)
        status, answer = post(f"{self.server.url}/invocations", csv, "text/csv", "titanic")
        self.assertEqual(status, 200, answer)
        self.assert_titanic(answer["predictions"])
        inputs = []
        for name in models.COLUMNS:
            column = QUESTIONS[name]
            is_text = column.dtype != np.float64
            values = column.fillna("") if is_text else column
            inputs.append((name, "BYTES" if is_text else "FP64", values.tolist()))
        body = {
            "inputs": [
                {
                    "name": name,
                    "shape": [len(values)],
                    "datatype": datatype,
                    "data": [None if value != value else value for value in values],
                }
                for name, datatype, values in inputs
            ]
        }
        status, answer = post(f"{self.server.url}/v2/models/titanic/infer", body)
        self.assertEqual(status, 200, answer)
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        self.assertEqual(outputs["predict"], TITANIC.predict(QUESTIONS).tolist())
        with grpc.InferenceServerClient(self.server.grpc) as client:
            tensors = []
            for name, datatype, values in inputs:
                tensor = grpc.InferInput(name, [len(values)], datatype)
                dtype = object if datatype == "BYTES" else float
                tensor.set_data_from_numpy(np.array(values, dtype))
                tensors.append(tensor)
            answer = client.infer("titanic", tensors)
        proba = answer.as_numpy("predict_proba")
        np.testing.assert_allclose(proba, TITANIC.predict_proba(QUESTIONS), TOLERANCE)
        np.testing.assert_array_equal(proba.ravel(), np.array(outputs["predict_proba"]))

    def test_concurrent_requests_get_their_own_rows(self):
        def ask(number):
            return self.predictions("doubler", [[number], [number + 0.5]]) == [
                2 * number,
                2 * number + 1,
            ]

        with ThreadPoolExecutor(16) as pool:
            self.assertTrue(all(pool.map(ask, range(10, 400))))

    def test_wrong_input_names_the_reason(self):
        status, answer = self.predict("doubler", [[-3]])
        self.assertEqual((status, answer), (400, {"error": "ValueError: -3 is refused"}))
        status, answer = self.predict("doubler", [[-4]])
        self.assertEqual((status, answer["error"]), (500, "KeyError: '-4'"))
        status, answer = self.predict("titanic", [{"agee": 3}])
        self.assertEqual(status, 400)
        self.assertIn("agee", answer["error"])
        # scikit-learn's own refusal.
        status, answer = self.predict("lambda", [[None]])
        self.assertEqual(status, 400)
        self.assertIn("Input X contains NaN", answer["error"])

    def test_a_process_that_ends_fails_only_its_requests(self):
        root = os.path.join(self.folder.name, "ending")
        shutil.copytree(os.path.join(self.root, "doubler"), os.path.join(root, "doubler"))
        shutil.copytree(os.path.join(self.root, "lambda"), os.path.join(root, "other"))
        # So that requests do not run together with the one that ends its process.
        server = self.serve(root, "--batching", "off")
        try:
            stop = threading.Event()

            def ask_the_other():
                count = 0
                while not stop.is_set():
                    self.predictions("other", [[1.5]], server)
                    count += 1
                return count

            with ThreadPoolExecutor(1) as pool:
                asking = pool.submit(ask_the_other)
                for _ in range(3):
                    status, answer = self.predict("doubler", [[-1]], server)
                    self.assertEqual(status, 503, answer)
                    self.assertIn("exited with status 7", answer["error"])
                    self.assertEqual(self.predictions("doubler", [[4]], server), [8])
                stop.set()
                self.assertGreater(asking.result(), 0)
            place = os.path.join(root, "doubler")
            wait_until(lambda: len(processes(place)) == 2, "two processes")
            for pid in processes(place):
                os.kill(pid, signal.SIGKILL)
            # A request may still meet one of them.
            wait_until(lambda: self.predict("doubler", [[5]], server)[0] == 200, "new processes")
            self.assertEqual(self.predictions("doubler", [[5]], server), [10])
        finally:
            server.stop()
        wait_until(lambda: not processes(root), "the end of all processes")

    def test_a_process_that_hangs_is_replaced(self):
        root = os.path.join(self.folder.name, "hanging")
        shutil.copytree(os.path.join(self.root, "doubler"), os.path.join(root, "doubler"))
        server = self.serve(root, "--runner-timeout", "2s", "--request-timeout", "1s")
        try:
            before = set(processes(root))
            status, answer = self.predict("doubler", [[-2]], server)
            self.assertEqual(status, 504, answer)
            self.assertEqual(self.predictions("doubler", [[4]], server), [8])
            wait_until(lambda: set(processes(root)) - before, "a new process")
            wait_until(lambda: len(set(processes(root)) & before) == 1, "the end of the other one")
            self.assertEqual(self.predictions("doubler", [[4]], server), [8])
        finally:
            server.stop()

    def test_a_version_is_replaced_and_its_processes_end(self):
        root = os.path.join(self.folder.name, "versions")
        place = os.path.join(root, "lambda")
        shutil.copytree(os.path.join(self.root, "lambda"), place)
        server = self.serve(root)
        try:
            first = processes(place)
            self.assertEqual(len(first), 2)
            os.makedirs(os.path.join(root, "new"))
            with open(os.path.join(root, "new", "model.pkl"), "wb") as file:
                pickle.dump(TITANIC, file)
            os.rename(os.path.join(root, "new"), os.path.join(place, "2"))
            wait_until(
                lambda: self.predict("lambda", models.instances(QUESTIONS[:2]), server)[0] == 200,
                "version 2",
            )
            wait_until(lambda: not set(processes(place)) & set(first), "the end of version 1")
            self.assertEqual(len(processes(place)), 2)
        finally:
            server.stop()

    def test_models_that_cannot_be_loaded_say_why(self):
        root = os.path.join(self.folder.name, "broken")
        # Without its module.
        shutil.copytree(os.path.join(self.root, "doubler", "1"), os.path.join(root, "doubler", "1"))
        runner = ["--runner", "python", "--runner-python", sys.executable, *OPTIONS]
        server = Running(["serve", root, *runner], environment(), True, stderr=subprocess.PIPE)
        with urllib.request.urlopen(f"{server.url}/v1/models/doubler") as answer:
            status = json.load(answer)["model_version_status"][0]["status"]["error_message"]
        self.assertIn("ModuleNotFoundError: No module named 'mine'; install it into", status)
        server.process.terminate()
        _, log = server.process.communicate()
        self.assertIn("find_class" if "find_class" in log else "No module named 'mine'", log)

    def test_the_own_evaluator_names_this_way(self):
        root = os.path.join(self.folder.name, "refused")
        shutil.copytree(
            os.path.join(self.root, "function", "1"), os.path.join(root, "function", "1")
        )
        server = Running(["serve", root, *OPTIONS], environment(), True, stderr=subprocess.DEVNULL)
        with urllib.request.urlopen(f"{server.url}/v1/models/function") as answer:
            status = json.load(answer)["model_version_status"][0]["status"]["error_message"]
        self.assertIn('runner = "python"', status)
        server.stop()

    def test_ctrl_c_leaves_no_process(self):
        root = os.path.join(self.folder.name, "stopping")
        shutil.copytree(os.path.join(self.root, "lambda"), os.path.join(root, "lambda"))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            server = self.serve(root)
            self.assertEqual(len(processes(root)), 2)
            server.process.send_signal(number)
            server.process.wait(300)
            server.process.stdout.close()
            wait_until(lambda: not processes(root), f"the end of the processes after {number}", 5)


if __name__ == "__main__":
    assert os.path.exists(BINARY), f"{BINARY}: build it first"
    unittest.main()
