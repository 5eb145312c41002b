"""Writes the SavedModels of tests/it/load_probe.rs next to this file.

    pip install tensorflow-cpu==2.21.0
    python3 make_models.py

Each model has one signature, `serving_default`, from the input `x` to the output `y`:

    conv1d             a convolution of [?, 64, 1]; the runtime ends the process for inputs of rank 2
    conv2d             a convolution of [?, 8, 8, 3], which the graph takes in any size
    aborts             runs the operation `Abort`
    aborts_when_empty  does so only for an input without rows
    fails_check        gives a convolution an input of rank 2, which fails a CHECK of the runtime
    loops_in_run       never returns from a run
    loops_in_load      never returns from its initialization
    takes_memory       allocates 54 GB
    overflows          calls a function that calls itself
"""

import shutil
from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

tf1 = tf.compat.v1
HERE = Path(__file__).parent


def save(name, build, shape):
    """Saves the graph that `build` makes from an input of the shape `shape`."""
    folder = HERE / name / "1"
    shutil.rmtree(folder, ignore_errors=True)
    graph = tf1.Graph()
    with graph.as_default(), tf1.Session(graph=graph) as session:
        x = tf1.placeholder(tf.float32, shape, name="x")
        y, initialize = build(x)
        signature = tf1.saved_model.build_signature_def(
            {"x": tf1.saved_model.build_tensor_info(x)},
            {"y": tf1.saved_model.build_tensor_info(y)},
            "tensorflow/serving/predict",
        )
        builder = tf1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(
            session, ["serve"], {"serving_default": signature}, main_op=initialize
        )
        builder.save()
    shutil.rmtree(folder / "variables")  # It is empty.


def conv1d(x):
    return tf.nn.conv1d(x, tf.ones([3, 1, 1]), 1, "SAME"), None


def conv2d(x):
    return tf.reduce_mean(tf.nn.conv2d(x, tf.ones([3, 3, 3, 2]), 1, "SAME"), [1, 2]), None


def aborts(x):
    abort = tf.raw_ops.Abort(error_msg="this model aborts", exit_without_error=False)
    with tf.control_dependencies([abort]):
        return x + 1.0, None


def aborts_when_empty(x):
    return tf.cond(tf.size(x) > 0, lambda: x + 1.0, lambda: aborts(x)[0]), None


def fails_check(x):
    # The rank is known only when the graph runs.
    shape = tf1.placeholder_with_default([1, -1], [None])
    y = tf.raw_ops.Conv2D(
        input=tf.reshape(x, shape), filter=tf.ones([1, 1, 1, 1]), strides=[1] * 4, padding="SAME"
    )
    return y, None


def forever(start):
    return tf.while_loop(lambda i: i > -1.0, lambda i: i * 1.0, [start])[0]


def loops_in_run(x):
    return forever(tf.abs(tf.reduce_sum(x))), None


def loops_in_load(x):
    return x + 1.0, forever(tf1.placeholder_with_default(1.0, [])).op


def takes_memory(x):
    count = tf1.placeholder_with_default(tf.constant([13_500_000_000], tf.int64), [1])
    return x + tf.reduce_max(tf.fill(count, 0.5)), None


def overflows(x):
    return tf.identity(x, "y"), None


def call_again(node):
    """Makes of a node a call of the function `again`."""
    node.op = "PartitionedCall"
    node.attr.clear()
    for name in ("Tin", "Tout"):
        node.attr[name].list.type.append(tf.float32.as_datatype_enum)
    node.attr["f"].func.name = "again"


def overflow(name):
    """Lets the output of a model come from a function that calls itself. TensorFlow cannot be asked
    to build such a graph: it follows the calls."""
    path = HERE / name / "1/saved_model.pb"
    model = SavedModel.FromString(path.read_bytes())
    graph = model.meta_graphs[0].graph_def
    again = graph.library.function.add()
    again.signature.name = "again"
    again.signature.input_arg.add(name="a", type=tf.float32.as_datatype_enum)
    again.signature.output_arg.add(name="b", type=tf.float32.as_datatype_enum)
    call_again(again.node_def.add(name="call", input=["a"]))
    again.ret["b"] = "call:output:0"
    call_again(next(node for node in graph.node if node.name == "y"))
    path.write_bytes(model.SerializeToString(deterministic=True))


save("conv1d", conv1d, [None, 64, 1])
save("conv2d", conv2d, [None, 8, 8, 3])
save("aborts", aborts, [None])
save("aborts_when_empty", aborts_when_empty, [None])
save("fails_check", fails_check, [None])
save("loops_in_run", loops_in_run, [None])
save("loops_in_load", loops_in_load, [None])
save("takes_memory", takes_memory, [None])
save("overflows", overflows, [None])
overflow("overflows")
