"""Makes the models of OpenVINO in made/ and refused/, and their outputs in expected.json.

python3 -m venv v && v/bin/pip install openvino==2026.4.1
v/bin/python make_openvino.py
"""

import json
import os
import re
import shutil

import numpy as np
import openvino as ov
from openvino import opset13 as op

HERE = os.path.dirname(os.path.abspath(__file__))
random = np.random.RandomState(7)


def parameter(name, shape, dtype=np.float32):
    made = op.parameter(shape, dtype, name=name)
    made.output(0).set_names({name})
    return made


def named(node, name):
    node.output(0).set_names({name})
    return node


def weights(*shape):
    return op.constant(np.round(random.randn(*shape).astype(np.float32), 3))


def dense():
    x = parameter("x", [-1, 4])
    hidden = op.relu(op.add(op.matmul(x, weights(4, 8), False, False), weights(8)))
    logits = op.matmul(hidden, weights(8, 3), False, False)
    return ov.Model([named(op.softmax(logits, 1), "scores")], [x], "dense")


def several():
    """Two inputs of several types, three outputs."""
    left, ids = parameter("left", [-1, 2]), parameter("ids", [-1], np.int64)
    flags = parameter("flags", [-1, 2], np.bool_)
    table = weights(5, 2)
    looked_up = op.gather(table, ids, op.constant(np.int64(0)))
    total = named(op.add(left, looked_up), "total")
    doubled = named(op.multiply(ids, op.constant(np.int64(2))), "doubled")
    chosen = named(op.select(flags, left, looked_up), "chosen")
    return ov.Model([total, doubled, chosen], [left, ids, flags], "several")


def image():
    """A picture of a fixed size."""
    x = parameter("image", [1, 3, 8, 8])
    filtered = op.convolution(x, weights(4, 3, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1])
    pooled = op.reduce_mean(filtered, op.constant(np.array([2, 3], np.int64)), False)
    return ov.Model([named(op.sigmoid(pooled), "features")], [x], "image")


def half():
    """Weights of 16 bits, as they are saved by default."""
    x = parameter("x", [-1, 3])
    return ov.Model([named(op.matmul(x, weights(3, 2), False, False), "y")], [x], "half")


def unbounded():
    """A loop that ends when a condition holds, which it never does for -1."""
    x = parameter("x", [-1, 1])
    body_x = op.parameter([-1, 1], np.float32)
    doubled = op.multiply(body_x, op.constant(np.float32(2)))
    larger = op.add(doubled, op.constant(np.float32(1)))
    largest = op.reduce_max(larger, op.constant(np.array([0, 1], np.int64)), False)
    goes_on = op.less(largest, op.constant(np.float32(100)))
    body = ov.Model([goes_on, larger], [body_x], "body")
    loop = op.loop(op.constant(np.int64(-1)), op.constant(np.bool_(True)))
    loop.set_function(body)
    loop.set_special_body_ports([-1, 0])
    loop.set_merged_input(body_x, x.output(0), larger.output(0))
    result = loop.get_iter_value(larger.output(0), -1)
    return ov.Model([named(op.relu(result), "y")], [x], "unbounded")


def stateful():
    x = parameter("x", [1, 2])
    before = op.read_value(op.constant(np.zeros((1, 2), np.float32)), "sum")
    total = op.add(x, before)
    after = op.assign(total, "sum")
    return ov.Model([op.result(named(total, "y"))], [after], [x], "stateful")


def any_rank():
    x = parameter("x", ov.PartialShape.dynamic())
    return ov.Model([named(op.relu(x), "y")], [x], "any_rank")


def texts():
    x = parameter("x", [-1], ov.Type.string)
    return ov.Model([op.result(x)], [x], "texts")


def save(model, folder, name, half=False):
    path = os.path.join(HERE, folder, f"{name}.xml")
    ov.save_model(model, path, compress_to_fp16=half)
    return path


INPUTS = {
    "dense": {"x": np.array([[5.1, 3.5, 1.4, 0.2], [1, 2, 3, 4]], np.float32)},
    "several": {
        "left": np.array([[1, 2], [3, 4], [5, 6]], np.float32),
        "ids": np.array([0, 4, 2], np.int64),
        "flags": np.array([[True, False], [False, True], [True, True]]),
    },
    "image": {"image": np.round(random.rand(1, 3, 8, 8), 3).astype(np.float32)},
    "half": {"x": np.array([[1, 2, 3]], np.float32)},
    "unbounded": {"x": np.array([[3], [1]], np.float32)},
    "nameless": {"x": np.array([[5.1, 3.5, 1.4, 0.2]], np.float32)},
}


def main():
    paths = {
        "dense": save(dense(), "made", "dense"),
        "several": save(several(), "made", "several"),
        "image": save(image(), "made", "image"),
        "half": save(half(), "made", "half", half=True),
        "unbounded": save(unbounded(), "made", "unbounded"),
    }
    # As tools before 2022 have written: without names of tensors.
    with open(paths["dense"]) as file:
        text = re.sub(r' (output_)?names="[^"]*"', "", file.read())
    paths["nameless"] = os.path.join(HERE, "made", "nameless.xml")
    with open(paths["nameless"], "w") as file:
        file.write(re.sub(r'name="Result_\d+"', 'name="scores"', text))
    shutil.copy(paths["dense"].replace(".xml", ".bin"), paths["nameless"].replace(".xml", ".bin"))
    save(stateful(), "refused", "stateful")
    save(any_rank(), "refused", "any_rank")
    save(texts(), "refused", "texts")
    core, expected = ov.Core(), {}
    settings = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
    for name, inputs in INPUTS.items():
        model = core.compile_model(paths[name], "CPU", settings)
        values = list(inputs.values()) if name == "nameless" else inputs
        outputs = model(values)
        expected[name] = {
            "inputs": {alias: value.tolist() for alias, value in inputs.items()},
            "outputs": {
                "scores" if name == "nameless" else port.get_any_name(): value.tolist()
                for port, value in outputs.items()
            },
        }
    with open(os.path.join(HERE, "expected.json"), "w") as file:
        json.dump(expected, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
