#!/usr/bin/env python3
"""Records the attention inputs of a transformers model as kv-trace 1. See docs/evaluate.md."""

import argparse
from pathlib import Path


def layer_list(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, help="text whose beginning is the prompt")
    parser.add_argument("-o", "--output", type=Path, required=True, help="trace to write")
    parser.add_argument("--model", default="smollm2-135m", help="name or local folder")
    parser.add_argument("--license", help="licence of a local model, for the metadata")
    parser.add_argument("--tokens", type=int, default=1024, help="prompt tokens")
    parser.add_argument("--eval", type=int, default=48, help="tokens after the prompt")
    parser.add_argument("--window", type=int, default=64, help="prompt queries to keep")
    parser.add_argument("--layers", type=layer_list, help="only these: 0,7,14")
    parser.add_argument("--dtype", choices=["f16", "bf16", "f32"], default="f16", help="of K, V, Q")
    parser.add_argument("--source", help="where the text is from, for the metadata")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    import torch

    from kvsieve_lab import models, recording, trace

    torch.set_num_threads(args.threads)
    loaded = models.load(args.model)
    ids = [*loaded.begin, *loaded.encode(args.text.read_text())]
    end = args.tokens + args.eval
    if len(ids) < end:
        raise SystemExit(f"{args.text} has {len(ids)} tokens, {end} are needed")
    recorded = recording.record(loaded.model, ids[: args.tokens], ids[args.tokens : end], args.window)
    about = {
        "model.name": loaded.name,
        "model.license": args.license or loaded.license,
        "text.source": args.source or args.text.name,
    }
    trace.write_trace(
        args.output, recorded, loaded.model, about, layers=args.layers, dtype=args.dtype
    )
    print(f"{args.output}: {args.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
