"""Makes hostile_names: models/half_plus_two, called by names that mean something to languages.

Run from the root of the project with TensorFlow 2.21.
"""

import os
import shutil

from tensorflow.core.protobuf import saved_model_pb2

SIGNATURE = """it's "a" signature: \\u000a \n${HOME}#{x} </script>"""
INPUT = (
    """x'"`\\\n\r\t\0 ${HOME} $(id) #{x} @x %s %d ]==] )---" "# \"\"\" JSON \\(x) \\u000a """
    "// -- /* */ <!-- </script><img onerror=alert(1)> \u2028 \u202e é 模型 \U0001f600"
)
OUTPUT = INPUT.replace("x", "y")

source, target = "models/half_plus_two/1", "tests/data/clients/hostile_names/1"
shutil.rmtree(target, ignore_errors=True)
shutil.copytree(source, target)
path = os.path.join(target, "saved_model.pb")
model = saved_model_pb2.SavedModel()
with open(path, "rb") as file:
    model.ParseFromString(file.read())
for graph in model.meta_graphs:
    signature = graph.signature_def["serving_default"]
    for names, new in ((signature.inputs, INPUT), (signature.outputs, OUTPUT)):
        (old,) = names
        names[new].CopyFrom(names[old])
        del names[old]
    graph.signature_def[SIGNATURE].CopyFrom(signature)
with open(path, "wb") as file:
    file.write(model.SerializeToString(deterministic=True))
