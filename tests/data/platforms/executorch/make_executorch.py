#!/usr/bin/env python3
"""Writes the programs of this directory, and what ExecuTorch and PyTorch return for them.

    pip install torch==2.15.0 executorch==1.5.1 numpy    # Python 3.11, x86-64; downloads 3 GB
    python3 make_executorch.py [FOLDER]
    python3 make_executorch.py --full FOLDER  # programs of full size, for measurements; not committed

The weights come from a seed. The modules and inputs are those of ../pytorch/make_pytorch.py.
"""

import os
import sys

import numpy as np
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer
from torch import Tensor, nn
from torch.export import Dim, export
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../pytorch"))
from make_pytorch import ROWS, Encoder, ResNet18, ids, images, table


class Phone(nn.Module):
    """Takes one row at a time, as most programs for phones do."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Several(nn.Module):
    """A number that the program is exported for, and outputs without names, one of them a number."""

    def forward(self, x: Tensor, scale: float, y: Tensor):
        return x * scale + y, (x - y, 7)


class Counter(nn.Module):
    """Counts its runs."""

    def __init__(self):
        super().__init__()
        self.register_buffer("runs", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.runs.add_(1)
        return x + self.runs


class Convolution(nn.Module):
    """Its input and output have their channels last in memory."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        return self.layer(image)


class Lengths(nn.Module):
    """Rows of any length. XNNPACK takes shapes with one dimension that varies only."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(64, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        weights = mask.to(torch.float32).unsqueeze(-1)
        pooled = (self.words(ids) * weights).sum(1) / weights.sum(1)
        return {"scores": self.head(pooled), "each": self.head(self.words(ids))}


def program(model, example, dynamic=None, delegates=True, config=None, constants=None):
    """The bytes of a program of a module, or of several methods, a dictionary."""
    if not isinstance(model, dict):
        model, example = {"forward": model}, {"forward": example}
    exported = {
        name: export(method, example[name], dynamic_shapes=dynamic)
        for name, method in model.items()
    }
    lowered = to_edge_transform_and_lower(
        exported,
        partitioner=[XnnpackPartitioner()] if delegates else [],
        constant_methods=constants,
    )
    return lowered.to_executorch(config or ExecutorchBackendConfig()).buffer


def quantized(model, example):
    module = export(model.eval(), example).module()
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(module, quantizer)
    prepared(torch.from_numpy(table(64)[:1]))
    for row in table(64):
        prepared(torch.from_numpy(row[None]))
    return convert_pt2e(prepared)


def outputs_of(content, most, *inputs):
    """What ExecuTorch's own runtime in Python returns, `most` rows at a time."""
    loaded = _load_for_executorch_from_buffer(content)
    parts = []
    for start in range(0, len(inputs[0]), most):
        rows = [torch.from_numpy(value[start : start + most]) for value in inputs]
        parts.append([value.numpy().copy() for value in loaded.forward(rows)])
    return [np.concatenate(values) for values in zip(*parts, strict=True)]


def make(folder):
    torch.set_num_threads(1)
    rows = Dim("rows", max=64)
    expected = {}

    def write(name, content, model=None, names=("output",), most=64, inputs=()):
        with open(os.path.join(folder, f"{name}.pte"), "wb") as file:
            file.write(content)
        if not inputs:
            return
        for key, value in zip(names, outputs_of(content, most, *inputs), strict=True):
            expected[f"{name}/{key}"] = value
        with torch.inference_mode():
            result = model(*[torch.from_numpy(value) for value in inputs])
        result = result if isinstance(result, dict) else {"output": result}
        for key, value in result.items():
            expected[f"{name}/{key}/pytorch"] = value.numpy()

    torch.manual_seed(11)
    resnet = ResNet18(4, 10).eval()
    content = program(resnet, (torch.zeros(2, 3, 16, 16),), ({0: rows},))
    write("resnet", content, resnet, most=15, inputs=[images(ROWS)])

    torch.manual_seed(12)
    encoder = Encoder(64, 32, 2, 2, 5).eval()
    content = program(encoder, (torch.zeros(2, 12, dtype=torch.int64),), ({0: rows},))
    write("encoder", content, encoder, ["logits", "pooled"], inputs=[ids(ROWS)])

    torch.manual_seed(13)
    phone = Phone().eval()
    content = program(phone, (torch.zeros(1, 4),))
    write("phone", content, phone, most=1, inputs=[table(ROWS)])
    portable = program(phone, (torch.zeros(2, 4),), ({0: rows},), delegates=False)
    write("portable", portable, phone, inputs=[table(ROWS)])
    # The caller has the memory of inputs and outputs.
    config = ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    )
    content = program(phone, (torch.zeros(2, 4),), ({0: rows},), delegates=False, config=config)
    write("unplanned", content, phone, inputs=[table(ROWS)])
    write("quantized", program(quantized(phone, (torch.zeros(1, 4),)), (torch.zeros(1, 4),)))

    torch.manual_seed(14)
    lengths = Lengths().eval()
    example = (torch.zeros(2, 6, dtype=torch.int64), torch.ones(2, 6, dtype=torch.int64))
    both = {0: rows, 1: Dim("length", max=32)}
    content = program(lengths, example, (both, both), delegates=False)
    mask = (np.arange(12) <= np.arange(ROWS)[:, None] % 12).astype(np.int64)
    write("lengths", content, lengths, ["scores", "each"], inputs=[ids(ROWS), mask])

    example = (torch.zeros(2, 3), 2.5, torch.zeros(2, 3))
    write("several", program(Several(), example, ({0: rows}, None, {0: rows}), delegates=False))
    write("counter", program(Counter(), (torch.zeros(1, 2),), delegates=False))
    torch.manual_seed(15)
    example = torch.zeros(1, 3, 4, 5).to(memory_format=torch.channels_last)
    convolution = Convolution().to(memory_format=torch.channels_last)
    content = program(convolution, (example,), delegates=False)
    some = images(8)[:, :, :4, :5].copy()
    write("channels_last", content)
    with torch.inference_mode():
        expected["channels_last/output/pytorch"] = convolution(torch.from_numpy(some)).numpy()
    methods = {"forward": phone, "scores": phone.layers[0]}
    examples = {"forward": (torch.zeros(1, 4),), "scores": (torch.zeros(1, 4),)}
    write("methods", program(methods, examples, constants={"get_classes": 3}))
    with torch.inference_mode():
        expected["methods/scores"] = phone.layers[0](torch.from_numpy(table(8))).numpy()
    np.savez_compressed(os.path.join(folder, "expected.npz"), **expected)


def make_full(folder):
    """ResNet-18 on images of 224 pixels, and an encoder of the size of BERT-small, for measurements."""
    torch.manual_seed(13)
    resnet = ResNet18(64, 1000).eval()
    torch.manual_seed(14)
    encoder = Encoder(30000, 512, 8, 4, 5).eval()
    for name, model, example in [
        ("resnet18", resnet, torch.zeros(1, 3, 224, 224)),
        ("encoder", encoder, torch.zeros(1, 128, dtype=torch.int64)),
    ]:
        with open(os.path.join(folder, f"{name}.pte"), "wb") as file:
            file.write(program(model, (example,)))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--full"]:
        make_full(arguments[1])
    else:
        make(arguments[0] if arguments else HERE)
