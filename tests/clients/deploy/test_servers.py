"""Starts the server with the commands and settings of deploy/, and probes, calls and stops it.

Ports are replaced by free ones. The containers of KServe run as root starts them there: as a user
without an entry in /etc/passwd, with nothing that is writable but /tmp, and with the model in /mnt/models.
"""

import itertools
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import grpc
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

import load
import manifests
from manifests import DEPLOY, HELM_VALUES, kustomized, one, program, templated

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import BINARY, ROOT, Running, environment, free_port, wait_until

PLATFORMS = Path(ROOT) / "tests/data/platforms"
HALF_PLUS_TWO = Path(ROOT) / "models/half_plus_two/1"
IRIS = {"instances": [[5.1, 3.5, 1.4, 0.2]]}
TREE = {
    "sepal_length": [5.1],
    "sepal_width": [3.5],
    "petal_length": [1.4],
    "petal_width": [0.2],
}
HALVES = ({"instances": [1.0, 5.0]}, lambda answer: answer["predictions"] == [2.5, 4.5])
# What a storage initializer may put into /mnt/models: files by their place, and a request with its check.
LAYOUTS = {
    "a SavedModel": ({"": HALF_PLUS_TWO}, *HALVES),
    "versions of a SavedModel": ({"1": HALF_PLUS_TWO, "2": HALF_PLUS_TWO}, *HALVES),
    "model.onnx": ({"model.onnx": PLATFORMS / "onnx/half_plus_two.onnx"}, *HALVES),
    "a version of ONNX": ({"3/model.onnx": PLATFORMS / "onnx/half_plus_two.onnx"}, *HALVES),
    "an XGBoost file": (
        {"model.json": PLATFORMS / "xgboost/iris_softprob.json"},
        IRIS,
        lambda answer: answer["predictions"][0][0] > 0.9,
    ),
    "a scikit-learn file": (
        {"model.joblib": PLATFORMS / "sklearn/iris_logreg_pipeline.joblib"},
        IRIS,
        lambda answer: answer["predictions"][0]["predict"] == 0,
    ),
    "a PMML file": (
        {"iris.pmml": PLATFORMS / "pmml/iris_tree.pmml"},
        {"inputs": TREE},
        lambda answer: answer["outputs"]["predicted_species"] == ["setosa"],
    ),
}
# A user and a group that nothing knows.
USER = "1000650000"
# "$1" is the directory of the model, "$2" the user, "$3" the program. It and its libraries get paths of
# their own, because they may be below /tmp, or in a directory that only root may read.
PLACE = """
mount --make-rprivate /
mount -t tmpfs -o mode=755 none /mnt
mkdir /mnt/models /mnt/lib
touch /mnt/program
mount --bind "$1" /mnt/models
mount --bind "$TENSORSERVE_LIB_DIR" /mnt/lib
mount --bind "$3" /mnt/program
for each in /mnt/models /mnt/lib /mnt/program; do mount -o remount,bind,ro "$each"; done
mount -t tmpfs -o mode=1777 none /tmp
mount -o remount,bind,ro /
user=$2
shift 3
cd /
export TENSORSERVE_LIB_DIR=/mnt/lib
exec setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs --bounding-set=-all \\
    /mnt/program "$@"
"""


def with_free_ports(text):
    return re.sub(r"((?:http|grpc)[-_]port\s*=\s*)\d+", r"\g<1>0", text)


def get(url, body=None, headers=None):
    """The status and the body of a response. As by the kubelet, certificates are not verified."""
    data = body and json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers or {})
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    try:
        with urllib.request.urlopen(request, timeout=30, context=unverified) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def predict(url, name, body):
    status, text = get(f"{url}/v1/models/{name}:predict", body)
    if status != 200:
        raise AssertionError(f"{status} {text}")
    return json.loads(text)


class Servers(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.folder.chmod(0o755)
        self.variables = {
            name: value
            for name, value in environment().items()
            if name == "PATH" or name.startswith("TENSORSERVE_LIB")
        } | {"TF_CPP_MIN_LOG_LEVEL": "3"}

    def write_models(self, files):
        """Copies files to places below a directory that everyone may read."""
        models = Path(tempfile.mkdtemp(dir=self.folder))
        for place, source in files.items():
            target = models / place
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
        for path in [models, *models.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        return models

    def start(self, arguments, variables, **options):
        server = Running(arguments, self.variables | variables, **options)
        self.addCleanup(server.process.stdout.close)
        self.addCleanup(server.process.wait)
        self.addCleanup(server.process.kill)
        return server

    def start_in_kserve(self, container, models, name):
        """The container with the model, in a place like that of a pod."""
        program, *arguments = container["command"] + container["args"]
        self.assertEqual(program, "/usr/local/bin/tensorserve")
        arguments = [with_free_ports(each).replace("{{.Name}}", name) for each in arguments]
        variables = {each["name"]: each["value"] for each in container["env"]}
        if os.geteuid() == 0:
            script = ["sh", "-euc", PLACE, "sh", str(models), USER]
            return self.start(arguments, variables, prefix=["unshare", "--mount", *script])
        # Without root: other paths, and the user of the tests.
        own = str(self.folder / "tmp")
        arguments = [each.replace("/mnt/models", str(models)) for each in arguments]
        variables = {key: value.replace("/tmp", own) for key, value in variables.items()}
        return self.start(arguments, variables)

    def assert_probes(
        self, container, server, status=200, names=("startup", "readiness", "liveness")
    ):
        """What the kubelet would ask for."""
        for name in names:
            probe = container[f"{name}Probe"]
            if "httpGet" in probe:
                found, text = get(server.url + probe["httpGet"]["path"])
                self.assertEqual(found, status, f"{name}: {text}")
            elif "grpc" in probe:
                with grpc.insecure_channel(server.grpc) as channel:
                    answer = health_pb2_grpc.HealthStub(channel).Check(
                        health_pb2.HealthCheckRequest(), timeout=10
                    )
                wanted = health_pb2.HealthCheckResponse.SERVING
                self.assertEqual(answer.status == wanted, status == 200)

    def assert_drains(self, container, server, model, delay, grace):
        """SIGTERM under load: at once not ready and still alive, all requests are answered for the whole
        delay, none is lost until the listeners close, and the end is orderly and in time."""
        kinds = load.clients(server.url, server.grpc, model)
        running = load.Load(kinds)
        wait_until(lambda: all(running.answered()[kind] >= 20 for kind in kinds), "answers")
        begun = time.monotonic()
        server.process.terminate()
        path = container["readinessProbe"]["httpGet"]["path"]
        wait_until(lambda: get(server.url + path)[0] == 503, "not ready")
        self.assertLess(time.monotonic() - begun, 1, "still ready")
        while time.monotonic() - begun < delay - 1:
            self.assertEqual(get(server.url + path)[0], 503)
            self.assert_probes(container, server, names=["liveness"])
            time.sleep(0.2)
        self.assertEqual(server.process.wait(timeout=grace), 0)
        ended = time.monotonic() - begun
        self.assertGreaterEqual(ended, delay)
        # Clients that go on sending do not hold it up until shutdown_timeout.
        self.assertLess(ended, min(delay + 5, grace))
        outcomes = running.stop()
        refused = [
            at - begun for _, at, _, error in outcomes if isinstance(error, load.RefusedError)
        ]
        lost = [
            f"{kind} at {at - begun:.2f} s, after {took:.2f} s: {error!r}"
            for kind, at, took, error in outcomes
            if error and not isinstance(error, load.RefusedError)
        ]
        self.assertEqual(lost, [])
        # A request that was due earlier may be the first to need a new connection.
        self.assertGreaterEqual(min(refused), delay - 2)
        for kind, second in itertools.product(kinds, range(delay)):
            count = sum(
                each == kind and error is None and second <= at - begun < second + 1
                for each, at, _, error in outcomes
            )
            self.assertGreaterEqual(count, load.RATE // 2, f"{kind} in second {second}")


class KServe(Servers):
    def test_every_layout_is_served_under_the_name_of_the_service(self):
        runtimes = kustomized(DEPLOY / "kserve")
        self.assertEqual(len(runtimes), 2)
        for runtime, (layout, (files, request, check)) in itertools.product(
            runtimes, LAYOUTS.items()
        ):
            with self.subTest(f"{runtime['metadata']['name']}: {layout}"):
                (container,) = runtime["spec"]["containers"]
                models = self.write_models(files)
                server = self.start_in_kserve(container, models, "my-service")
                self.assert_probes(container, server)
                answer = predict(server.url, "my-service", request)
                self.assertTrue(check(answer), answer)
                status, text = get(f"{server.url}/v1/models/my-service")
                self.assertEqual(status, 200)
                self.assertIs(json.loads(text)["ready"], True)
                self.assertEqual(get(f"{server.url}/v2/models/my-service/ready")[0], 200)
                path = runtime["spec"]["annotations"]["prometheus.kserve.io/path"]
                self.assertIn("tensorserve_requests_total{", get(server.url + path)[1])
                server.process.kill()

    def test_nothing_but_tmp_is_written(self):
        if os.geteuid() != 0:
            self.skipTest("needs root")
        script = "touch /mnt/models/a || touch /a || touch /var/tmp/a || id -u; touch /tmp/a"
        place = [
            "unshare",
            "--mount",
            "sh",
            "-euc",
            PLACE,
            "sh",
            self.folder,
            USER,
            shutil.which("sh"),
        ]
        ended = subprocess.run(
            [*place, "-c", script], check=True, capture_output=True, text=True, env=self.variables
        )
        self.assertEqual(ended.stdout, f"{USER}\n")

    def test_the_end_is_orderly(self):
        runtime = one(kustomized(DEPLOY / "kserve"), "ClusterServingRuntime", "tensorserve")
        (container,) = runtime["spec"]["containers"]
        files, _, _ = LAYOUTS["a SavedModel"]
        server = self.start_in_kserve(container, self.write_models(files), "halves")
        # As in Kubernetes, because KServe sets no other.
        grace = runtime["spec"].get("terminationGracePeriodSeconds", 30)
        self.assertIn("--shutdown-delay=5s", container["args"])
        self.assert_drains(container, server, "halves", 5, grace)


class Kubernetes(Servers):
    def start_pod(self, documents, places):
        """The server of a Deployment, with its ConfigMap; and its container."""
        (container,) = one(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
        ((name, text),) = one(documents, "ConfigMap")["data"].items()
        places = places | {"/cache": str(self.folder / "cache")}
        for place, real in places.items():
            self.assertIn(f'"{place}', text)
            text = text.replace(f'"{place}', f'"{real}')
        (self.folder / name).write_text(with_free_ports(text))
        program, *arguments = container["command"] + container["args"]
        self.assertEqual(program, "/usr/local/bin/tensorserve")
        self.assertIn(f"--config=/etc/tensorserve/{name}", arguments)
        arguments = [each.replace("/etc/tensorserve", str(self.folder)) for each in arguments]
        variables = {each["name"]: each["value"] for each in container.get("env", [])}
        return self.start(arguments, variables), container

    def test_the_server_of_the_manifests_serves_and_ends_in_order(self):
        models = self.write_models({"1": HALF_PLUS_TWO})
        for folder in ("kubernetes/server", "kubernetes/keda"):
            with self.subTest(folder):
                documents = kustomized(DEPLOY / folder)
                server, container = self.start_pod(documents, {"s3://bucket/models/model": models})
                self.assert_probes(container, server)
                with grpc.insecure_channel(server.grpc) as channel:
                    health_pb2_grpc.HealthStub(channel).Check(
                        health_pb2.HealthCheckRequest(), timeout=10
                    )
                body, check = HALVES
                self.assertTrue(check(predict(server.url, "model", body)))
                self.assertTrue(list((self.folder / "cache/probes").iterdir()), "nothing is kept")
        grace = one(documents, "Deployment")["spec"]["template"]["spec"]
        self.assert_drains(container, server, "model", 5, grace["terminationGracePeriodSeconds"])

    def test_the_server_of_the_chart_serves_and_its_test_passes(self):
        half = self.write_models({"3": HALF_PLUS_TWO})
        iris = self.write_models({"model.json": PLATFORMS / "xgboost/iris_softprob.json"})
        for name, places, model in (
            ("defaults", {"s3://bucket/models/model": half}, "model"),
            ("settings", {"/models/ranker": half, "s3://bucket/tagger": iris}, "ranker"),
        ):
            with self.subTest(name):
                documents = templated(HELM_VALUES[name])
                server, container = self.start_pod(documents, places)
                self.assert_probes(container, server)
                body, check = HALVES
                self.assertTrue(check(predict(server.url, model, body)))
                (test,) = one(documents, "Pod")["spec"]["containers"]
                service = one(documents, "Service")
                port = service["spec"]["ports"][0]["port"]
                url = f"http://{service['metadata']['name']}:{port}"
                self.assertEqual(test["args"], ["health", url])
                command = [BINARY, "health", server.url]
                ended = subprocess.run(
                    command, check=False, env=self.variables, capture_output=True
                )
                self.assertEqual(ended.returncode, 0, ended.stderr)
                server.process.kill()
                server.process.wait()
                ended = subprocess.run(
                    command, check=False, env=self.variables, capture_output=True
                )
                self.assertNotEqual(ended.returncode, 0)

    def test_the_chart_has_keys_and_tls(self):
        secrets = self.folder / "secrets"
        secrets.mkdir()
        files = secrets / "tls.key", secrets / "tls.crt"
        make = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            "/CN=localhost",
            "-days",
            "1",
            "-keyout",
        ]
        subprocess.run([*make, files[0], "-out", files[1]], check=True, capture_output=True)
        keys = {}
        for role in ("metrics", "infer"):
            file = f"--file={secrets / 'auth.toml'}"
            added = subprocess.run(
                [BINARY, "auth", "add-key", role, "--role", role, file],
                check=True,
                capture_output=True,
                text=True,
                env=self.variables,
            )
            keys[role] = {"Authorization": f"Bearer {added.stdout.strip()}"}
        places = {
            "s3://bucket/models/model": self.write_models({"1": HALF_PLUS_TWO}),
            "/etc/tensorserve-auth": secrets,
            "/etc/tensorserve-tls": secrets,
        }
        documents = templated(HELM_VALUES["secured"])
        server, container = self.start_pod(documents, places)
        self.assertTrue(server.url.startswith("https://"))
        for name in ("startup", "readiness", "liveness"):
            self.assertEqual(container[f"{name}Probe"]["httpGet"]["scheme"], "HTTPS")
        self.assert_probes(container, server)
        for path, body, role in (
            ("/metrics", None, "metrics"),
            ("/v1/models/model:predict", HALVES[0], "infer"),
        ):
            self.assertEqual(get(server.url + path, body)[0], 401)
            self.assertEqual(get(server.url + path, body, keys[role])[0], 200)
        (test,) = one(documents, "Pod")["spec"]["containers"]
        *arguments, url = test["args"]
        self.assertEqual(url, "https://release-tensorserve:8500")
        command = [BINARY, *arguments, server.url]
        ended = subprocess.run(command, check=False, env=self.variables, capture_output=True)
        self.assertEqual(ended.returncode, 0, ended.stderr)


def queries():
    """The queries that scale, with where they are from."""
    found = [
        (f"{folder.name}/{number}", trigger["metadata"]["query"])
        for folder in manifests.KUSTOMIZATIONS
        for document in kustomized(folder)
        if document["kind"] == "ScaledObject"
        for number, trigger in enumerate(document["spec"]["triggers"])
    ]
    scaled = one(templated([*HELM_VALUES["keda"], "keda.requestsQueued=1"]), "ScaledObject")
    triggers = scaled["spec"]["triggers"]
    found += [(f"helm/{number}", each["metadata"]["query"]) for number, each in enumerate(triggers)]
    service = yaml.safe_load((DEPLOY / "kserve/inferenceservice-keda.yaml").read_text())
    for metric in service["spec"]["predictor"]["autoScaling"]["metrics"]:
        found.append(("kserve", metric["external"]["metric"]["query"]))
    return found


class Prometheus(Servers):
    """The service of the Compose file, scraped as its Prometheus is told to, and asked as KEDA asks."""

    def test_prometheus_answers_the_queries_that_scale(self):
        compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
        service = compose["services"]["tensorserve"]
        self.assertIn("${MODELS:-../../models}:/models:ro", service["volumes"])
        models = str(self.write_models({"half_plus_two/1": HALF_PLUS_TWO}))
        arguments = [
            with_free_ports(each).replace("/models", models) for each in service["command"]
        ]
        variables = {
            name: value.replace("/tmp", str(self.folder))
            for name, value in service["environment"].items()
        }
        server = self.start(arguments, variables)
        found = queries()
        self.assertEqual(len(found), 5)
        address = self.start_prometheus(server.url, [query for _, query in found])
        documented = (Path(ROOT) / "docs/observability.md").read_text()
        self.wait_for(address, server.url, 'up{job="tensorserve"} == 1')
        body, check = HALVES
        for name, query in found:
            with self.subTest(name):
                (metric,) = re.findall(r"tensorserve_\w+", query)
                self.assertIn(metric.removesuffix("_sum"), documented)
                if "queue" in metric:
                    # No request waits here; but Prometheus can evaluate it.
                    self.ask(address, query)
                else:
                    value = self.wait_for(address, server.url, query)
                    self.assertGreater(value, 0)
                    wrong = query.replace("namespace=", "namespace!=")
                    self.assertEqual(self.ask(address, wrong), [], "the labels select nothing")
        self.assertTrue(check(predict(server.url, "half_plus_two", body)))

    def start_prometheus(self, url, found):
        """Prometheus with the file of deploy/, which finds the pods of the queries at the server."""
        settings = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())
        settings["global"]["scrape_interval"] = "1s"
        (job,) = settings["scrape_configs"]
        (own,) = job["static_configs"]
        self.assertEqual(own["targets"], ["tensorserve:8500"])
        target = url.removeprefix("http://").replace("0.0.0.0", "127.0.0.1")
        own["targets"] = [target]
        pods = {re.search(r'namespace="(.*?)",pod=~"(.*?)\.\*"', query).groups() for query in found}
        for namespace, pod in sorted(pods):
            labels = {"namespace": namespace, "pod": f"{pod}7d4b9c-x2x"}
            job["static_configs"].append({"targets": [target], "labels": labels})
        file = self.folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(settings))
        address = f"127.0.0.1:{free_port()}"
        log = self.enterContext((self.folder / "prometheus.log").open("w"))
        options = [
            f"--config.file={file}",
            f"--storage.tsdb.path={self.folder}/data",
            f"--web.listen-address={address}",
        ]
        process = subprocess.Popen([program("prometheus"), *options], stdout=log, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return address

    def ask(self, address, query):
        encoded = urllib.parse.quote(query)
        status, text = get(f"http://{address}/api/v1/query?query={encoded}")
        self.assertEqual(status, 200, text)
        return json.loads(text)["data"]["result"]

    def wait_for(self, address, url, query):
        """Sends requests until a query has a value, and returns it."""
        end = time.monotonic() + 300
        while time.monotonic() < end:
            predict(url, "half_plus_two", HALVES[0])
            time.sleep(0.2)
            try:
                answer = self.ask(address, query)
            except (OSError, AssertionError):
                # It has not started yet.
                continue
            values = [float(each["value"][1]) for each in answer]
            if any(value > 0 for value in values):
                return max(values)
        raise AssertionError(f"{query}: {(self.folder / 'prometheus.log').read_text()}")


if __name__ == "__main__":
    unittest.main()
