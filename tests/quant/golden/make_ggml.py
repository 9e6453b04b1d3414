"""Writes ggml.txt: rows of floats and the blocks that ggml's reference quantizers make of them.
One row a line: name, f32 bytes, q8_0 bytes, q4_0 bytes, in hex, separated by tabs.

    make_ggml.py [--ggml llama_cpp_python-X.tar.gz] [--check]

Runs two implementations and refuses to write when they differ:
  gguf   gguf.quants of the PyPI package `gguf` (NumPy)
  ggml   quantize_row_q8_0_ref and quantize_row_q4_0_ref in C, compiled here from ggml-quants.c of
         the PyPI source package of `llama-cpp-python`:
             pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==VERSION
--check compares with the file instead of writing it: exit 1 when it differs. Without --ggml, gguf
alone is compared.
"""

import argparse
import ctypes
import datetime
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata

import gguf
import numpy as np

FILE = pathlib.Path(__file__).parent / "ggml.txt"
BLOCK = 32
FORMATS = {"q8_0": 34, "q4_0": 18}  # bytes of a block
QUANTS = {"q8_0": gguf.quants.Q8_0, "q4_0": gguf.quants.Q4_0}


def problems():
    """name -> f32 row, whose length is a multiple of 32."""
    random = np.random.default_rng(20240501)
    for scale in [1.0, 1e-3, 37.5, 900.0]:
        yield f"gaussian {scale}", random.standard_normal(64) * scale
    yield "zeros", np.zeros(32)
    yield "one hot", np.eye(1, 32, 7)[0] * -3.25
    yield "constant", np.full(32, 0.7)
    yield "largest is positive", np.concatenate([[8.0], random.uniform(-7, 7, 31)])
    yield "largest is negative", np.concatenate([[-8.0], random.uniform(-7, 7, 31)])
    yield "two largest, positive first", np.concatenate([[5.0, -5.0], random.uniform(-5, 5, 30)])
    yield "two largest, negative first", np.concatenate([[-5.0, 5.0], random.uniform(-5, 5, 30)])
    yield "halves of q8_0", np.concatenate([[127.0], np.arange(31) - 15 + 0.5])
    yield "halves of q4_0", np.concatenate([[-8.0], np.arange(31) / 2 - 7.5])
    below = np.nextafter(np.float32(0.5), np.float32(0))
    yield "just below a half", np.concatenate([[127.0], np.full(15, below), np.full(16, -below)])
    yield "an outlier", np.concatenate([random.standard_normal(31), [1000.0]])
    yield "an outlier in the second block only", np.concatenate(
        [random.standard_normal(32), random.standard_normal(31), [-1000.0]])
    yield "scale is a denormal f16", random.standard_normal(32) * 1e-5
    yield "scale is zero in f16", random.standard_normal(32) * 1e-9
    yield "scale is near the largest f16", random.standard_normal(32) * 1e5
    yield "integers", random.integers(-127, 128, 64)
    yield "heavy tail", random.standard_t(2, 96)


def gguf_blocks(name, row):
    return QUANTS[name].quantize_blocks(row.reshape(-1, BLOCK)).tobytes()


class Ggml:
    """The C functions, compiled from the source package."""

    def __init__(self, source_package, folder):
        with tarfile.open(source_package) as package:
            self.version = package.getmembers()[0].name.split("/")[0]
            prefix = f"{self.version}/vendor/llama.cpp/ggml/"
            wanted = [m for m in package.getmembers() if m.name.startswith(
                (prefix + "include/", prefix + "src/ggml")) and m.name.endswith((".c", ".h"))]
            package.extractall(folder, wanted, filter="data")
        root = pathlib.Path(folder) / prefix
        library = pathlib.Path(folder) / "ggml_quants.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-D_GNU_SOURCE", f"-I{root}/include",
                        f"-I{root}/src", f"{root}/src/ggml-quants.c", "-o", library, "-lm"],
                       check=True)
        # The rest of ggml is missing and not called: names are looked up when used.
        self.library = ctypes.CDLL(str(library), mode=os.RTLD_LAZY)

    def blocks(self, name, row):
        out = ctypes.create_string_buffer(len(row) // BLOCK * FORMATS[name])
        quantize = self.library[f"quantize_row_{name}_ref"]
        quantize(row.ctypes.data_as(ctypes.c_void_p), out, ctypes.c_int64(len(row)))
        return out.raw


def golden(ggml):
    rows = []
    for problem, values in problems():
        row = np.ascontiguousarray(values, dtype="<f4")
        fields = [problem, row.tobytes().hex()]
        for name in FORMATS:
            blocks = gguf_blocks(name, row)
            if ggml and ggml.blocks(name, row) != blocks:
                raise SystemExit(f"gguf and ggml differ: {name}, {problem}")
            fields.append(blocks.hex())
        rows.append("\t".join(fields))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ggml", help="source package of llama-cpp-python")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if not options.ggml and not options.check:
        parser.error("--ggml is needed to write the file")
    with tempfile.TemporaryDirectory() as folder:
        ggml = Ggml(options.ggml, folder) if options.ggml else None
        rows = golden(ggml)
    if options.check:
        same = [x for x in FILE.read_text().splitlines() if x[0] != "#"] == rows
        print("the same" if same else "differs")
        sys.exit(0 if same else 1)
    day = datetime.date.today().isoformat()
    source = f"# run {day}: gguf {metadata.version('gguf')}, ggml of {ggml.version}"
    FILE.write_text("\n".join([source, *rows]) + "\n")


main()
