"""What JSON Schema cannot say of the Open Inference Protocol, for Schemathesis.

Schemathesis draws requests from /openapi.json: valid ones, and ones with a mistake. The names of models are
those that are served, and valid requests for inference are made consistent, which no schema can require: as
many elements as the shape says, lists that are not nested, base64, the length of the document in the header.
All else in them stays as it was drawn. Requests with a mistake keep it.
"""

import base64
import itertools
import json
import math
import os
import struct

import schemathesis

# The served models, by their names in paths; SPARE alone is loaded and unloaded.
SERVED = json.loads(os.environ["SCHEMA_TEST_MODELS"])
SPARE = "spare"
LENGTH = "Inference-Header-Content-Length"
# Twice this is still a number of 32 bits.
LARGE = 1e38
# Numbers as raw bytes, in the notation of `struct`.
FORMATS = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "<H",
    "UINT32": "<I",
    "UINT64": "<Q",
    "INT8": "b",
    "INT16": "<h",
    "INT32": "<i",
    "INT64": "<q",
    "FP32": "<f",
    "FP64": "<d",
}


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    """Names models that are served in about two of three requests."""
    name = (path_parameters or {}).get("model")
    if not isinstance(name, str):
        return path_parameters
    kind = sum(name.encode("utf-8", "replace"))
    if kind % 3 < 2:
        names = [SPARE] if "/repository/" in context.operation.path else SERVED
        path_parameters["model"] = names[kind % len(names)]
    if "version" in path_parameters and kind % 2:
        path_parameters["version"] = "1"
    return path_parameters


def is_positive(case):
    return case.meta is not None and case.meta.generation.mode.is_positive


@schemathesis.hook
def before_call(context, case, kwargs):  # noqa: ARG001 - Schemathesis passes them by these names
    if case.method != "POST" or not case.path.endswith("/infer"):
        return
    headers = dict(case.headers or {})
    # It belongs to the bytes of a body. With 0 any body is right, as the raw bytes of a tensor, and with
    # another number the request would be refused for that, and not for its mistake.
    if str(headers.get(LENGTH, "")).isdecimal():
        del headers[LENGTH]
    if not is_positive(case):
        case.headers = headers
        return
    inputs = declared_inputs(case)
    if case.media_type == "application/octet-stream":
        if inputs:
            document, raw = binary(inputs, case.body if isinstance(case.body, bytes) else b"")
            headers[LENGTH] = str(len(document))
            case.body = document + raw
    elif isinstance(case.body, dict):
        case.body = consistent(case.body, inputs)
    case.headers = headers


def declared_inputs(case):
    """The inputs of the model of a path, with their shapes; none for a path of any model."""
    if "{model}" in case.path:
        return {}
    content = case.operation.definition.raw["requestBody"]["content"]["application/json"]
    found = {}
    for each in content["schema"]["properties"]["inputs"]["items"]["anyOf"]:
        properties = each["properties"]
        name = properties["name"]["const"]
        found[name] = properties["datatype"]["const"], properties["shape"]["x-shape"]
    return found


def fitting(shape, count):
    """The shape with sizes for about `count` elements, at most two rows."""
    rows = min(count, 2)
    sizes = itertools.chain([rows], itertools.repeat(1))
    return [next(sizes) if size < 0 else size for size in shape]


def consistent(body, declared):
    """A request for inference whose shapes, data and outputs agree."""
    body = with_whole_numbers(dict(body), "parameters")
    rows = None
    inputs = []
    for drawn in body.get("inputs", []):
        given = with_whole_numbers(dict(drawn), "parameters")
        if "data" in given:
            kind = given["datatype"]
            data = [element(value, kind) for value in given["data"] if not isinstance(value, list)]
            if given["name"] in declared:
                rows = len(data) if rows is None else rows
                shape = fitting(declared[given["name"]][1], rows)
            else:
                shape = [len(data)]
            count = math.prod(shape)
            filling = data or [{"BOOL": False, "BYTES": ""}.get(kind, 0)]
            given["data"] = list(itertools.islice(itertools.cycle(filling), count))
            given["shape"] = shape
        inputs.append(given)
    body["inputs"] = inputs
    if isinstance(body.get("outputs"), list):
        outputs = {each["name"]: dict(each) for each in body["outputs"]}
        body["outputs"] = [with_whole_numbers(each, "parameters") for each in outputs.values()]
    return body


def with_whole_numbers(members, name):
    """The members, with the whole numbers in the object `name` as clients write them."""
    if isinstance(members.get(name), dict):
        members[name] = {key: whole(value) for key, value in members[name].items()}
    return members


def whole(value):
    """To JSON Schema 2.0 is an integer, to the protocol's servers it is not."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def element(value, datatype):
    """An element of the data of an input."""
    if isinstance(value, dict):
        text = value["b64"].encode("utf-8", "replace")
        return {"b64": base64.b64encode(text).decode()}
    if datatype == "FP32":
        # JSON has no infinity, which the server would write in the response.
        return max(-LARGE, min(value, LARGE))
    return value if datatype == "FP64" else whole(value)


def binary(declared, drawn):
    """The document and the raw bytes of a request whose numbers are from the bytes that were drawn."""
    source = itertools.cycle(drawn or b"\x00")
    inputs, raw = [], b""
    for name, (datatype, sizes) in declared.items():
        shape = fitting(sizes, len(drawn))
        if datatype == "BYTES":
            elements = [struct.pack("<IB", 1, next(source) % 128) for _ in range(math.prod(shape))]
        else:
            form = FORMATS[datatype]
            elements = [struct.pack(form, next(source) % 128) for _ in range(math.prod(shape))]
        content = b"".join(elements)
        parameters = {"binary_data_size": len(content)}
        given = {"name": name, "datatype": datatype, "shape": shape, "parameters": parameters}
        inputs.append(given)
        raw += content
    return json.dumps({"inputs": inputs}).encode(), raw
