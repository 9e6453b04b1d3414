#!/usr/bin/env python3
"""Decode attention of one layer: ggml's CPU backend and kvsieve take turns in one thread.

32 query heads, 8 KV heads, dim 128, one token. attend_peer does the work and holds every output
against exact attention first; this runs it, once per number of rows, and makes the tables. Times
are CPU time of the one thread. See docs/performance.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent.parent
GGML = {16: "ggml f16", 8: "ggml q8_0", 4: "ggml q4_0"}  # the peer of as many bits, or the next
BITS = {"kv=f16": 16, "kv=int8": 8, "kv=int4(group=32)": 4, "kv=int4(group=row)": 4, "kv=turbo4": 4,
        "kv=q8_0": 8, "kv=q4_0": 4, "kv=bf16": 16, "kv=fp8": 8, "kv=int3": 4, "kv=turbo3": 4,
        "kv=int2": 4, "kv=turbo2": 4}  # fmt: skip
RATES = {"50%": 0.5, "25%": 0.25, "10%": 0.1, "3%": 0.03}


class Run:
    """One process of attend_peer: reads[name] and steps[name] are ms, round by round."""

    def __init__(self, binary: Path, mode: str, rows: int, rounds: int):
        self.mode, self.rows, self.target, self.checks = mode, rows, "", {}
        self.bytes, self.reads, self.steps = {}, {}, {}
        print(f"attend_ggml: {mode}, {rows} rows", file=sys.stderr)
        done = subprocess.run([binary, mode, str(rows), str(rounds)],
                              stdout=subprocess.PIPE, text=True)  # fmt: skip
        if done.returncode != 0:
            sys.exit(f"attend_ggml: attend_peer {mode} {rows} failed; nothing is reported")
        for line in done.stdout.splitlines():
            self.add(*line.split("\t"))

    def add(self, kind: str, name: str, *fields: str) -> None:
        if kind == "target":
            self.target = name
        elif kind == "check":
            self.checks[name] = dict(zip(("error", "tolerance", "codes"), map(float, fields)))
        else:
            self.bytes[name] = int(fields[0])
            self.reads.setdefault(name, []).append(float(fields[1]))
            self.steps.setdefault(name, []).append(float(fields[2]))

    def median(self, name: str) -> float:
        return statistics.median(self.steps[name])

    def of_read(self, name: str) -> float:
        return statistics.median(self.reads[name]) / self.median(name)

    def spread(self, name: str) -> str:
        return f"{self.median(name):9.3f}{min(self.steps[name]):9.3f}{max(self.steps[name]):9.3f}"

    def as_json(self) -> dict:
        return {"mode": self.mode, "rows": self.rows, "checks": self.checks, "bytes": self.bytes,
                "read_ms": self.reads, "step_ms": self.steps}  # fmt: skip


def print_peers(run: Run) -> None:
    title = f"{run.rows} rows"
    print(f"\n{'':57}{'time of ggml / own':>24}\n{title:22}{'ms':>9}{'least':>9}{'most':>9}{'MB':>8}"
          f"{'of read':>9}{'head-m.':>12}{'token-m.':>12}{'error':>9}{'allowed':>9}")  # fmt: skip
    for name in run.steps:
        ratios = " " * 24
        if name in BITS:
            peer = GGML[BITS[name]]
            ratios = "".join(f"{run.median(f'{peer} {layout}') / run.median(name):11.1f}x"
                             for layout in ("head-major", "token-major"))  # fmt: skip
        check = run.checks[name]
        print(f"{name:22}{run.spread(name)}{run.bytes[name] / 1e6:8.1f}{run.of_read(name):9.2f}"
              f"{ratios}{check['error']:9.1g}{check['tolerance']:9.1g}")  # fmt: skip


def print_growth(runs: list) -> None:
    names = runs[0].steps
    heads = [f"{later.rows}/{run.rows}" for run, later in zip(runs, runs[1:])]
    print(f"\n{'growth of time':26}{''.join(f'{head:>16}' for head in heads)}")
    for name in names:
        ratios = [later.median(name) / run.median(name) for run, later in zip(runs, runs[1:])]
        print(f"{name:26}{''.join(f'{ratio:16.2f}' for ratio in ratios)}")


def print_keep(run: Run) -> None:
    title = f"{run.rows} rows, kept"
    print(f"\n{title:28}{'ms':>9}{'least':>9}{'most':>9}{'of all':>9}"
          f"{'of all x rate':>15}")  # fmt: skip
    for store in (name for name in run.steps if name in BITS):
        print(f"{store:22}{'all':>6}{run.spread(store)}")
        for text, rate in RATES.items():
            name = f"random(budget={text}) | {store}"
            share = run.median(name) / run.median(store)
            print(f"{'':22}{text:>6}{run.spread(name)}{share:9.3f}{share / rate:15.2f}")


def print_encoding(run: Run) -> None:
    title = f"encode, {run.rows} rows"
    print(f"\n{title:24}{'ns a row':>12}{'f32 GB/s':>10}{'of read':>9}")
    for name in run.steps:
        rate = run.bytes[name] / run.median(name) / 1e6
        print(f"{name:24}{run.median(name) * 1e6 / run.rows:12.1f}{rate:10.2f}"
              f"{run.of_read(name):9.2f}")  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[4096, 32768, 131072])
    parser.add_argument("--keep-rows", type=int, default=32768, help="rows before eviction")
    parser.add_argument("--encode-rows", type=int, default=65536)
    parser.add_argument("--rounds", type=int, default=15, help="timed turns of each")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--binary", type=Path, default=ROOT / "build/release/bin/attend_peer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all times as well")
    options = parser.parse_args()
    if not options.binary.exists():
        parser.error(f"{options.binary} is not built (./dev bench --peers ggml)")
    return options


def main() -> None:
    options = arguments()
    os.sched_setaffinity(0, {options.core})
    runs = [Run(options.binary, "peers", rows, options.rounds) for rows in options.rows]
    keep = Run(options.binary, "keep", options.keep_rows, options.rounds)
    encode = Run(options.binary, "encode", options.encode_rows, options.rounds)
    print(f"{cpu_name()}, core {options.core}; kernels for {runs[0].target}; 32/8 heads, dim 128, "
          f"one thread, {options.rounds} rounds\n"
          "checked: every output is as near to exact attention over its decoded rows as rounding "
          "explains")  # fmt: skip
    for run in runs:
        print_peers(run)
    if len(runs) > 1:
        print_growth(runs)
    print_keep(keep)
    print_encoding(encode)
    if options.json:
        results = {"cpu": cpu_name(), "target": runs[0].target, "rounds": options.rounds,
                   "runs": [run.as_json() for run in [*runs, keep, encode]]}  # fmt: skip
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
