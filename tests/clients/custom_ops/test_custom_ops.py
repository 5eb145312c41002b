"""Models with custom operations: a library built here against TensorFlow's headers, those of
tensorflow-text from PyPI, and libraries that cannot be loaded."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest

import requests
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../tensorflow_serving"))
from serving import BINARY, Server, environment

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "zero_out.cc")


def built():
    """The library of zero_out.cc. It takes a minute to build, so it is kept in the virtual
    environment."""
    with open(SOURCE, "rb") as file:
        what = file.read() + tf.version.VERSION.encode()
    folder = os.path.join(sys.prefix, "custom_ops", hashlib.sha256(what).hexdigest()[:16])
    library = os.path.join(folder, "zero_out.so")
    if not os.path.exists(library):
        os.makedirs(folder, exist_ok=True)
        part = library + ".part"
        flags = tf.sysconfig.get_compile_flags() + tf.sysconfig.get_link_flags()
        command = ["g++", "-shared", "-fPIC", "-w", SOURCE, "-o", part, *flags]
        subprocess.run(command, check=True)
        os.rename(part, library)
    return library


def save(folder, function):
    """Saves a model with one signature."""
    module = tf.Module()
    module.f = function
    tf.saved_model.save(module, folder, signatures={"serving_default": function})


def rest(server, name, instances):
    url = f"http://{server.http}/v1/models/{name}:predict"
    answer = requests.post(url, json={"instances": instances}, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()["predictions"]


def rpc(server, name, **inputs):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = name
    for alias, value in inputs.items():
        request.inputs[alias].CopyFrom(tf.make_tensor_proto(value))
    with server.channel() as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        outputs = stub.Predict(request, timeout=30).outputs
    return {alias: tf.make_ndarray(value) for alias, value in outputs.items()}


def refused(*paths):
    """The error for libraries that cannot be loaded."""
    with tempfile.TemporaryDirectory() as empty:
        command = [BINARY, "serve", empty, "--http-port", "0", "--grpc-port", "0"]
        command.append("--custom-op-paths=" + ",".join(paths))
        ended = subprocess.run(
            command, capture_output=True, check=False, text=True, timeout=120, env=environment()
        )
    assert ended.returncode == 1, (ended.returncode, ended.stderr)
    return ended.stderr


class OfOurOwn(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.library = built()
        cls.folder = tempfile.TemporaryDirectory()
        ops = tf.load_op_library(cls.library)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="x")])
        def zero_out(x):
            return {"y": ops.tensorserve_zero_out(to_zero=x)}

        cls.model = os.path.join(cls.folder.name, "zero_out/1")
        save(cls.model, zero_out)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_a_library_serves_a_model(self):
        # Given as a file and through its directory, it is loaded once.
        paths = f"{self.library},{os.path.dirname(self.library)}"
        server = Server({"zero_out": os.path.dirname(self.model)}, f"--custom-op-paths={paths}")
        self.addCleanup(server.close)
        self.assertEqual(rest(server, "zero_out", [5]), [5])
        url = f"http://{server.http}/v1/models/zero_out:predict"
        answer = requests.post(url, json={"inputs": [5, 4, 3]}, timeout=30)
        self.assertEqual(answer.json(), {"outputs": [5, 0, 0]})
        answer = rpc(server, "zero_out", x=tf.constant([7, 8], tf.int32))
        self.assertEqual(answer["y"].tolist(), [7, 0])
        status = requests.get(f"http://{server.http}/api/v1/status", timeout=30).json()
        library = {"path": "zero_out.so", "ops": ["TensorserveZeroOut"], "error": None}
        self.assertEqual(status["server"]["custom_ops"], [library])

    def test_without_it_the_model_says_what_to_do(self):
        command = [BINARY, "serve", os.path.dirname(self.model)]
        command += ["--http-port", "0", "--grpc-port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
        self.addCleanup(process.stdout.close)
        text = ""
        for line in process.stdout:
            text += line
            if line.startswith("not ready"):
                break
        process.kill()
        process.wait()
        self.assertIn("TensorserveZeroOut", text)
        self.assertIn("add its library to custom_op_paths", text)

    def test_under_simple_tensorflow_servings_name(self):
        process = subprocess.Popen(
            [
                BINARY,
                "stfs",
                "--port=0",
                "--model_base_path",
                os.path.dirname(self.model),
                "--custom_op_paths",
                os.path.dirname(self.library),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self.addCleanup(process.stdout.close)
        address = None
        for line in process.stdout:
            if line.startswith("listening on http://"):
                address = line.split("://")[1].strip().replace("0.0.0.0", "127.0.0.1")
            if line.startswith(("ready after", "not ready")):
                break
        body = json.dumps({"data": {"x": [9, 9]}})
        headers = {"Content-Type": "application/json"}
        answer = requests.post(f"http://{address}/", data=body, headers=headers, timeout=30)
        process.terminate()
        process.wait()
        self.assertEqual(answer.json(), {"y": [9, 0]})


class ThatCanNotBeLoaded(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def file(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content)
        return self.path(name)

    def compiled(self, name, source):
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", self.path(name)]
        subprocess.run(command, input=source, text=True, check=True)
        return self.path(name)

    def test_every_one_of_them_is_told(self):
        with open(built(), "rb") as file:
            library = file.read()
        text = self.file("text.so", b"This is no library.\n")
        half = self.file("half.so", library[: len(library) // 2])
        empty = self.file("empty.so", b"")
        told = refused(text, half, empty, "/no/such/ops.so")
        self.assertIn(f"{text} cannot be loaded: it is not a shared library", told)
        self.assertIn(f"{half} cannot be loaded: it is truncated", told)
        self.assertIn(f"{empty} cannot be loaded: it is not a shared library", told)
        self.assertIn("/no/such/ops.so: No such file", told)

    def test_another_abi_names_the_symbol_and_the_version(self):
        # Like a library that was built against another version, or another C++ ABI.
        symbol = "_ZN10tensorflow8OpKernel7ComputeEPNS_9OldKernelE"
        source = f"void {symbol}(void);\n"
        source += f"__attribute__((constructor)) static void start(void) {{ {symbol}(); }}\n"
        told = refused(self.compiled("old.so", source))
        self.assertIn("old.so cannot be loaded", told)
        self.assertIn(f"libtensorflow {tf.version.VERSION} has no symbol {symbol}", told)
        self.assertIn(f"build it against TensorFlow {tf.version.VERSION}", told)

    def test_a_library_without_operations_does_no_harm(self):
        harmless = self.compiled("harmless.so", "int answer(void) { return 42; }\n")
        model = os.path.join(os.path.dirname(HERE), "../../models/half_plus_two")
        server = Server({"half": os.path.abspath(model)}, f"--custom-op-paths={harmless}")
        self.addCleanup(server.close)
        self.assertEqual(rest(server, "half", [1.0]), [2.5])


class FromPyPI(unittest.TestCase):
    """The libraries of tensorflow-text, which are built for this version of TensorFlow."""

    def test_its_libraries_serve_a_model(self):
        # The import registers its operations, which only this test needs.
        import tensorflow_text as text  # noqa: PLC0415

        tokenizer = text.WhitespaceTokenizer()

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
        def tokenize(strings):
            return {"tokens": tokenizer.tokenize(strings).to_tensor()}

        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        save(os.path.join(folder.name, "tokens/1"), tokenize)
        ops = os.path.join(os.path.dirname(text.__file__), "python/ops")
        server = Server({"tokens": os.path.join(folder.name, "tokens")}, f"--custom-op-paths={ops}")
        self.addCleanup(server.close)
        sentences = ["one two  three", "für immer"]
        want = [
            [word.decode() for word in row]
            for row in tokenize(tf.constant(sentences))["tokens"].numpy().tolist()
        ]
        self.assertEqual(want, [["one", "two", "three"], ["für", "immer", ""]])
        self.assertEqual(rest(server, "tokens", sentences), want)
        answer = rpc(server, "tokens", text=sentences)["tokens"].tolist()
        self.assertEqual([[word.decode() for word in row] for row in answer], want)


if __name__ == "__main__":
    unittest.main()
