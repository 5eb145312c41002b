"""Writes the tests of ONNX's operators as folders, with their inputs and expected outputs.

    pip install onnx==1.23.2
    python3 make_operators.py FOLDER

ONNX's package has them as programs only.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case import node


def encoded(value: object, info: onnx.ValueInfoProto) -> bytes:
    """The value as a TensorProto, SequenceProto or OptionalProto, by its declared type."""
    if isinstance(value, onnx.TensorProto):
        return value.SerializeToString()
    kind = info.type.WhichOneof("value")
    if kind == "optional_type":
        return numpy_helper.from_optional(value, info.name).SerializeToString()
    if kind == "sequence_type":
        return numpy_helper.from_list(value, info.name).SerializeToString()
    return numpy_helper.from_array(np.asarray(value), info.name).SerializeToString()


def main() -> None:
    folder = Path(sys.argv[1])
    for case in node.collect_testcases(None):
        data = folder / case.name / "test_data_set_0"
        data.mkdir(parents=True, exist_ok=True)
        onnx.save(case.model, data.parent / "model.onnx")
        graph = case.model.graph
        inputs, outputs = case.data_sets[0]
        for kind, values, infos in [
            ("input", inputs, graph.input),
            ("output", outputs, graph.output),
        ]:
            # Trailing values may be absent.
            for index, (value, info) in enumerate(zip(values, infos, strict=False)):
                (data / f"{kind}_{index}.pb").write_bytes(encoded(value, info))


if __name__ == "__main__":
    main()
