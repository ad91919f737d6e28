"""How quick a core multiplies matrices of 32-bit floats, which limits every update: with XLA, NumPy and PyTorch.

    python benchmarks/products.py [--size 256] [--torch PYTHON]

One thread on one processor, in turn; the table shows the best of the repeats. PyTorch is measured if an interpreter
that has it is named. The ratio between XLA and PyTorch depends on the processor: for example, the MKL inside PyTorch
uses 512-bit instructions on processors of Intel only.
"""

# JAX's and PyTorch's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import argparse
import functools
import json
import operator
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from learning import ONE_THREAD
from programs.timing import keep_to_one_processor

LIBRARIES = ("xla", "numpy", "torch")
PRODUCTS, REPEATS = 64, 40


def products_of(library: str, size: int) -> Callable[[], object]:
    """A function that makes `PRODUCTS` products, each of the last result and a matrix."""
    import numpy as np

    arrays = np.random.default_rng(0).standard_normal((PRODUCTS, size, size)).astype(np.float32) / size
    if library != "xla":
        matrices: Any = arrays
        if library == "torch":
            torch: Any = __import__("torch")  # only in the interpreter that is named
            torch.set_num_threads(1)
            matrices = torch.from_numpy(arrays)
        return lambda: functools.reduce(operator.matmul, matrices, matrices[0])
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    on_device: Any = jax.device_put(arrays)
    compiled = jax.jit(lambda all_: jax.lax.scan(lambda product, matrix: (product @ matrix, None), all_[0], all_)[0])
    return lambda: compiled(on_device).block_until_ready()


def measured(library: str, size: int) -> float:
    """Billions of floating-point operations a second."""
    keep_to_one_processor()
    multiply = products_of(library, size)
    multiply()
    seconds: list[float] = []
    for _ in range(REPEATS):
        started = time.process_time()
        multiply()
        seconds.append(time.process_time() - started)
    return 2 * size**3 * PRODUCTS / min(seconds) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=256, help="rows and columns of a matrix")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has PyTorch")
    parser.add_argument("--one", choices=LIBRARIES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one, options.size)))
        return
    print("| library | GFLOP/s |\n|---|---:|")
    for library in LIBRARIES:
        python = options.torch if library == "torch" else sys.executable
        if python is None:
            continue
        command = [python, __file__, "--size", str(options.size), "--one", library]
        answer = subprocess.run(command, env={**os.environ, **ONE_THREAD}, stdout=subprocess.PIPE, check=True)
        print(f"| {library} | {json.loads(answer.stdout):.0f} |")


if __name__ == "__main__":
    main()
