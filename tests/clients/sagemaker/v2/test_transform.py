"""`tensorserve transform --sdk-exact` writes the bytes that SageMaker's SDK writes in its local mode."""

import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from sagemaker.tensorflow import TensorFlowModel

import test_local
from container import BINARY, HALF_PLUS_THREE, ROOT, free_port, pack

IMAGES = os.path.join(ROOT, "examples/images/digits")

CSV, JSON, LINES, IMAGE = (
    "text/csv",
    "application/json",
    "application/jsonlines",
    "application/x-image",
)


def files(folder):
    """The content of all files below a folder, by name."""
    found = {}
    for at, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "_transform"]
        for name in names:
            with open(os.path.join(at, name), "rb") as file:
                found[name] = file.read()
    return found


class Transform(test_local.Local):
    # Tests of the other file, which are not run again here.
    test_deploy_predict_and_transform = None
    test_the_runtime_client = None

    def assert_same(self, model, inputs, content_type, split, strategy, assemble, accept):
        model_folder, input_folder, sdk, ours = (
            os.path.join(self.folder.name, name) for name in ("models", "in", "sdk", "ours")
        )
        for folder in (model_folder, input_folder, sdk, ours):
            shutil.rmtree(folder, ignore_errors=True)
            os.mkdir(folder)
        for name, content in inputs.items():
            with open(os.path.join(input_folder, name), "wb") as file:
                file.write(content)
        archive = pack(model_folder, model)
        transformer = TensorFlowModel(
            model_data="file://" + archive,
            role=test_local.ROLE,
            image_uri="tensorflow-inference:2.18-cpu",
            framework_version="2.18",
            sagemaker_session=self.session(free_port()),
        ).transformer(
            instance_count=1,
            instance_type="local",
            output_path="file://" + sdk,
            strategy=strategy,
            assemble_with=assemble,
            accept=accept,
        )
        transformer.transform(
            "file://" + input_folder, content_type=content_type, split_type=split, wait=False
        )
        command = [BINARY, "transform", archive, "--input", input_folder, "--output", ours]
        command += ["--sdk-exact", "--content-type", content_type, "--split", split.lower()]
        command += ["--strategy", strategy.removesuffix("Record").lower()]
        command += ["--assemble", (assemble or "None").lower(), "--progress", "none"]
        if accept:
            command += ["--accept", accept]
        subprocess.run(command, check=True)
        expected = files(sdk)
        self.assertEqual(sorted(expected), sorted(name + ".out" for name in inputs))
        self.assertEqual(files(ours), expected)

    def test_text(self):
        rows = "".join(f"{n / 4}\n" for n in range(1000)).encode()
        lines = b'{"x": 1.0}\r\n{"x": 2.5}\n\nno JSON\n{"x": 3}'
        for content_type, inputs, split, strategy, assemble, accept in (
            (CSV, {"a.csv": rows, "b.csv": b"1.5"}, "Line", "MultiRecord", "Line", JSON),
            (CSV, {"a.csv": b"1.0\n2.0\n\n"}, "Line", "SingleRecord", "Line", JSON),
            (LINES, {"a.jsonl": lines}, "Line", "SingleRecord", "Line", LINES),
            (LINES, {"a.jsonl": b"[1.0]\n[2.5]\n"}, "Line", "MultiRecord", None, None),
            (JSON, {"a.json": b'{"instances": [1.0, 2]}'}, "None", "SingleRecord", None, JSON),
            (JSON, {"a.json": b'{"instances": [1.0,'}, "None", "MultiRecord", "Line", None),
        ):
            with self.subTest(content_type=content_type, split=split, strategy=strategy):
                self.assert_same(
                    HALF_PLUS_THREE, inputs, content_type, split, strategy, assemble, accept
                )

    def test_images(self):
        images = {}
        for name in ("0_78.png", "2_51.jpg", "7_81.jpg"):
            with open(os.path.join(IMAGES, name), "rb") as file:
                images[name] = file.read()
        model = os.path.join(ROOT, "models/digits")
        self.assert_same(model, images, IMAGE, "None", "SingleRecord", "Line", JSON)


if __name__ == "__main__":
    unittest.main()
