"""The files of deploy/ fit the schemas of those who read them, and agree with each other."""

import copy
import json
import re
import shutil
import subprocess
import tempfile
import tomllib
import unittest
from pathlib import Path

import jsonschema
import yaml

import manifests
from manifests import (
    DEPLOY,
    HELM_VALUES,
    kustomized,
    one,
    options,
    program,
    rendered,
    run,
    templated,
)

RENDERED = list(rendered())


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text).group(1))


def changed(document, path, value):
    """A copy with another value, at a path such as `spec/containers/0/image`."""
    copied = copy.deepcopy(document)
    *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    place = copied
    for key in parents:
        place = place[key]
    place[last] = value
    return copied


class Schemas(unittest.TestCase):
    def test_the_apis_accept_the_documents(self):
        self.assertGreater(len(RENDERED), 40)
        for name, document in RENDERED:
            with self.subTest(f"{name}: {document['kind']} {document['metadata']['name']}"):
                manifests.validate(document)

    def test_the_apis_refuse_unknown_fields_and_wrong_types(self):
        kinds = {}
        for _, document in RENDERED:
            kinds.setdefault(document["kind"], document)
        wrong = {
            "ClusterServingRuntime": [
                ("spec/supportedModelFormats/0/autoselect", True),
                ("spec/supportedModelFormats/0/priority", "4"),
                ("spec/containers/0/startupProbe/https", "/"),
                ("spec/containers/0/securityContext/runAsNonRoot", "yes"),
                ("spec/protocolVersion", "v2"),
            ],
            "ServingRuntime": [("spec/containers/0/readOnlyRootFilesystem", True)],
            "InferenceService": [
                ("spec/predictor/model/storageURI", "s3://bucket"),
                ("spec/predictor/maxReplicas", "ten"),
            ],
            "ScaledObject": [("spec/triggers/0/metadatas", {}), ("spec/maxReplicas", 1)],
            "PodMonitor": [
                ("spec/podMetricsEndpoints/0/ports", "http"),
                ("spec/podMetricsEndpoints/0/interval", "often"),
            ],
            "PrometheusRule": [
                ("spec/groups/0/rules/0/fore", "2m"),
                ("spec/groups/0/rules/0/for", "often"),
            ],
            "Deployment": [("spec/template/spec/containers/0/probe", {}), ("spec/replica", 2)],
            "Service": [("spec/ports/0/port", "http")],
            "NetworkPolicy": [("spec/ingress/0/form", [])],
            "PodDisruptionBudget": [("spec/maxUnavailables", 1)],
            "HorizontalPodAutoscaler": [("spec/maxReplicas", "ten")],
            "ConfigMap": [("data", [])],
            "ServiceAccount": [("automountServiceAccountToken", "no")],
            "Job": [("specs", {})],
            "Pod": [("spec/container", [])],
        }
        self.assertEqual(set(wrong), set(kinds), "each kind has something wrong")
        for kind, changes in wrong.items():
            for path, value in changes:
                with self.subTest(f"{kind} {path}"), self.assertRaises(ValueError):
                    manifests.validate(changed(kinds[kind], path, value))

    def test_compose_accepts_the_files(self):
        schema = json.loads((manifests.SCHEMAS / "compose.json").read_text())
        validator = jsonschema.Draft202012Validator(schema)
        files = [
            DEPLOY / "compose/compose.yaml",
            Path(manifests.ROOT, "examples/containers/compose.yaml"),
        ]
        for file in files:
            with self.subTest(file.name):
                document = yaml.safe_load(file.read_text())
                validator.validate(document)
                service = next(iter(document["services"]))
                for path, value in (("imagine", "a"), ("read_only", []), ("ports", "8500")):
                    wrong = changed(document, f"services/{service}/{path}", value)
                    self.assertFalse(validator.is_valid(wrong), path)

    def test_the_mounted_files_of_compose_exist(self):
        folder = DEPLOY / "compose"
        services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
        mounts = [mount for service in services.values() for mount in service["volumes"]]
        sources = [mount.split(":")[0] for mount in mounts if mount.startswith(".")]
        self.assertEqual(len(sources), 5)
        for source in sources:
            self.assertTrue((folder / source).exists(), source)
        (provider,) = yaml.safe_load((folder / "grafana/dashboards/tensorserve.yaml").read_text())[
            "providers"
        ]
        self.assertIn(f"../grafana:{provider['options']['path']}:ro", mounts)
        (source,) = yaml.safe_load((folder / "grafana/datasources/prometheus.yaml").read_text())[
            "datasources"
        ]
        self.assertEqual(source["url"], "http://prometheus:9090")
        (rules,) = yaml.safe_load((folder / "prometheus.yml").read_text())["rule_files"]
        self.assertIn(f"../prometheus:{Path(rules).parent}:ro", mounts)

    def test_prometheus_accepts_its_file(self):
        file = DEPLOY / "compose/prometheus.yml"
        run("promtool", "check", "config", file)
        wrong = file.read_text().replace("metrics_path", "metrics_paths")
        command = [program("promtool"), "check", "config", "/dev/stdin"]
        ended = subprocess.run(command, input=wrong, text=True, capture_output=True, check=False)
        self.assertEqual(ended.returncode, 1, ended.stdout)


class Contents(unittest.TestCase):
    def test_pods_have_the_security_of_the_restricted_standard(self):
        checked = 0
        for name, document in RENDERED:
            for pod in manifests.pods(document):
                for container in pod["containers"]:
                    with self.subTest(f"{name}: {document['kind']}"):
                        own = container["securityContext"]
                        whole = pod.get("securityContext", {}) | own
                        self.assertIs(own["allowPrivilegeEscalation"], False)
                        self.assertIs(own["readOnlyRootFilesystem"], True)
                        self.assertEqual(own["capabilities"]["drop"], ["ALL"])
                        self.assertIs(whole["runAsNonRoot"], True)
                        self.assertEqual(whole["seccompProfile"]["type"], "RuntimeDefault")
                        self.assertIn("memory", container["resources"]["limits"])
                        mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
                        volumes = {volume["name"] for volume in pod.get("volumes", [])}
                        self.assertEqual(mounts, volumes)
                        checked += 1
        self.assertGreater(checked, 15)

    def test_pods_are_given_the_time_to_stop(self):
        maps = {name: each for name, each in RENDERED if each["kind"] == "ConfigMap"}
        self.assertGreater(len(maps), 5)
        deployments = {name: each for name, each in RENDERED if each["kind"] == "Deployment"}
        for name, document in maps.items():
            settings = tomllib.loads(document["data"]["tensorserve.toml"])
            needed = seconds(settings["shutdown_delay"]) + seconds(settings["shutdown_timeout"])
            pod = deployments[name]["spec"]["template"]["spec"]
            self.assertGreaterEqual(pod["terminationGracePeriodSeconds"], needed + 5)
            self.assertGreaterEqual(seconds(settings["shutdown_delay"]), 5)

    def test_the_runtimes_of_kserve_stop_in_time(self):
        for _, document in RENDERED:
            if document["kind"].endswith("ServingRuntime"):
                (container,) = document["spec"]["containers"]
                (delay,) = [each for each in container["args"] if "shutdown-delay" in each]
                variables = {each["name"]: each["value"] for each in container["env"]}
                needed = seconds(delay.split("=")[1])
                needed += seconds(variables["TENSORSERVE_SHUTDOWN_TIMEOUT"])
                # The default of terminationGracePeriodSeconds.
                self.assertLessEqual(needed, 30 - 5)

    def test_the_runtimes_of_kserve_are_the_same_but_for_their_kind(self):
        files = [
            DEPLOY / f"kserve/{name}.yaml" for name in ("servingruntime", "clusterservingruntime")
        ]
        one_namespace, cluster = [yaml.safe_load(file.read_text()) for file in files]
        self.assertEqual(one_namespace | {"kind": cluster["kind"]}, cluster)

    def test_the_priorities_are_those_that_kserve_accepts(self):
        runtimes = kustomized(DEPLOY / "kserve")
        # KServe 0.20's own, of formats that tensorserve has.
        taken = {"tensorflow": {1, 2, 3}, "onnx": {1, 2}, "sklearn": {1, 2}, "xgboost": {1, 2}}
        taken["pmml"] = {1}
        formats = set()
        for runtime in runtimes:
            spec = runtime["spec"]
            mine = {}
            for each in spec["supportedModelFormats"]:
                # One format has one priority, in all of its versions.
                self.assertEqual(mine.setdefault(each["name"], each["priority"]), each["priority"])
                formats.add((each["name"], each["version"]))
            for name, priority in mine.items():
                self.assertNotIn(priority, taken[name])
                taken[name].add(priority)
        services = [each for _, each in RENDERED if each["kind"] == "InferenceService"]
        self.assertEqual(len(services), 3)
        for service in services:
            model = service["spec"]["predictor"]["model"]
            runtime = one(runtimes, "ClusterServingRuntime", model["runtime"])
            wanted = model["modelFormat"]
            self.assertIn((wanted["name"], wanted["version"]), formats)
            self.assertIn(model["protocolVersion"], runtime["spec"]["protocolVersions"])

    def test_selectors_select_the_pods(self):
        documents = {}
        for name, document in RENDERED:
            documents.setdefault(name, []).append(document)
        checked = 0
        for name, group in documents.items():
            deployments = [each for each in group if each["kind"] == "Deployment"]
            if not deployments or len(group) == 1:
                continue
            (deployment,) = deployments
            labels = deployment["spec"]["template"]["metadata"]["labels"]
            ports = deployment["spec"]["template"]["spec"]["containers"][0]["ports"]
            names = {port["name"] for port in ports}
            for document in group:
                with self.subTest(f"{name}: {document['kind']}"):
                    spec = document.get("spec", {})
                    selector = spec.get("podSelector") or spec.get("selector")
                    if selector:
                        selector = selector.get("matchLabels", selector)
                        self.assertLessEqual(selector.items(), labels.items())
                        checked += 1
                    if "scaleTargetRef" in spec:
                        self.assertEqual(
                            spec["scaleTargetRef"]["name"], deployment["metadata"]["name"]
                        )
                        self.assertNotIn("replicas", deployment["spec"])
                    for port in spec.get("ports", []):
                        self.assertIn(port["targetPort"], names)
                    for rule in spec.get("ingress", []):
                        self.assertLessEqual({port["port"] for port in rule["ports"]}, names)
                    for endpoint in spec.get("podMetricsEndpoints", []):
                        self.assertIn(endpoint["port"], names)
        self.assertGreater(checked, 20)

    def test_one_autoscaler_sets_the_number_of_pods(self):
        for folder, kinds in (
            ("server", {"HorizontalPodAutoscaler"}),
            ("keda", {"ScaledObject"}),
            ("gpu", {"HorizontalPodAutoscaler"}),
        ):
            found = {each["kind"] for each in kustomized(DEPLOY / "kubernetes" / folder)}
            self.assertEqual(found & {"HorizontalPodAutoscaler", "ScaledObject"}, kinds)

    def test_a_gpu_is_asked_for(self):
        for documents in (kustomized(DEPLOY / "kubernetes/gpu"), templated(HELM_VALUES["gpu"])):
            pod = one(documents, "Deployment")["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            self.assertEqual(container["resources"]["limits"]["nvidia.com/gpu"], 1)
            self.assertEqual(container["resources"]["limits"]["memory"], "4Gi")
            self.assertTrue(container["image"].endswith("tensorserve:gpu"))
            self.assertIn("nvidia.com/gpu", [each["key"] for each in pod["tolerations"]])


class Chart(unittest.TestCase):
    def test_helm_finds_nothing_wrong(self):
        for name, values in HELM_VALUES.items():
            with self.subTest(name):
                run(
                    "helm",
                    "lint",
                    "--strict",
                    manifests.CHART,
                    *options([*manifests.MODEL, *values]),
                )
        run("helm", "lint", "--strict", manifests.CHART)

    def test_a_copy_of_the_chart_is_complete(self):
        enabled = HELM_VALUES["keda"]
        with tempfile.TemporaryDirectory() as folder:
            # As `git archive`, `cp -P` and a download of the directory do: links stay links.
            copy_of_chart = Path(folder, "tensorserve")
            shutil.copytree(manifests.CHART, copy_of_chart, symlinks=True)
            self.assertEqual([file for file in copy_of_chart.rglob("*") if file.is_symlink()], [])
            self.assertEqual(templated(enabled, chart=copy_of_chart), templated(enabled))

    def test_no_model_is_served_unless_it_is_named(self):
        with self.assertRaises(subprocess.CalledProcessError) as raised:
            templated([], model=[])
        self.assertIn("models: there is none to serve", raised.exception.stderr)
        values = (manifests.CHART / "values.yaml").read_text()
        self.assertEqual(yaml.safe_load(values)["models"], [])

    def test_the_schema_refuses_wrong_values(self):
        for wrong in (
            "imagine.tag=cpu",
            "image.pullPolicy=Sometimes",
            "replicaCount=many",
            "service.httpPort=100000",
            "models[0].path=",
            "models[0].pth=/models/a",
            "models[0].max_batch_siez=8",
            "config.Batching=on",
            "config.log_levl=warn",
            '--set-json=config.log_level=["warn"]',
            "keda.requestsInProgress=0",
            "podMonitor.label.release=a",
        ):
            with self.subTest(wrong), self.assertRaises(subprocess.CalledProcessError) as raised:
                templated([wrong])
            self.assertIn("schema", raised.exception.stderr)
        with self.assertRaises(subprocess.CalledProcessError) as raised:
            templated(["models[0].name=a"], model=[])
        self.assertIn("path", raised.exception.stderr)

    def test_values_that_contradict_each_other_are_refused(self):
        for wrong, text in (
            ("keda.enabled=true", "disable one"),
            ("config.http_port=80", "config.http_port: this setting follows"),
            ("config.models=a", "write the models under"),
        ):
            with self.subTest(wrong), self.assertRaises(subprocess.CalledProcessError) as raised:
                templated([wrong])
            self.assertIn(text, raised.exception.stderr)

    def test_values_become_settings(self):
        (data,) = one(templated(HELM_VALUES["settings"]), "ConfigMap")["data"].values()
        settings = tomllib.loads(data)
        self.assertEqual(
            settings["models"],
            [
                {
                    "name": "ranker",
                    "path": "/models/ranker",
                    "max_batch_size": 128,
                    "allowed_batch_sizes": [8, 16, 128],
                    "batching": "on",
                    "labels": {"stable": 3},
                },
                {"path": "s3://bucket/tagger"},
            ],
        )
        self.assertIs(settings["warm_up"], False)
        self.assertEqual(settings["gpu_memory_fraction"], 0.5)
        self.assertEqual(settings["max_connections"], 1000000)
        self.assertEqual(settings["memory_limit"], "70%")

    def test_a_changed_setting_replaces_the_pods(self):
        sums = set()
        for values in ([], ["config.warm_up=false"]):
            template = one(templated(values), "Deployment")["spec"]["template"]
            sums.add(template["metadata"]["annotations"]["checksum/config"])
        self.assertEqual(len(sums), 2)

    def test_the_alerts_of_the_chart_are_those_of_prometheus(self):
        rule = one(templated(["prometheusRule.enabled=true"]), "PrometheusRule")
        alerts = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())
        self.assertEqual(rule["spec"], alerts)
        copied = (manifests.CHART / "alerts.yml").read_text()
        self.assertEqual(copied, (DEPLOY / "prometheus/alerts.yml").read_text())

    def test_every_value_is_in_the_schema_and_used(self):
        values = yaml.safe_load((manifests.CHART / "values.yaml").read_text())
        schema = json.loads((manifests.CHART / "values.schema.json").read_text())
        self.assertEqual(set(values) | {"global"}, set(schema["properties"]))
        templates = "".join(
            file.read_text()
            for file in (manifests.CHART / "templates").rglob("*")
            if file.is_file()
        )
        for name, value in values.items():
            known = schema["properties"][name].get("properties")
            if name == "config":
                # Of the settings of the server, few have a value here.
                self.assertLessEqual(set(value), set(known))
            elif isinstance(value, dict) and known is not None:
                self.assertEqual(set(value), set(known), name)
                for part in value:
                    if name != "podMonitor" or part != "bearerTokenSecret":
                        self.assertIn(f".Values.{name}.{part}", templates)
            self.assertIn(f".Values.{name}", templates)


if __name__ == "__main__":
    unittest.main()
