"""Starts the assembled files of an image as each platform does, and calls it as its clients do.

scripts/assemble_image.py assembles the files; this requires root, too:

    IMAGE=work/full python3 -m unittest discover tests/image

Each container has a read-only root, its own network and processes, and a user without capabilities.
IMAGE may be the image `slim`, which is tested with the models that it can serve.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
IMAGE = os.path.abspath(os.environ.get("IMAGE", "image"))
DEADLINE = 60

ISOLATED = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--net")

# Sends a request in the network of a container.
CALL = """
import json, sys, urllib.error, urllib.request
url, body, headers = json.loads(sys.argv[1])
request = urllib.request.Request(url, body and body.encode(), headers)
try:
    answer = urllib.request.urlopen(request, timeout=30)
except urllib.error.HTTPError as error:
    answer = error
print(json.dumps([answer.status, answer.read().decode()]))
"""


def setUpModule():
    if os.geteuid() != 0 or not os.path.exists(f"{IMAGE}.json"):
        raise unittest.SkipTest("requires root, and IMAGE from scripts/assemble_image.py")


class Container:
    """A process in the files of the image."""

    def __init__(self, arguments=(), *, entrypoint=None, variables=None, mounts=None, user=None):
        with open(f"{IMAGE}.json", encoding="utf-8") as file:
            config = json.load(file)
        command = [*(entrypoint or config["Entrypoint"]), *(arguments or config["Cmd"])]
        user = user or config["User"].split(":")[0]
        self.folder = tempfile.mkdtemp(prefix="container-")
        os.chmod(self.folder, 0o755)
        root, upper, work = (os.path.join(self.folder, name) for name in ("root", "upper", "work"))
        for folder in (root, upper, work):
            os.mkdir(folder)
        options = f"lowerdir={IMAGE},upperdir={upper},workdir={work}"
        script = [f"mount -t overlay -o {options} overlay {root}"]
        for target, source in (mounts or {}).items():
            script += [
                f"mkdir -p {root}{target}",
                f"mount --bind {source} {root}{target}",
                f"mount -o remount,bind,ro {root}{target}",
            ]
        script += [
            f"mkdir -p {root}/proc {root}/dev",
            f"mount -t proc proc {root}/proc",
            f"mount --rbind /dev {root}/dev",
            "ip link set lo up",
            f"mount -o remount,ro {root}",
            f'exec chroot --userspec={user}:{user} --groups="" {root} "$@"',
        ]
        environment = {**config["Env"], "PATH": config["Env"].get("PATH", os.environ["PATH"])}
        environment.update(variables or {})
        self.config, self.user, self.environment = config, user, environment
        self.log = os.path.join(self.folder, "log")
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [*ISOLATED, "sh", "-euc", "\n".join(script), "sh", *command],
                env=environment,
                stdout=log,
                stderr=log,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)

    @property
    def pid(self):
        """The server's process, the child of unshare."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as file:
            return file.read().split()[0]

    def enter(self, *command, **options):
        return subprocess.run(
            ["nsenter", "--target", self.pid, *command],
            check=False,
            capture_output=True,
            text=True,
            **options,
        )

    def call(self, url, body=None, **headers):
        arguments = json.dumps([url, body, headers])
        done = self.enter("--net", sys.executable, "-c", CALL, arguments)
        if done.returncode != 0:
            raise ConnectionError(done.stderr.strip().split("\n")[-1])
        status, text = json.loads(done.stdout)
        return status, text

    def health(self):
        """The exit status and the output of the image's health check."""
        done = self.enter(
            *("--mount", "--pid", "--net", "--root", "--wd=/"),
            *self.config["Healthcheck"],
            env=self.environment,
        )
        return done.returncode, done.stdout + done.stderr

    def wait_until_healthy(self):
        until = time.monotonic() + DEADLINE
        while True:
            try:
                status, output = self.health()
            except (FileNotFoundError, IndexError):
                status, output = 1, ""
            if status == 0:
                return
            if time.monotonic() > until or self.process.poll() is not None:
                raise AssertionError(f"not healthy: {output}\n{self.text()}")
            time.sleep(0.2)

    def text(self):
        with open(self.log, encoding="utf-8") as file:
            return file.read()

    def stop(self):
        """The exit status after SIGTERM."""
        subprocess.check_call(["kill", "-TERM", self.pid])
        return self.process.wait(30)


IS_SLIM = not os.path.exists(f"{IMAGE}/opt/tensorserve/lib")
MODEL = f"{ROOT}/models/half_plus_two"
NAME, BODY = "half_plus_two", '{"instances": [1.0, 5.0]}'


def predictions(answer):
    status, text = answer
    if status != 200:
        raise AssertionError(f"{status}: {text}")
    return json.loads(text)["predictions"]


@unittest.skipIf(IS_SLIM, "needs libtensorflow")
class Platforms(unittest.TestCase):
    def check(self, container, url, expected=(2.5, 4.5)):
        container.wait_until_healthy()
        self.assertEqual(predictions(container.call(url, BODY)), list(expected))
        self.assertEqual(container.stop(), 0, container.text())

    def test_tensorserve(self):
        for user in (None, "12345"):
            with Container(mounts={"/models": f"{ROOT}/models"}, user=user) as container:
                url = "http://127.0.0.1:8500/v1/models/half_plus_two:predict"
                self.check(container, url)

    def test_tensorflow_serving(self):
        mounts = {f"/models/{NAME}": MODEL}
        variables = {"MODEL_NAME": NAME}
        url = f"http://127.0.0.1:8501/v1/models/{NAME}:predict"
        for entrypoint in (None, ["/usr/bin/tf_serving_entrypoint.sh"]):
            started = {"mounts": mounts, "variables": variables, "entrypoint": entrypoint}
            for user in (None, "1000", "12345"):
                with Container(user=user, **started) as container:
                    self.check(container, url)
        # As `docker run --init` starts it.
        init = ["/bin/sh", "-c", '"$@" & wait', "init", "/usr/local/bin/tensorserve", "container"]
        with Container(mounts=mounts, variables=variables, entrypoint=init) as container:
            container.wait_until_healthy()
            self.assertEqual(predictions(container.call(url, BODY)), [2.5, 4.5])
        other = url.replace("8501", "9001")
        with Container(["--rest_api_port=9001"], mounts=mounts, variables=variables) as container:
            self.check(container, other)

    def test_kserve(self):
        flags = [f"--model_name={NAME}", "--port=9000", "--rest_api_port=8080"]
        flags += ["--model_base_path=/mnt/models", "--rest_api_timeout_in_ms=60000"]
        command = ["/usr/bin/tensorflow_model_server"]
        with Container(
            flags, entrypoint=command, mounts={"/mnt/models": MODEL}, user="1000"
        ) as container:
            self.check(container, f"http://127.0.0.1:8080/v1/models/{NAME}:predict")

    def test_sagemaker(self):
        with Container(["serve"], mounts={"/opt/ml/model": f"{ROOT}/models"}) as container:
            container.wait_until_healthy()
            self.assertEqual(container.call("http://127.0.0.1:8080/ping")[0], 200)
            headers = {
                "Content-Type": "application/json",
                "X-Amzn-SageMaker-Custom-Attributes": f"tfs-model-name={NAME}",
            }
            url = "http://127.0.0.1:8080/invocations"
            answer = container.call(url, BODY, **headers)
            self.assertEqual(predictions(answer), [2.5, 4.5])
            self.assertEqual(container.stop(), 0)

    def test_vertex(self):
        route = "/v1/endpoints/1/deployedModels/2"
        variables = {
            "AIP_MODE": "PREDICTION",
            "AIP_HTTP_PORT": "8080",
            "AIP_HEALTH_ROUTE": route,
            "AIP_PREDICT_ROUTE": f"{route}:predict",
            "AIP_STORAGE_URI": "/mnt/artifacts",
        }
        with Container(variables=variables, mounts={"/mnt/artifacts": MODEL}) as container:
            container.wait_until_healthy()
            self.assertEqual(container.call(f"http://127.0.0.1:8080{route}")[0], 200)
            self.check(container, f"http://127.0.0.1:8080{route}:predict")

    def test_cloud_run(self):
        variables = {"PORT": "8080", "K_SERVICE": "s"}
        mounts = {"/mnt/models": f"{ROOT}/models"}
        with Container(["serve", "/mnt/models"], variables=variables, mounts=mounts) as container:
            self.check(container, f"http://127.0.0.1:8080/v1/models/{NAME}:predict")


class Contents(unittest.TestCase):
    def test_bill_of_materials(self):
        with open(f"{IMAGE}/usr/share/tensorserve/sbom.cdx.json", encoding="utf-8") as file:
            bom = json.load(file)
        self.assertEqual(bom["bomFormat"], "CycloneDX")
        purls = [component["purl"] for component in bom["components"]]
        for start in (
            "pkg:cargo/tokio@",
            "pkg:deb/debian/libc6@",
            "pkg:pypi/onnxruntime@",
            "pkg:pypi/ai-edge-litert@",
        ):
            self.assertTrue(any(purl.startswith(start) for purl in purls), start)
        for component in bom["components"]:
            self.assertTrue(component["name"] and component["version"], component)
            self.assertTrue(component["licenses"], component)

    def test_links(self):
        with Container(["--version"], entrypoint=["/usr/bin/tensorflow_model_server"]) as container:
            self.assertEqual(container.process.wait(30), 0, container.text())
            self.assertIn("TensorFlow ModelServer: ", container.text())

    def test_not_root(self):
        with open(f"{IMAGE}.json", encoding="utf-8") as file:
            self.assertEqual(json.load(file)["User"], "65532:65532")


@unittest.skipUnless(IS_SLIM, "of the image slim")
class Slim(unittest.TestCase):
    def test_size(self):
        total = 0
        for parent, _, files in os.walk(IMAGE):
            total += sum(os.lstat(os.path.join(parent, name)).st_size for name in files)
        self.assertLessEqual(total, 120e6)

    def start(self, model):
        """A container that serves a file of the test data as the model `m`."""
        models = tempfile.mkdtemp(prefix="models-")
        self.addCleanup(shutil.rmtree, models)
        os.mkdir(f"{models}/1")
        shutil.copy(f"{ROOT}/tests/data/platforms/{model}", f"{models}/1")
        os.chmod(models, 0o755)
        return Container(mounts={"/models/m": models}, variables={"MODEL_NAME": "m"})

    def test_models_without_libtensorflow(self):
        with self.start("onnx/half_plus_two.onnx") as container:
            container.wait_until_healthy()
            answer = container.call("http://127.0.0.1:8501/v1/models/m:predict", BODY)
            self.assertEqual(predictions(answer), [2.5, 4.5])
            self.assertEqual(container.stop(), 0)

    def test_models_of_tensorflow_lite(self):
        with self.start("tflite/made/signatures.tflite") as container:
            container.wait_until_healthy()
            status, _ = container.call("http://127.0.0.1:8501/v1/models/m/metadata")
            self.assertEqual(status, 200)
            self.assertEqual(container.stop(), 0)


if __name__ == "__main__":
    socket.setdefaulttimeout(DEADLINE)
    unittest.main()
