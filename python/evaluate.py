#!/usr/bin/env python3
"""Measures on a living model what pipelines cost. See docs/evaluate.md."""

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def int_list(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "-p", "--pipeline", action="append", default=[], dest="specs", metavar="SPEC",
        help="a kvsieve spec, or kvpress:SnapKVPress@25%%, or `exact`; repeat it for more",
    )  # fmt: skip
    parser.add_argument(
        "--specs", type=Path, dest="list", metavar="FILE", help="more: one a line, and # comments"
    )
    parser.add_argument("--model", default="smollm2-135m", help="name or local folder")
    parser.add_argument(
        "--texts", nargs="+", type=Path, default=sorted((ROOT / "data/texts").glob("*.txt"))
    )
    parser.add_argument("--tokens", type=int_list, default=[1024], help="prompt sizes: 1024,3072")
    parser.add_argument("--eval", type=int, default=256, help="tokens scored after the prompt")
    parser.add_argument("--copy", type=int, default=0, metavar="N", help="copy task, prompt of N")
    parser.add_argument("--needle", type=int, default=0, metavar="N", help="needles in N tokens")
    parser.add_argument("--trials", type=int, default=4, help="needle trials per depth and text")
    parser.add_argument(
        "--leave-one-out", action="store_true",
        help="choose by the mean KLD of all texts but one, and show the regret on that one",
    )  # fmt: skip
    parser.add_argument("--kvsieve", type=Path, default=ROOT / "build/release/bin/kvsieve")
    parser.add_argument("--state", type=Path, default=ROOT / "build/evaluate.jsonl")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--markdown", type=Path, help="write the tables there, not to stdout")
    parser.add_argument("--dtype", choices=["f16", "bf16", "f32"], default="f16", help="of traces")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if args.list:
        args.specs += listed_specs(args.list)
    if not args.specs:
        parser.error("no pipeline: -p SPEC or --specs FILE")
    return args


def listed_specs(path: Path) -> list[str]:
    lines = (line.strip() for line in path.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def all_tasks(args, loaded) -> list:
    from kvsieve_lab import tasks

    result = []
    for path in args.texts:
        name, text = path.stem, path.read_text()
        for n_prompt in args.tokens:
            result.append(tasks.text_task(loaded, name, text, n_prompt, args.eval))
        if args.copy:
            result.append(tasks.copy_task(loaded, name, text, args.copy, args.eval))
        if args.needle:
            result += tasks.needle_tasks(loaded, name, text, args.needle, args.trials)
    return result


def main() -> None:
    args = arguments()
    if not args.kvsieve.exists():
        raise SystemExit(f"{args.kvsieve} is not there: ./dev build, or --kvsieve FILE")
    import torch

    from kvsieve_lab import models, summary
    from kvsieve_lab.attention import Unsupported
    from kvsieve_lab.compactor import CompactError, Compactor
    from kvsieve_lab.harness import Harness
    from kvsieve_lab.state import State
    from kvsieve_lab.tasks import TooShort

    torch.set_num_threads(args.threads)
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - begun:6.0f} s] {text}", file=sys.stderr, flush=True)

    args.state.parent.mkdir(parents=True, exist_ok=True)
    loaded = models.load(args.model)
    compactor = Compactor(args.kvsieve.resolve(), args.threads)
    harness = Harness(loaded, compactor, State(args.state), args.dtype, say)
    try:
        measured = list(harness.run(all_tasks(args, loaded), args.specs))
    except (CompactError, TooShort, Unsupported) as error:
        raise SystemExit(f"evaluate: {error}") from error
    about = {"model": loaded.name, "n_eval": args.eval, "kvsieve": compactor.identity()}
    figures = summary.summarize(measured, args.specs, about)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    text = summary.markdown(figures, args.leave_one_out)
    if args.markdown:
        args.markdown.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
