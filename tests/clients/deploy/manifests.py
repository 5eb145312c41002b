"""The documents of deploy/, what renders them, and the schemas that they must fit."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import ROOT

DEPLOY = Path(ROOT) / "deploy"
CHART = DEPLOY / "helm/tensorserve"
KUBERNETES = "1.33"
SCHEMAS = Path(__file__).parent / "schemas"
# The directories that `kubectl apply -k` takes.
KUSTOMIZATIONS = sorted(file.parent for file in DEPLOY.glob("**/kustomization.yaml"))
# A model, which the chart requires.
MODEL = ["models[0].name=model", "models[0].path=s3://bucket/models/model"]
# What `helm template` gets, beside the defaults and the model: for --set, or whole options.
HELM_VALUES = {
    "defaults": [],
    "keda": [
        "autoscaling.enabled=false",
        "keda.enabled=true",
        "podMonitor.enabled=true",
        "podMonitor.labels.release=kube-prometheus-stack",
        "prometheusRule.enabled=true",
        "prometheusRule.labels.release=kube-prometheus-stack",
        "keda.requestsQueued=0",
    ],
    "gpu": [
        "gpu.enabled=true",
        "image.tag=gpu",
        "image.repository=registry.example.com/tensorserve",
        "cache.existingClaim=models",
        "tolerations[0].key=batch",
        "tolerations[0].operator=Exists",
    ],
    "secured": [
        "auth.existingSecret=users",
        "tls.existingSecret=certificate",
        "podMonitor.enabled=true",
        "podMonitor.bearerTokenSecret.name=prometheus",
        "serviceAccount.annotations.eks\\.amazonaws\\.com/role-arn=arn:aws:iam::1:role/models",
        "imagePullSecrets[0].name=registry",
    ],
    "small": [
        "autoscaling.enabled=false",
        "replicaCount=1",
        "networkPolicy.enabled=false",
        "podDisruptionBudget.enabled=false",
        "serviceAccount.create=false",
        "service.headless=true",
        "fullnameOverride=ranker",
    ],
    "settings": [
        "models[0].name=ranker",
        "models[0].path=/models/ranker",
        "models[0].max_batch_size=128",
        "models[0].allowed_batch_sizes={8,16,128}",
        "models[0].batching=on",
        "models[0].labels.stable=3",
        "models[1].path=s3://bucket/tagger",
        "config.warm_up=false",
        "--set-json=config.gpu_memory_fraction=0.5",
        "config.max_connections=1000000",
        "extraArgs={--log-level=warn}",
        "extraEnv[0].name=AWS_REGION",
        "extraEnv[0].value=eu-central-1",
        "extraVolumes[0].name=models",
        "extraVolumes[0].persistentVolumeClaim.claimName=models",
        "extraVolumeMounts[0].name=models",
        "extraVolumeMounts[0].mountPath=/models",
        "keda.triggers[0].type=cpu",
    ],
}


def program(name):
    """A program that tools.py has installed, or one in PATH."""
    home = os.environ.get("CLIENTS_HOME", os.path.join(ROOT, "target/clients"))
    installed = Path(home) / "deploy/bin" / name
    found = str(installed) if installed.exists() else shutil.which(name)
    if not found:
        raise FileNotFoundError(f"{name} is neither in {installed} nor in PATH")
    return found


def run(name, *arguments):
    """What a program prints, or `CalledProcessError`."""
    command = [program(name), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kustomized(folder):
    return [each for each in yaml.safe_load_all(run("kubectl", "kustomize", folder)) if each]


def options(values):
    return [value if value.startswith("--") else f"--set={value}" for value in values]


def templated(values, name="release", chart=CHART, model=MODEL):
    """The documents of the chart, with a model, unless `values` have others."""
    given = options([*model, *values])
    text = run("helm", "template", name, chart, "--namespace=models", *given)
    return [each for each in yaml.safe_load_all(text) if each]


def plain():
    """All documents that `kubectl apply -f` takes, with their files."""
    for folder in ("kubernetes", "kserve"):
        for file in sorted((DEPLOY / folder).glob("**/*.yaml")):
            if file.name != "kustomization.yaml":
                for document in yaml.safe_load_all(file.read_text()):
                    yield str(file.relative_to(DEPLOY)), document


def rendered():
    """All documents, also of kustomizations and of the chart, with a name of where they are from."""
    yield from plain()
    for folder in KUSTOMIZATIONS:
        for document in kustomized(folder):
            yield f"{folder.relative_to(DEPLOY)}/kustomization.yaml", document
    for name, values in HELM_VALUES.items():
        for document in templated(values):
            yield f"helm, {name}", document


def one(documents, kind, name=None):
    """The document of a kind."""
    (found,) = [
        each
        for each in documents
        if each["kind"] == kind and name in (None, each["metadata"]["name"])
    ]
    return found


def custom_resources():
    """The validators of custom resources, by API version and kind."""
    found = {}
    for file in ("kserve.json", "keda.json", "prometheus-operator.json"):
        schema = json.loads((SCHEMAS / file).read_text())
        for name, kind in schema["kinds"].items():
            whole = {"$schema": schema["$schema"], "$defs": schema["$defs"], **kind}
            found[name] = jsonschema.Draft202012Validator(whole)
    return found


CUSTOM_RESOURCES = custom_resources()


def validate(document):
    """Raises `ValueError` if the API would refuse the document, also for unknown fields."""
    validator = CUSTOM_RESOURCES.get(f"{document['apiVersion']}/{document['kind']}")
    if validator:
        errors = [
            f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)
        ]
        if errors:
            raise ValueError("\n".join(errors))
        return
    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise ValueError(str(error)) from error


def pods(document):
    """The pod template of a document, if it has one."""
    spec = document.get("spec") or {}
    if document["kind"] == "Pod":
        return [spec]
    if "template" in spec:
        return [spec["template"]["spec"]]
    return [spec] if "containers" in spec else []
