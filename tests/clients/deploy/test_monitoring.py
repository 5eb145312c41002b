"""A server, the Prometheus of deploy/compose that scrapes it, and its dashboards and alerts."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.parse
import urllib.request
from functools import partial
from pathlib import Path

import yaml

from manifests import DEPLOY, program, run

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import ROOT, Running, environment, free_port, wait_until

# Each look is a query of Prometheus.
wait_for = partial(wait_until, pause=0.5)

IRIS = Path(ROOT) / "tests/data/platforms/xgboost/iris_softprob.json"
ALERTS = DEPLOY / "prometheus/alerts.yml"
DASHBOARDS = {file.stem: json.loads(file.read_text()) for file in DEPLOY.glob("grafana/*.json")}
# What Grafana would put into the queries.
VARIABLES = {"$__rate_interval": "10s", "$instance": ".*", "$model": "iris"}
# Version 1 answers, version 2 gets copies.
CONFIG = """
response_cache_bytes = "1MiB"
[[models]]
name = "iris"
path = "iris"
version_policy = "all"
labels = { stable = 1, canary = 2 }
split = { stable = 1 }
shadow = "canary"
response_cache = true
"""


def get(url, body=None, accept="*/*"):
    data = body and json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def panels(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def filled(expression):
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def lint(page):
    """What `promtool check metrics` says: its exit status and its text."""
    command = [program("promtool"), "check", "metrics"]
    ended = subprocess.run(command, input=page, text=True, capture_output=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


class Prometheus:
    """Prometheus with the files of deploy/compose, which scrapes a server more often than there."""

    def __init__(self, server, folder):
        config = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())
        config["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
        rules = yaml.safe_load(ALERTS.read_text())
        for rule in rules["groups"][0]["rules"]:
            rule.pop("for", None)
        (folder / "alerts.yml").write_text(yaml.safe_dump(rules))
        config["rule_files"] = [str(folder / "*.yml")]
        (scrape,) = config["scrape_configs"]
        scrape["static_configs"] = [{"targets": [server.removeprefix("http://")]}]
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        command = [
            program("prometheus"),
            f"--config.file={folder}/prometheus.yaml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={address}",
            "--log.level=warn",
        ]
        self.process = subprocess.Popen(command, cwd=folder)

    def ask(self, path, **arguments):
        status, text = get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}")
        if status != 200:
            raise AssertionError(f"{arguments}: {text}")
        return json.loads(text)["data"]

    def values(self, expression):
        """The values that are numbers."""
        found = self.ask("query", query=expression)["result"]
        numbers = [float(each["value"][1]) for each in found]
        return [number for number in numbers if not math.isnan(number)]

    def is_ready(self):
        try:
            return get(f"{self.url}/-/ready")[0] == 200
        except urllib.error.URLError:
            return False


class Monitoring(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        for version in ("iris/1", "iris/2", "models/other/1"):
            (cls.folder / version).mkdir(parents=True)
            shutil.copy(IRIS, cls.folder / version)
        config = cls.folder / "tensorserve.toml"
        config.write_text(CONFIG)
        # Requests wait for a batch thread, so that there are queue delays.
        arguments = ["--http-port=0", "--grpc-port=0", "--inline-budget-micros=0"]
        aliases = "--metrics-aliases=triton,tfs"
        cls.server = Running(
            ["serve", f"--config={config}", str(cls.folder / "models"), *arguments, aliases],
            environment(),
        )
        cls.addClassCleanup(cls.server.stop)
        (cls.folder / "prometheus").mkdir()
        cls.prometheus = Prometheus(cls.server.url, cls.folder / "prometheus")
        cls.addClassCleanup(cls.prometheus.process.wait)
        cls.addClassCleanup(cls.prometheus.process.terminate)
        broken = cls.folder / "models/broken/1"
        broken.mkdir(parents=True)
        (broken / IRIS.name).write_text(
            IRIS.read_text().replace("multi:softprob", "multi:nonsense")
        )
        cls.is_over = threading.Event()
        sender = threading.Thread(target=cls.send)
        sender.start()
        cls.addClassCleanup(sender.join)
        cls.addClassCleanup(cls.is_over.set)
        wait_for(cls.prometheus.is_ready, "Prometheus")

    @classmethod
    def send(cls):
        """Requests that succeed, some with a response that was kept, and some that fail in the model."""
        url = f"{cls.server.url}/v1/models/iris:predict"
        sent = 0
        while not cls.is_over.wait(0.05):
            sent += 1
            get(url, {"instances": [[5.1, 3.5, 1.4, 0.2]] * 3})
            get(url, {"instances": [[5.1, 3.5, 1.4, sent / 100]] * 3})
            get(url, {"instances": [[5.1, 3.5]]})

    def test_every_panel_has_values(self):
        checked = 0
        for name, dashboard in DASHBOARDS.items():
            for panel in panels(dashboard):
                for target in panel["targets"]:
                    expression = filled(target["expr"])
                    self.assertNotIn("$", expression)
                    with self.subTest(f"{name}: {panel['title']}: {expression}"):
                        wait_for(partial(self.prometheus.values, expression), "a value")
                        checked += 1
        self.assertGreater(checked, 50)
        self.assertEqual(self.prometheus.values("tensorserve_imaginary"), [])

    def test_every_variable_has_values(self):
        for name, dashboard in DASHBOARDS.items():
            for variable in dashboard["templating"]["list"]:
                if variable["type"] == "query":
                    query = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
                    with self.subTest(f"{name}: {variable['name']}"):
                        wait_for(partial(self.values_of_label, query[2], query[1]), "a value")

    def values_of_label(self, label, series):
        return self.prometheus.ask(f"label/{label}/values", **{"match[]": filled(series)})

    def test_dashboards_are_in_order(self):
        self.assertEqual(set(DASHBOARDS), {"server", "model"})
        uids = {dashboard["uid"] for dashboard in DASHBOARDS.values()}
        self.assertEqual(len(uids), len(DASHBOARDS))
        for name, dashboard in DASHBOARDS.items():
            with self.subTest(name):
                names = [each["name"] for each in dashboard["templating"]["list"]]
                self.assertEqual(names[0], "datasource")
                self.assertEqual("model" in names, name == "model")
                ids = [panel["id"] for panel in dashboard["panels"]]
                self.assertEqual(len(set(ids)), len(ids))
                places = set()
                for panel in dashboard["panels"]:
                    at = panel["gridPos"]
                    self.assertLessEqual(at["x"] + at["w"], 24)
                    cells = {
                        (x, y)
                        for x in range(at["x"], at["x"] + at["w"])
                        for y in range(at["y"], at["y"] + at["h"])
                    }
                    self.assertFalse(cells & places, panel["title"])
                    places |= cells
                for panel in panels(dashboard):
                    sources = [
                        panel["datasource"],
                        *(each["datasource"] for each in panel["targets"]),
                    ]
                    for source in sources:
                        self.assertEqual(source, {"type": "prometheus", "uid": "${datasource}"})
                for link in dashboard["links"]:
                    self.assertIn(link["url"].removeprefix("/d/"), uids - {dashboard["uid"]})

    def test_the_alert_for_a_model_that_cannot_be_loaded_fires(self):
        def firing():
            found = self.prometheus.ask("alerts")["alerts"]
            return {
                each["labels"]["alertname"]: each for each in found if each["state"] == "firing"
            }

        wait_for(lambda: "TensorserveModelFailed" in firing(), "the alert")
        alert = firing()["TensorserveModelFailed"]
        self.assertEqual(alert["labels"]["model"], "broken")
        self.assertIn("broken cannot be loaded", alert["annotations"]["summary"])
        wait_for(lambda: "TensorserveNotReady" in firing(), "the alert")
        for name in ("TensorserveDown", "TensorservePanics", "TensorserveErrors"):
            self.assertNotIn(name, firing())

    def test_prometheus_evaluates_every_alert(self):
        rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
        self.assertGreater(len(rules), 8)
        for rule in rules:
            with self.subTest(rule["alert"]):
                self.prometheus.ask("query", query=rule["expr"])
                # There is something to compare with the threshold. Of a ratio it is the divisor,
                # because the server has no failures.
                series = re.sub(r"(==|[<>]) [\d.]+\s*$", "", rule["expr"].strip())
                series = series.split(" / ")[-1]
                wait_for(partial(self.prometheus.values, series), "a value")

        def health():
            groups = self.prometheus.ask("rules")["groups"]
            return [rule["health"] for group in groups for rule in group["rules"]]

        wait_for(lambda: health() == ["ok"] * len(rules), "evaluation")

    def test_the_alerts_fire_for_a_sick_server_only(self):
        run("promtool", "check", "rules", ALERTS)
        run("promtool", "test", "rules", Path(__file__).with_name("alerts_test.yml"))

    def test_the_names_of_other_servers_arrive_in_prometheus(self):
        for name in (
            'nv_inference_request_success{model="iris",version="1"}',
            'rate(nv_inference_request_duration_us{model="iris"}[10s])',
            'nv_inference_request_failure{model="iris",reason="OTHER"}',
            'nv_inference_pending_request_count{model="iris"}',
            ':tensorflow:serving:request_count{model_name="iris",status="OK"}',
            ':tensorflow:serving:request_latency_bucket{model_name="iris",le="+Inf"}',
        ):
            with self.subTest(name):
                wait_for(partial(self.prometheus.values, name), "a value")
        (target,) = self.prometheus.ask("targets")["activeTargets"]
        self.assertEqual((target["health"], target["lastError"]), ("up", ""))

    def test_promtool_has_nothing_to_say_about_our_names(self):
        _, page = get(self.server.url + "/metrics", accept="text/plain")
        own = page[: page.index("# HELP nv_inference")]
        status, said = lint(own)
        self.assertEqual((status, said), (0, ""))
        status, said = lint("# TYPE tensorserve_odd counter\ntensorserve_odd 1\n")
        self.assertNotEqual((status, said), (0, ""))

    def test_every_metric_is_documented(self):
        _, page = get(self.server.url + "/metrics")
        families = re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE)
        names = [f"{name}_total" if kind == "counter" else name for name, kind in families]
        text = (Path(ROOT) / "docs/observability.md").read_text()
        own = [name for name in names if not name.startswith(":")]
        self.assertGreater(len(own), 30)
        self.assertEqual([name for name in own if f"`{name}`" not in text], [])


if __name__ == "__main__":
    unittest.main()
