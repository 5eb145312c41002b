"""Writes models whose runs take as long as their input says: `n` iterations of a loop. 2**60 never ends.

    pip install onnx==1.19.1 tensorflow==2.21.0
    python tests/data/platforms/endless/make_endless.py onnx tensorflow pytorch

Each returns the sum of 0, 1, … n - 1, but `idle.onnx`, which returns 0.
"""

import os
import shutil
import sys
import zipfile

FOLDER = os.path.dirname(os.path.abspath(__file__))


def onnx():
    """`Loop` of ONNX, and one whose body has nothing to compute."""
    from onnx import TensorProto, checker, helper, save

    def value(name, kind):
        return helper.make_tensor_value_info(name, kind, [])

    def loop(name, nodes, result):
        inputs = [
            value("i", TensorProto.INT64),
            value("go", TensorProto.BOOL),
            value("sum", TensorProto.INT64),
        ]
        outputs = [value("on", TensorProto.BOOL), value(result, TensorProto.INT64)]
        body = helper.make_graph(
            [helper.make_node("Identity", ["go"], ["on"]), *nodes], "body", inputs, outputs
        )
        zero = helper.make_tensor("zero", TensorProto.INT64, [], [0])
        node = helper.make_node("Loop", ["n", "", "zero"], ["total"], body=body)
        graph = helper.make_graph(
            [node],
            name,
            [value("n", TensorProto.INT64)],
            [value("total", TensorProto.INT64)],
            [zero],
        )
        opset = [helper.make_opsetid("", 17)]
        model = helper.make_model(
            graph, opset_imports=opset, ir_version=8, producer_name="make_endless"
        )
        checker.check_model(model)
        save(model, os.path.join(FOLDER, name + ".onnx"))

    loop("adding", [helper.make_node("Add", ["sum", "i"], ["next"])], "next")
    loop("idle", [helper.make_node("Identity", ["sum"], ["next"])], "next")


def tensorflow():
    """`tf.while_loop`, as a SavedModel of TensorFlow 2 and as a model of TensorFlow Lite."""
    import tensorflow as tf

    class Adding(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([], tf.int64, name="n")])
        def add(self, n):
            def body(i, total):
                return i + 1, total + i

            zero = tf.constant(0, tf.int64)
            _, total = tf.while_loop(lambda i, _: i < n, body, [zero, zero])
            return {"total": total}

    module = Adding()
    folder = os.path.join(FOLDER, "saved_model")
    shutil.rmtree(folder, ignore_errors=True)
    tf.saved_model.save(module, folder, signatures=module.add)
    for unneeded in ["fingerprint.pb", "variables", "assets"]:
        path = os.path.join(folder, unneeded)
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    function = module.add.get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], module)
    with open(os.path.join(FOLDER, "adding.tflite"), "wb") as file:
        file.write(converter.convert())


MODULE = """class Adding(Module):
  __parameters__ = []
  __buffers__ = []
  training : bool
  def forward(self: __torch__.Adding,
    n: Tensor) -> Tensor:
    count = int(n)
    total = 0
    i = 0
    _0 = torch.lt(0, count)
    while _0:
      total0 = torch.add(total, i)
      i0 = torch.add(i, 1)
      _0, total, i = torch.lt(i0, count), total0, i0
    return torch.tensor(total)
"""


def pytorch():
    """`while` of TorchScript, in the archive that `torch.jit.save` would write."""
    module = b"c__torch__\nAdding\n)\x81}X\x08\x00\x00\x00training\x89sb."
    files = {
        "data.pkl": b"\x80\x02" + module,
        "code/__torch__.py": MODULE.encode(),
        "constants.pkl": b"\x80\x02).",
        "version": b"3\n",
        "byteorder": b"little",
    }
    with zipfile.ZipFile(os.path.join(FOLDER, "adding.pt"), "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo("adding/" + name), content)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        {"onnx": onnx, "tensorflow": tensorflow, "pytorch": pytorch}[name]()
