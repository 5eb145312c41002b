#!/usr/bin/env python3
"""Fetches libtensorflow, the C library of TensorFlow that tensorserve loads at run time.

TensorFlow publishes a current libtensorflow only inside its Python package. This script
downloads that package with pip, checks it against the SHA-256 below and unpacks only the libraries
(wheels.py describes how):

    DEST/tensorflow/libtensorflow_cc.so.2         the library, with the whole TF_* C API
    DEST/tensorflow/libtensorflow_framework.so.2  its dependency, which it finds beside itself
    DEST/nvidia/*/lib/*.so*                       with --device gpu: the CUDA libraries
    DEST/tensorflow/**/*_pb2.py                   messages that Python's tensorflow-serving-api imports
    DEST/licenses/                                their licence texts
    DEST/FETCHED.json                             what was unpacked, written last

The layout is that of Python's site-packages, because the GPU build looks for the CUDA libraries in
../nvidia, relative to its own directory.
"""

import re

from wheels import Choice, Package, Wheel, main

VERSION = "2.21.0"
LIBRARY = "tensorflow/libtensorflow_cc.so.2"
FRAMEWORK = "tensorflow/libtensorflow_framework.so.2"

# wheels.py describes how to update these. Any Python version's wheel works; these are cp312.
TENSORFLOW_CPU_X86_64 = Wheel(
    "tensorflow_cpu-2.21.0-cp312-cp312-manylinux_2_27_x86_64.whl",
    274000871,
    "dcc8afd32930e42d5296b6ee19078b773706830af4ea97fbe503b9f5e0f820cb",
)
TENSORFLOW_CPU_AARCH64 = Wheel(
    "tensorflow-2.21.0-cp312-cp312-manylinux_2_27_aarch64.whl",
    281946471,
    "b07d15737406533898e36c7ef7944b1be18e9028dc521b9229952c537bbc5552",
)
TENSORFLOW_GPU_X86_64 = Wheel(
    "tensorflow-2.21.0-cp312-cp312-manylinux_2_27_x86_64.whl",
    572611111,
    "b3b95643c4e70eb925839938fb35cbe142f317ec84af6844ee61513713bb13c0",
)
# The packages of TensorFlow's own extra, tensorflow[and-cuda]==2.21.0. Versions: CUDA 12.9.1,
# with the newest cuDNN and NCCL that had been built when TensorFlow 2.21.0 was (5 March 2026).
CUDA_X86_64 = (
    Wheel(
        "nvidia_cublas_cu12-12.9.1.4-py3-none-manylinux_2_27_x86_64.whl",
        581242350,
        "453611eb21a7c1f2c2156ed9f3a45b691deda0440ec550860290dc901af5b4c2",
    ),
    Wheel(
        "nvidia_cuda_cupti_cu12-12.9.79-py3-none-manylinux_2_25_x86_64.whl",
        10814997,
        "096bcf334f13e1984ba36685ad4c1d6347db214de03dbb6eebb237b41d9d934f",
    ),
    Wheel(
        "nvidia_cuda_nvcc_cu12-12.9.86-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        40546229,
        "5d6a0d32fdc7ea39917c20065614ae93add6f577d840233237ff08e9a38f58f0",
    ),
    Wheel(
        "nvidia_cuda_nvrtc_cu12-12.9.86-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        89568129,
        "210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4",
    ),
    Wheel(
        "nvidia_cuda_runtime_cu12-12.9.79-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        3493179,
        "25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3",
    ),
    Wheel(
        "nvidia_cudnn_cu12-9.19.0.56-py3-none-manylinux_2_27_x86_64.whl",
        657906812,
        "ac6ad90a075bb33a94f2b4cf4622eac13dd4dc65cf6dd9c7572a318516a36625",
    ),
    Wheel(
        "nvidia_cufft_cu12-11.4.1.4-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        200877592,
        "c67884f2a7d276b4b80eb56a79322a95df592ae5e765cf1243693365ccab4e28",
    ),
    Wheel(
        "nvidia_curand_cu12-10.3.10.19-py3-none-manylinux_2_27_x86_64.whl",
        68295626,
        "49b274db4780d421bd2ccd362e1415c13887c53c214f0d4b761752b8f9f6aa1e",
    ),
    Wheel(
        "nvidia_cusolver_cu12-11.7.5.82-py3-none-manylinux_2_27_x86_64.whl",
        338117415,
        "15da72d1340d29b5b3cf3fd100e3cd53421dde36002eda6ed93811af63c40d88",
    ),
    Wheel(
        "nvidia_cusparse_cu12-12.5.10.65-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        366465088,
        "73060ce019ac064a057267c585bf1fd5a353734151f87472ff02b2c5c9984e78",
    ),
    Wheel(
        "nvidia_nccl_cu12-2.29.7-py3-none-manylinux_2_18_x86_64.whl",
        293633942,
        "ecd0a012051abc20c1aa87328841efa8cade3ced65803046e38c2f03c0891fea",
    ),
    Wheel(
        "nvidia_nvjitlink_cu12-12.9.86-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        39748338,
        "e3f1171dbdc83c5932a45f0f4c99180a70de9bd2718c1ab77d14104f6d7147f9",
    ),
)

CHOICES = {
    ("cpu", "x86_64"): Choice((TENSORFLOW_CPU_X86_64,), 854000000),
    ("cpu", "aarch64"): Choice((TENSORFLOW_CPU_AARCH64,), 884000000),
    ("gpu", "x86_64"): Choice((TENSORFLOW_GPU_X86_64, *CUDA_X86_64), 5358000000),
}

# ptxas and libdevice are not libraries, but models compiled with XLA (jit_compile=True) need them. Nor
# are the protobuf messages, which scripts of the images need (inference.py).
LIBRARIES = re.compile(
    r"tensorflow/libtensorflow_(cc|framework)\.so\.2"
    r"|tensorflow/(compiler|core|tsl)/.+_pb2\.py"
    r"|nvidia/\w+/lib/[^/]+\.so[^/]*"
    r"|nvidia/cuda_nvcc/bin/ptxas"
    r"|nvidia/cuda_nvcc/nvvm/libdevice/libdevice\.10\.bc"
)
# TensorFlow opens every CUDA library from libtensorflow_framework, whose own search path (RUNPATH)
# lacks the directory of cuSOLVER; without it TensorFlow registers no GPU at all and only logs
# "Cannot dlopen some GPU libraries". So it is linked into a directory that is searched.
LINKS = {"nvidia/cusparse/lib/libcusolver.so.11": "nvidia/cusolver/lib/libcusolver.so.11"}

PACKAGE = Package(
    name="libtensorflow",
    maker="TensorFlow",
    version=VERSION,
    folder="tensorflow",
    variable="TENSORSERVE_LIBTENSORFLOW",
    needed=(LIBRARY, FRAMEWORK),
    choices=CHOICES,
    libraries=LIBRARIES,
    links=LINKS,
)

if __name__ == "__main__":
    main(PACKAGE)
