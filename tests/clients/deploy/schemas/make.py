"""Makes the JSON schemas of this folder from the custom resource definitions of the projects.

    make.py KSERVE KEDA PROMETHEUS_OPERATOR COMPOSE_SPEC

The arguments are git clones; the tags are below. Descriptions are dropped, equal parts are written
once (`$defs`), and properties that a definition does not name are refused, as `kubectl apply` does.
Rules in CEL (`x-kubernetes-validations`) are not part of the result.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import yaml

KSERVE, KEDA = "v0.20.0", "v2.20.2"
PROMETHEUS_OPERATOR = "v0.93.0"
COMPOSE_SPEC = "170098ba07d9f53c383a41bfd4c5166b0a4529a6"
# Places that hold one schema for each name, not keywords of a schema.
NAMED = ("properties", "patternProperties", "definitions", "$defs")
# Parts that are smaller than this are repeated.
SHARED_BYTES = 200


def read(clone, tag, path):
    command = ["git", "-C", clone, "show", f"{tag}:{path}"]
    return yaml.safe_load(subprocess.run(command, check=True, capture_output=True).stdout)


def plain(schema, strict):
    """The schema without texts and extensions, in the form of JSON Schema."""
    if not isinstance(schema, dict):
        return schema
    result = {}
    for key, value in schema.items():
        if key in ("description", "default", "title", "example") or key.startswith("x-"):
            continue
        if key in NAMED:
            result[key] = {name: plain(each, strict) for name, each in value.items()}
        elif isinstance(value, list):
            result[key] = [plain(each, strict) for each in value]
        else:
            result[key] = plain(value, strict)
    if schema.get("x-kubernetes-int-or-string"):
        result.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields")
    if strict and "properties" in result and not open_ended:
        result.setdefault("additionalProperties", False)
    if result.pop("nullable", False) and "type" in result:
        result["type"] = [result["type"], "null"]
    # Names of Go's formats, which JSON Schema does not have.
    result.pop("format", None)
    return result


def share(schema, parts):
    """Replaces large objects by references to `parts`, the same for equal ones."""
    if not isinstance(schema, dict):
        return schema
    result = {}
    for key, value in schema.items():
        if key in NAMED:
            result[key] = {name: share(each, parts) for name, each in value.items()}
        elif isinstance(value, list):
            result[key] = [share(each, parts) for each in value]
        else:
            result[key] = share(value, parts)
    text = json.dumps(result, sort_keys=True)
    if "type" not in result or len(text) < SHARED_BYTES:
        return result
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    parts[name] = result
    return {"$ref": f"#/$defs/{name}"}


def write(name, source, schema):
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": f"From {source}. Apache-2.0. Made by make.py.",
    } | schema
    text = json.dumps(schema, separators=(",", ":"), sort_keys=True)
    Path(__file__).with_name(name).write_text(text + "\n")


def resources(definitions):
    """One schema for each kind: `{"serving.kserve.io/v1alpha1/ServingRuntime": …}`."""
    kinds, parts = {}, {}
    for definition in definitions:
        spec = definition["spec"]
        for version in spec["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            schema["properties"]["metadata"] = {"type": "object"}
            schema["properties"].pop("status", None)
            name = f"{spec['group']}/{version['name']}/{spec['names']['kind']}"
            kinds[name] = share(plain(schema, strict=True), parts)
    return {"kinds": kinds, "$defs": parts}


def main():
    kserve, keda, prometheus_operator, compose_spec = sys.argv[1:]
    crd = "config/crd/full/serving.kserve.io_{}.yaml"
    names = ("servingruntimes", "clusterservingruntimes", "inferenceservices")
    found = [read(kserve, KSERVE, crd.format(name)) for name in names]
    write("kserve.json", f"github.com/kserve/kserve {KSERVE}", resources(found))
    found = read(keda, KEDA, "config/crd/bases/keda.sh_scaledobjects.yaml")
    write("keda.json", f"github.com/kedacore/keda {KEDA}", resources([found]))
    crd = "example/prometheus-operator-crd/monitoring.coreos.com_{}.yaml"
    names = ("podmonitors", "prometheusrules")
    found = [read(prometheus_operator, PROMETHEUS_OPERATOR, crd.format(name)) for name in names]
    source = f"github.com/prometheus-operator/prometheus-operator {PROMETHEUS_OPERATOR}"
    write("prometheus-operator.json", source, resources(found))
    found = read(compose_spec, COMPOSE_SPEC, "schema/compose-spec.json")
    source = f"github.com/compose-spec/compose-spec {COMPOSE_SPEC}"
    write("compose.json", source, plain(found, strict=False))


if __name__ == "__main__":
    main()
