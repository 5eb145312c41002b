"""Writes models in the forms that TensorFlow 1 had: a frozen graph, and SavedModels whose main file is a text,
whose variables are in three parts, and which place operations on devices.

pip install tensorflow==2.21.0 && python tests/data/platforms/tensorflow/make_tensorflow.py
"""

import os
import shutil

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

v1 = tf.compat.v1
FOLDER = os.path.dirname(os.path.abspath(__file__))


def frozen():
    """y = x / 2 + 2 and two more outputs, one of a type of its own."""
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [None, 3], name="x")
        scale = v1.get_variable("scale", initializer=[0.5, 0.5, 0.5])
        y = tf.add(x * scale, 2.0, name="y")
        tf.argmax(y, axis=1, name="best")
        tf.split(y, [1, 2], axis=1, name="parts")
    with v1.Session(graph=graph) as session:
        session.run(v1.variables_initializer([scale]))
        definition = v1.graph_util.convert_variables_to_constants(
            session, graph.as_graph_def(), ["y", "best", "parts"]
        )
    with open(os.path.join(FOLDER, "half_plus_two.pb"), "wb") as file:
        file.write(definition.SerializeToString())


def save(name, session, inputs, outputs, saver=None):
    folder = os.path.join(FOLDER, name)
    shutil.rmtree(folder, ignore_errors=True)
    builder = v1.saved_model.Builder(folder)
    signature = v1.saved_model.predict_signature_def(inputs, outputs)
    signatures = {"serving_default": signature}
    builder.add_meta_graph_and_variables(session, ["serve"], signatures, saver=saver)
    builder.save()
    return folder


def text():
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [None], name="x")
        a = v1.get_variable("a", initializer=0.5)
        y = x * a + 2.0
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            folder = save("text", session, {"x": x}, {"y": y})
    file = os.path.join(folder, "saved_model.pb")
    with open(file, "rb") as binary:
        model = SavedModel.FromString(binary.read())
    with open(file + "txt", "w") as out:
        out.write(text_format.MessageToString(model))
    os.remove(file)


def part(shape, dtype, partition_info):
    first = partition_info.var_offset[0]
    rows = range(first, first + shape[0])
    return tf.constant([[float(i), i * 10.0] for i in rows], dtype)


def partitioned():
    """A variable in three parts, each on a device and in a file of its own, and an operation on a device
    that most machines lack."""
    graph = tf.Graph()
    devices = iter(range(3))
    with graph.as_default():
        rows = v1.placeholder(tf.int64, [None], name="rows")
        with graph.device(lambda op: f"/cpu:{next(devices)}" if op.type == "VarHandleOp" else ""):
            table = v1.get_variable(
                "table",
                shape=[9, 2],
                initializer=part,
                partitioner=v1.fixed_size_partitioner(3),
                use_resource=True,
            )
        with tf.device("/job:localhost/replica:0/task:0/device:GPU:1"):
            found = v1.nn.embedding_lookup(table, rows, partition_strategy="div")
            doubled = found * 2.0
        config = v1.ConfigProto(allow_soft_placement=True, device_count={"CPU": 3})
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            saver = v1.train.Saver(sharded=True)
            save("partitioned", session, {"rows": rows}, {"doubled": doubled}, saver)


def module():
    """A graph without tags, as modules of TensorFlow Hub for TensorFlow 1 have it."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None], name="x")
        y = tf.multiply(x, v1.get_variable("two", initializer=2.0), name="y")
        session.run(v1.global_variables_initializer())
        definition = v1.saved_model.signature_def_utils.predict_signature_def(
            {"default": x}, {"default": y}
        )
        builder = v1.saved_model.Builder("module")
        builder.add_meta_graph_and_variables(session, [], {"default": definition})
        builder.save()
    with open("module/tfhub_module.pb", "wb") as file:
        file.write(b"\x08\x03")  # The version of the format.


frozen()
text()
partitioned()
module()
