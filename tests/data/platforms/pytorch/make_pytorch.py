#!/usr/bin/env python3
"""Writes the models of this directory, and what PyTorch returns for them.

    pip install torch==2.13.0 numpy        # Python 3.11, x86-64; downloads 3 GB with the libraries of CUDA
    ATEN_CPU_CAPABILITY=default python3 make_pytorch.py [FOLDER]
    python3 make_pytorch.py --full FOLDER  # models of full size, for measurements; not committed

The weights come from a seed. The packages of AOTInductor are compiled without instructions that only
some x86-64 processors have, and hold libraries without symbols: `strip` is needed.

iris_mlp_script.pt, iris_mlp_trace.pt and dict_two_inputs.pt are not made here: PyTorch 1.13.1 of Debian 12
wrote them. Their expected outputs are made here, too.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._inductor import aoti_compile_and_package
from torch.nn import functional

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS = 1000


class Block(nn.Module):
    """The basic block of a ResNet."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.down = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return functional.relu(y + self.down(x), inplace=True)


class ResNet18(nn.Module):
    """ResNet-18, with `width` channels after the first convolution (64 in the original)."""

    def __init__(self, width, classes):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn = nn.BatchNorm2d(width)
        sizes = [width, width * 2, width * 4, width * 8]
        layers = []
        inputs = width
        for number, size in enumerate(sizes):
            layers += [Block(inputs, size, 1 if number == 0 else 2), Block(size, size, 1)]
            inputs = size
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = functional.relu(self.bn(self.conv(image)), inplace=True)
        x = functional.max_pool2d(x, 3, 2, 1)
        x = self.layers(x)
        return self.head(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))


class Encoder(nn.Module):
    """A transformer encoder of words, whose outputs have names."""

    def __init__(self, words, size, heads, layers, classes):
        super().__init__()
        self.words = nn.Embedding(words, size)
        self.places = nn.Parameter(torch.randn(512, size))
        layer = nn.TransformerEncoderLayer(size, heads, size * 4, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(size, classes)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = self.words(ids) + self.places[: ids.shape[1]]
        x = self.encoder(x)
        pooled = x.mean(1)
        return {"logits": self.head(pooled), "pooled": pooled}


class Parts(NamedTuple):
    total: Tensor
    parts: list[Tensor]


class Structures(nn.Module):
    """Numbers and optional tensors as inputs; a named tuple with a list as outputs."""

    def forward(self, x: Tensor, scale: float, bias: Tensor | None = None) -> Parts:
        y = x * scale
        if bias is not None:
            y = y + bias
        return Parts(y.sum(1), [y, y.to(torch.float64)])


class Echo(nn.Module):
    """Returns its input, and a view of it: both share its memory."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x[:1]


class InPlace(nn.Module):
    """Writes into its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1)


class Counter(nn.Module):
    """Counts its runs."""

    def __init__(self):
        super().__init__()
        self.register_buffer("runs", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return x + self.runs


class Saves(nn.Module):
    """Writes a file."""

    def forward(self, x: Tensor) -> Tensor:
        torch.save(x, "/tmp/tensorserve_test_saved.pt")
        return x


def images(rows, side=16):
    return (
        np.random.default_rng(1).integers(-128, 128, (rows, 3, side, side)).astype(np.float32) / 64
    )


def ids(rows, words=64, length=12):
    return np.random.default_rng(2).integers(0, words, (rows, length))


def table(rows):
    """Rows with large, tiny and negative values, which are exact in 32 bits."""
    generator = np.random.default_rng(3)
    values = generator.integers(-64, 512, (rows, 4)).astype(np.float32) / 64
    values[::10] *= np.float32(2.0**20)
    values[5::10] *= np.float32(2.0**-20)
    return values


def script(model, path):
    torch.jit.script(model.eval()).save(path)


def package(model, example, path, dynamic):
    """Compiles a package of AOTInductor, without the symbols of its library."""
    program = torch.export.export(model.eval(), example, dynamic_shapes=dynamic)
    with tempfile.TemporaryDirectory() as folder:
        whole = os.path.join(folder, os.path.basename(path))
        aoti_compile_and_package(program, package_path=whole)
        with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as target:
            for entry in source.infolist():
                content = source.read(entry)
                if entry.filename.endswith(".so"):
                    library = os.path.join(folder, "library.so")
                    with open(library, "wb") as file:
                        file.write(content)
                    subprocess.run(["strip", library], check=True)
                    with open(library, "rb") as file:
                        content = file.read()
                if entry.filename.endswith((".kernel.cpp", "kernel_metadata.json")):
                    continue
                target.writestr(zipfile.ZipInfo(entry.filename), content, zipfile.ZIP_DEFLATED, 9)


def outputs_of(model, *inputs):
    with torch.inference_mode():
        result = model(*[torch.from_numpy(value) for value in inputs])
    if isinstance(result, Tensor):
        result = {"output": result}
    return {name: value.numpy() for name, value in result.items()}


def make(folder):
    torch.set_num_threads(1)
    expected = {}
    rows = torch.export.Dim("rows", max=4096)

    torch.manual_seed(11)
    resnet = ResNet18(4, 10).eval()
    script(resnet, os.path.join(folder, "resnet.pt"))
    package(resnet, (torch.zeros(2, 3, 16, 16),), os.path.join(folder, "resnet.pt2"), ({0: rows},))
    for name, value in outputs_of(resnet, images(ROWS)).items():
        expected[f"resnet/{name}"] = value

    torch.manual_seed(12)
    encoder = Encoder(64, 32, 2, 2, 5).eval()
    script(encoder, os.path.join(folder, "encoder.pt"))
    # Its length is fixed: 12 words.
    example = (torch.zeros(2, 12, dtype=torch.int64),)
    package(encoder, example, os.path.join(folder, "encoder.pt2"), ({0: rows},))
    for name, value in outputs_of(encoder, ids(ROWS)).items():
        expected[f"encoder/{name}"] = value

    for name in ["iris_mlp_script", "iris_mlp_trace"]:
        model = torch.jit.load(os.path.join(folder, f"{name}.pt")).eval()
        expected[f"{name}/output"] = outputs_of(model, table(ROWS))["output"]

    script(Structures(), os.path.join(folder, "structures.pt"))
    script(Echo(), os.path.join(folder, "echo.pt"))
    script(InPlace(), os.path.join(folder, "in_place.pt"))
    script(Counter(), os.path.join(folder, "counter.pt"))
    script(Saves(), os.path.join(folder, "saves.pt"))
    program = torch.export.export(nn.Linear(4, 2), (torch.zeros(1, 4),))
    torch.export.save(program, os.path.join(folder, "exported.pt2"))
    torch.save(nn.Linear(4, 2).state_dict(), os.path.join(folder, "state_dict.pth"))
    np.savez_compressed(os.path.join(folder, "expected.npz"), **expected)


def make_full(folder):
    """ResNet-18 on images of 224 pixels, and an encoder of the size of BERT-small, for measurements."""
    torch.set_num_threads(2)
    rows = torch.export.Dim("rows", max=64)
    torch.manual_seed(13)
    resnet = ResNet18(64, 1000).eval()
    script(resnet, os.path.join(folder, "resnet18.pt"))
    image = (torch.zeros(2, 3, 224, 224),)
    program = torch.export.export(resnet, image, dynamic_shapes=({0: rows},))
    path = os.path.join(folder, "resnet18.pt2")
    aoti_compile_and_package(program, package_path=path)
    torch.manual_seed(14)
    encoder = Encoder(30000, 512, 8, 4, 5).eval()
    script(encoder, os.path.join(folder, "encoder.pt"))
    example = (torch.zeros(2, 128, dtype=torch.int64),)
    program = torch.export.export(encoder, example, dynamic_shapes=({0: rows},))
    path = os.path.join(folder, "encoder.pt2")
    aoti_compile_and_package(program, package_path=path)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--full"]:
        make_full(arguments[1])
    else:
        make(arguments[0] if arguments else HERE)
