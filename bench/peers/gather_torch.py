#!/usr/bin/env python3
"""The rows of a prompt that stay, copied together: PyTorch and kvsieve take turns on one core.

K and V of one layer, 8 KV heads, dim 128, f16; the kept rows of each head are random. PyTorch does it
in both ways that it has: `gather` with indices for every element, as kvpress and SnapKV's authors do,
and `index_select` head by head, which copies whole rows. kvsieve moves them out of its staging into
f16 blocks, keys turned into panels, as `finish_prefill` does. Memory of the result is new each time.
The rows are compared before anything is timed. Times are CPU time of the one thread that works. See
docs/performance.md.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent.parent
KV_HEADS, DIM = 8, 128


class Torch:
    def __init__(self, name: str, gather, sides):
        self.name, self.gather, self.sides = name, gather, sides

    def keep(self, chosen: torch.Tensor) -> None:
        self.chosen = chosen

    def rows(self) -> list[torch.Tensor]:
        return [self.gather(side, self.chosen) for side in self.sides]

    def run(self) -> float:
        begin = time.thread_time_ns()
        self.rows()
        return (time.thread_time_ns() - begin) / 1e6


def by_element(rows: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return rows.gather(1, chosen.unsqueeze(-1).expand(-1, -1, DIM))


def by_row(rows: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    kept = torch.empty(KV_HEADS, chosen.shape[1], DIM, dtype=rows.dtype)
    for head in range(KV_HEADS):
        torch.index_select(rows[head], 0, chosen[head], out=kept[head])
    return kept


class Kvsieve:
    name = "kvsieve, kv=f16"

    def __init__(self, binary: Path, folder: Path, sides):
        self.folder, file = folder, folder / "rows"
        with open(file, "wb") as out:
            for side in sides:
                out.write(side.numpy().tobytes())
        self.process = subprocess.Popen(
            [binary, file, str(sides[0].shape[1]), "kv=f16"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, command: str) -> int:
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"gather_torch: gather_peer ended at '{command}'")
        return int(answer)

    def keep(self, chosen: torch.Tensor) -> None:
        (self.folder / "kept").write_bytes(chosen.numpy().tobytes())
        self.ask(f"keep {self.folder / 'kept'}")

    def rows(self) -> list[torch.Tensor]:
        self.run()
        kept = self.ask(f"decode {self.folder / 'decoded'}")
        data = torch.frombuffer(bytearray((self.folder / "decoded").read_bytes()),
                                dtype=torch.float32)  # fmt: skip
        return list(data.view(2, KV_HEADS, kept, DIM).half())

    def run(self) -> float:
        return self.ask("run") / 1e6


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=32768, help="tokens of the prompt")
    parser.add_argument("--keep", type=float, nargs="+", default=[0.1, 0.25], help="shares kept")
    parser.add_argument("--rounds", type=int, default=15, help="timed turns of each")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--binary", type=Path, default=ROOT / "build/release/bin/gather_peer")
    options = parser.parse_args()
    if not options.binary.exists():
        parser.error(f"{options.binary} is not built (./dev build)")
    return options


def main() -> None:
    options = arguments()
    os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    torch.manual_seed(1)
    sides = [torch.randn(KV_HEADS, options.rows, DIM).half() for _ in "kv"]
    print(f"{cpu_name()}, core {options.core}; torch {torch.__version__}; {options.rows} rows, "
          f"{KV_HEADS} heads, dim {DIM}, {options.rounds} rounds")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        contenders = [
            Kvsieve(options.binary, Path(folder), sides),
            Torch("PyTorch gather", by_element, sides),
            Torch("PyTorch index_select", by_row, sides),
        ]
        for share in options.keep:
            compare(contenders, share, options)


def compare(contenders: list, share: float, options) -> None:
    count = round(options.rows * share)
    order = torch.rand(KV_HEADS, options.rows).argsort(dim=1)
    chosen = order[:, :count].sort(dim=1).values.contiguous()
    for contender in contenders:
        contender.keep(chosen)
    expected = contenders[-1].rows()
    for contender in contenders:
        if not all(map(torch.equal, contender.rows(), expected)):
            sys.exit(f"gather_torch: {contender.name} gathers other rows")
    times = {contender.name: [] for contender in contenders}
    for _ in range(options.rounds):
        for contender in contenders:
            times[contender.name].append(contender.run())
    payload = 2 * KV_HEADS * count * DIM * 2
    ours = statistics.median(times[contenders[0].name])
    print(f"\n{f'{count} rows a head':26}{'median ms':>10}{'least':>9}{'most':>9}{'GB/s':>8}"
          f"{'/ kvsieve':>11}")  # fmt: skip
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:26}{median:10.2f}{min(values):9.2f}{max(values):9.2f}"
              f"{payload / median / 1e6:8.2f}{median / ours:11.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
