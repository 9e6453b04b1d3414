#!/usr/bin/env python3
"""Draws docs/images/tiers.svg: what the rows of one head are worth, and the tiers that a plan gives them.

.venv/bin/python python/tiers_picture.py > docs/images/tiers.svg"""

import argparse
import math
import subprocess
import tempfile
from pathlib import Path

import numpy
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parent.parent
COLOURS = ["#1b4f72", "#2e86c1", "#85c1e9", "#d5d8dc"]  # finest tier first; gone
WIDTH, HEIGHT, LEFT, TOP = 640, 230, 60, 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, default=ROOT / "data/smollm2-135m-small.safetensors")
    parser.add_argument("--spec", default="best(8x)")
    parser.add_argument("--layer", type=int, default=14)
    parser.add_argument("--head", type=int, default=2)
    parser.add_argument("--kvsieve", type=Path, default=ROOT / "build/release/bin/kvsieve")
    return parser.parse_args()


def attention(trace: dict, layer: int, head: int) -> numpy.ndarray:
    """Mean weight that the last 32 queries of the head's group give each row."""
    keys = trace[f"layer.{layer}.k"][head].astype(numpy.float64)
    queries = trace[f"layer.{layer}.q_window"].astype(numpy.float64)
    group = len(queries) // len(trace[f"layer.{layer}.k"])
    total = numpy.zeros(len(keys))
    for query in queries[head * group : (head + 1) * group, -32:]:
        logits = query @ keys.T / math.sqrt(keys.shape[1])
        seen = numpy.arange(len(keys)) <= numpy.arange(len(keys) - 32, len(keys))[:, None]
        weights = numpy.where(seen, numpy.exp(logits - logits.max(1, keepdims=True)), 0)
        total += (weights / weights.sum(1, keepdims=True)).mean(0)
    return total / group


def tiers(args, rows: int) -> numpy.ndarray:
    """Of each row its tier, -1 where it is exact, -2 where it is gone."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.safetensors"
        subprocess.run(
            [args.kvsieve, "compact", args.trace, "-p", args.spec, "-o", out, "--quiet"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        kept = load_file(out)
    stem = f"layer.{args.layer}.head.{args.head}."
    found = numpy.full(rows, -2)
    found[kept[stem + "positions"]] = kept[stem + "tiers"]
    return found


def draw(weights: numpy.ndarray, tier: numpy.ndarray, names: list[str]) -> list[str]:
    order = numpy.argsort(-weights, kind="stable")
    step = WIDTH / len(order)
    low, high = -8, 0
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {TOP + HEIGHT + 76}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for decade in range(low, high + 1, 2):
        y = TOP + HEIGHT * (high - decade) / (high - low)
        lines.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">1e{decade}</text>')
    for place, row in enumerate(order):
        log = min(high, max(low, math.log10(max(weights[row], 1e-30))))
        y = TOP + HEIGHT * (high - log) / (high - low)
        colour = "#c0392b" if tier[row] == -1 else COLOURS[3 if tier[row] == -2 else tier[row]]
        lines.append(
            f'<rect x="{LEFT + place * step:.2f}" y="{y:.1f}" width="{step + 0.1:.2f}" '
            f'height="{TOP + HEIGHT - y + 0.5:.1f}" fill="{colour}"/>'
        )
    lines.append(
        f'<text x="{LEFT}" y="{TOP + HEIGHT + 18}">rows of the head, most attended first; height: mean '
        "attention of the last 32 queries</text>"
    )
    x = LEFT
    for name, colour in zip(names, ["#c0392b", *COLOURS]):
        lines.append(f'<rect x="{x}" y="{TOP + HEIGHT + 32}" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{x + 17}" y="{TOP + HEIGHT + 42}">{name}</text>')
        x += 128
    return [*lines, "</svg>"]


def main() -> None:
    args = arguments()
    trace = load_file(args.trace)
    weights = attention(trace, args.layer, args.head)
    tier = tiers(args, len(weights))
    names = [
        f"{name}: {int((tier == number).sum())} rows"
        for name, number in [("exact", -1), ("tier 0", 0), ("tier 1", 1), ("tier 2", 2), ("gone", -2)]
    ]
    print("\n".join(draw(weights, tier, names)))


if __name__ == "__main__":
    main()
