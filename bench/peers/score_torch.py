#!/usr/bin/env python3
"""SnapKV scoring and selection of one layer: PyTorch and kvsieve take turns on one core.

32 query heads, 8 KV heads, dim 128, window 32. Both get the same keys (half precision) and f32
queries; the kept rows are compared before anything is timed. Times are CPU time of the one thread
that works. See docs/performance.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent.parent
QUERY_HEADS, KV_HEADS, DIM, WINDOW, SINKS, POOL = 32, 8, 128, 32, 4, 7
GROUP = QUERY_HEADS // KV_HEADS


def smoothed_scores(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """[KV heads, rows before the window]. Logits are in the type of both, the softmax is in f32."""
    rows = keys.shape[1]
    scaled = (queries * DIM**-0.5).view(KV_HEADS, GROUP * WINDOW, DIM)  # cheaper than the logits
    logits = torch.matmul(scaled, keys.transpose(1, 2)).view(KV_HEADS, GROUP, WINDOW, rows)
    later = torch.full((WINDOW, WINDOW), float("-inf"), dtype=logits.dtype).triu(1)
    logits[..., -WINDOW:] += later
    weights = F.softmax(logits, dim=-1, dtype=torch.float32)
    scores = weights[..., :-WINDOW].mean(dim=(1, 2))
    return F.max_pool1d(scores, POOL, stride=1, padding=POOL // 2)


def select(scores: torch.Tensor, budget: int) -> torch.Tensor:
    """[KV heads, budget - window], in order of score; the window's rows stay as well."""
    scores[:, :SINKS] = float("inf")
    return scores.topk(budget - WINDOW, dim=-1).indices


class Torch:
    """One type of the logits. Keys that come in another are converted each time."""

    def __init__(self, name: str, dtype: torch.dtype, queries, keys, budget: int):
        self.name, self.dtype, self.budget = name, dtype, budget
        self.queries, self.keys, self.keys_dtype = queries, keys, keys.dtype

    def kept(self) -> list[set[int]]:
        scores = smoothed_scores(self.queries.to(self.dtype), self.keys.to(self.dtype))
        window = range(self.keys.shape[1] - WINDOW, self.keys.shape[1])
        return [set(head.tolist()) | set(window) for head in select(scores, self.budget)]

    def run(self) -> float:
        begin = time.thread_time_ns()
        select(smoothed_scores(self.queries.to(self.dtype), self.keys.to(self.dtype)), self.budget)
        return (time.thread_time_ns() - begin) / 1e6

    def close(self):
        pass


class Kvsieve:
    def __init__(self, name: str, binary: Path, folder: Path, queries, keys, budget: int):
        self.name, self.scratch_bytes, self.keys_dtype = name, 0, keys.dtype
        kind = {torch.float16: "f16", torch.bfloat16: "bf16"}[keys.dtype]
        file = folder / kind
        with open(file, "wb") as out:
            out.write(queries.contiguous().numpy().tobytes())
            out.write(keys.contiguous().view(torch.int16).numpy().tobytes())
        spec = f"snapkv(budget={budget},window={WINDOW},sinks={SINKS},pool=max:{POOL})"
        self.process = subprocess.Popen(
            [binary, file, kind, str(keys.shape[1]), spec],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, command: str, lines: int) -> list[str]:
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        answer = [self.process.stdout.readline() for _ in range(lines)]
        if not answer[-1]:
            sys.exit(f"score_torch: score_peer ended at '{command}'")
        return answer

    def kept(self) -> list[set[int]]:
        self.run()
        return [set(map(int, line.split())) for line in self.ask("kept", KV_HEADS)]

    def run(self) -> float:
        nanoseconds, self.scratch_bytes = map(int, self.ask("run", 1)[0].split())
        return nanoseconds / 1e6

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def relative_tolerance(queries, keys) -> float:
    """Of scores computed in f32 in two ways, each with the error bound of evict/window_scores.h."""
    rows = keys.shape[1]
    # sum |q_d k_d| <= |q| |k|
    product = queries.norm(dim=-1).max() * keys.float().norm(dim=-1).max()
    logit = (DIM + 2) * 2**-24 * DIM**-0.5 * float(product)
    return 2 * (4e-6 + (68 + rows / 64) * 2**-24 + 2 * logit)


def check(ours: list[set[int]], queries, keys, budget: int) -> tuple[int, float]:
    """In how many rows kvsieve and PyTorch f32 differ, and how far from the score of the last row
    that PyTorch keeps these are, relative to it. More than f32's error is the end."""
    scores = smoothed_scores(queries, keys.float())
    theirs = Torch("", torch.float32, queries, keys, budget).kept()
    tolerance = relative_tolerance(queries, keys)
    differing, farthest = 0, 0.0
    for head, (mine, other) in enumerate(zip(ours, theirs)):
        if len(mine) != budget:
            sys.exit(f"score_torch: kvsieve keeps {len(mine)} rows of head {head}, not {budget}")
        cut = float(scores[head].topk(budget - WINDOW - SINKS).values[-1])
        for row in mine ^ other:
            in_window = row >= scores.shape[1]
            gap = float("inf") if in_window else abs(float(scores[head, row]) / cut - 1)
            if row < SINKS or gap > tolerance:
                sys.exit(f"score_torch: head {head} row {row} is {gap:.2g} from the cut")
            differing, farthest = differing + 1, max(farthest, gap)
    return differing, farthest


def agreement(kept: list[set[int]], exact: list[set[int]]) -> float:
    """Percent of the rows kept that PyTorch f32 keeps as well."""
    return 100 * sum(len(a & b) for a, b in zip(kept, exact)) / sum(map(len, exact))


def measure(contenders: list, rounds: int) -> dict[str, list[float]]:
    times = {contender.name: [] for contender in contenders}
    for contender in contenders:
        contender.run()  # memory and caches
    for _ in range(rounds):
        for contender in contenders:
            times[contender.name].append(contender.run())
    return times


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=32768, help="tokens of the prompt")
    parser.add_argument("--budget", type=int, default=512, help="rows that stay, per KV head")
    parser.add_argument("--rounds", type=int, default=15, help="timed turns of each")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--binary", type=Path, default=ROOT / "build/release/bin/score_peer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all times as well")
    options = parser.parse_args()
    if not options.binary.exists():
        parser.error(f"{options.binary} is not built (./dev build)")
    return options


def main() -> None:
    options = arguments()
    os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    torch.manual_seed(1)
    budget = options.budget
    # Twice the usual spread of logits, so that some rows stand out.
    queries = 2 * torch.randn(QUERY_HEADS, WINDOW, DIM)
    keys = torch.randn(KV_HEADS, options.rows, DIM)
    f16, bf16 = keys.half(), keys.bfloat16()
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        ours = [
            Kvsieve("kvsieve, f16 keys", options.binary, Path(folder), queries, f16, budget),
            Kvsieve("kvsieve, bf16 keys", options.binary, Path(folder), queries, bf16, budget),
        ]
        theirs = [
            Torch("PyTorch f32, f16 keys", torch.float32, queries, f16, budget),
            Torch("PyTorch f16, f16 keys", torch.float16, queries, f16, budget),
            Torch("PyTorch bf16, bf16 keys", torch.bfloat16, queries, bf16, budget),
        ]
        checks = [check(ours[0].kept(), queries, f16, budget),
                  check(ours[1].kept(), queries, bf16, budget)]  # fmt: skip
        exact = {keys.dtype: Torch("", torch.float32, queries, keys, budget).kept()
                 for keys in (f16, bf16)}  # fmt: skip
        for contender in ours + theirs:
            contender.agreement = agreement(contender.kept(), exact[contender.keys_dtype])
        times = measure(ours + theirs, options.rounds)
        for contender in ours + theirs:
            contender.close()
    report(options, ours, theirs, times, checks)


def report(options, ours, theirs, times, checks) -> None:
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"{cpu_name()}, core {options.core}; torch {torch.__version__}; {options.rows} rows, "
          f"{QUERY_HEADS}/{KV_HEADS} heads, dim {DIM}, window {WINDOW}, {options.rounds} rounds\n"
          f"\n{'':26}{'median ms':>10}{'least':>9}{'most':>9}{'/ kvsieve':>11}"
          f"{'rows as f32':>13}")  # fmt: skip
    for contender in ours + theirs:
        name = contender.name
        peer = next(own.name for own in ours if own.keys_dtype == contender.keys_dtype)
        print(f"{name:26}{medians[name]:10.1f}{min(times[name]):9.1f}{max(times[name]):9.1f}"
              f"{medians[name] / medians[peer]:11.2f}{contender.agreement:11.1f} %")  # fmt: skip
    scratch = max(contender.scratch_bytes for contender in ours)
    differing, farthest = sum(count for count, _ in checks), max(gap for _, gap in checks)
    print(f"\nscratch of kvsieve: {scratch / 2**20:.1f} MiB\n"
          f"checked: of 2 x {KV_HEADS} x {options.budget} rows, {differing} are kept by only one of "
          f"kvsieve and PyTorch f32;\n"
          f"their scores are at most {farthest:.1g} from that of the last row kept, relative to it")  # fmt: skip
    if options.json:
        results = {
            "cpu": cpu_name(), "torch": torch.__version__, "rows": options.rows,
            "budget": options.budget, "rounds": options.rounds, "rows_differing": differing,
            "farthest_from_cut": farthest,
            "scratch_bytes": scratch, "median_ms": medians, "times_ms": times,
            "rows_as_f32_percent": {c.name: c.agreement for c in ours + theirs},
        }  # fmt: skip
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
