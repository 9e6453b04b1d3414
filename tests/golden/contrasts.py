"""Where an original is wrong or approximates: both keep sets, side by side.

A side is a prompt with the rows that are kept of it, and the spec that gives them; the side that
kvsieve has no spec for has none. `preset` says which side the preset follows.
"""

from dataclasses import dataclass, replace
from typing import Optional

import formulas
from prompts import Prompt
from selection import Unclear


@dataclass(frozen=True)
class Side:
    prompt: Prompt
    kept: list
    spec: Optional[str] = None


@dataclass(frozen=True)
class Contrast:
    name: str
    why: str
    original: Side
    right: Side
    preset: str = "original"


def differing(build):
    """The first seed with which both sides are clear and differ."""
    for seed in range(1, 2000):
        try:
            contrast = build(seed)
        except Unclear:
            continue
        if contrast.original.kept != contrast.right.kept:
            return contrast
    raise RuntimeError("no seed tells the two sides apart")


def per_query_head(name, budget, pool, pad, window):
    def build(seed):
        prompt = Prompt(4, 2, 16, 150, seed=seed)
        repeated = prompt.repeated()
        spec = f"{name}(budget={budget})"
        return Contrast(
            "a set per query head",
            "The original repeats K and V for every query head before it stores them: with GQA, "
            "a group times the memory. The preset keeps one set per KV head, by the mean over its "
            "query heads; on a cache that repeats the heads it is the original.",
            Side(repeated, formulas.snapkv(repeated, budget, window, pool, pad), spec),
            Side(prompt, formulas.snapkv(prompt, budget, window, pool, pad), spec), "right")
    return differing(build)


def zero_padding(spec, prompt, original, right, right_spec):
    """`original` and `right`: functions of the prompt."""
    def build(seed):
        seeded = prompt.with_seed(seed)
        return Contrast(
            "zeros beyond the ends",
            "The average over 5 rows counts rows beyond the ends of the prefix as zeros, so that "
            "the outermost rows have 0.6 and 0.8 of their score: the first rows, and those just "
            "before the window.",
            Side(seeded, original(seeded), spec), Side(seeded, right(seeded), right_spec))
    return differing(build)


def snapkv_paper():
    return [per_query_head("snapkv_paper", 64, ("max", 7), "exclude", 32)]


def snapkv_reference():
    pool = ("avg", 5)
    return [
        per_query_head("snapkv_reference", 96, pool, "zero", 64),
        zero_padding(
            "snapkv_reference(budget=96)", Prompt(4, 2, 16, 150),
            lambda p: formulas.snapkv(p, 96, 64, pool, "zero"),
            lambda p: formulas.snapkv(p, 96, 64, pool, "exclude"),
            "window_attention(budget=96,window=64,queries=sum,pool=avg:5,pool_pad=exclude,"
            "sinks=0)"),
    ]


def snapkv_d():
    def chunked(seed):
        prompt = Prompt(4, 2, 16, 200, layers=2, seed=seed, chunks=[120, 60, 20])
        scores = formulas.snapkv_d_chunked_scores(prompt)
        return Contrast(
            "prompt in chunks",
            "The original adds the attention of the last queries of every chunk, each over the "
            "rows so far, from row 0 on: early rows are seen more often. The preset scores with "
            "the last queries of the prompt, whatever its chunks.",
            Side(prompt, formulas.snapkv_d(prompt, 64, scores=scores)),
            Side(prompt, formulas.snapkv_d(prompt, 64), "snapkv_d(budget=64)"), "right")

    def capped(seed):
        prompt = Prompt(4, 2, 16, 150, layers=2, seed=seed)
        return Contrast(
            "sinks of a small budget",
            "The earlier revision keeps no more than an eighth of the budget as sinks: 2 of 4 at "
            "16 rows. The later one keeps them all; so does the preset, unless "
            "guarantee_sinks=false is given.",
            Side(prompt, formulas.snapkv_d(prompt, 16, guarantee_sinks=False),
                 "snapkv_d(budget=16,guarantee_sinks=false)"),
            Side(prompt, formulas.snapkv_d(prompt, 16), "snapkv_d(budget=16)"), "right")

    return [differing(chunked), differing(capped)]


def velox_snapkv(run):
    def clear(prompt, budget):
        formulas.velox_snapkv(prompt, budget)  # raises where rounding could decide
        return run(prompt, budget=budget)

    def unmasked(seed):
        prompt = Prompt(4, 2, 32, 120, seed=seed)
        return Contrast(
            "keys of the window see later rows",
            "The original has no causal mask inside the window: a key stands in for a query, but "
            "attends to rows that come after it.",
            Side(prompt, clear(prompt, 40), "velox_snapkv(budget=40)"),
            Side(prompt, formulas.velox_snapkv(prompt, 40, causal=True),
                 "velox_snapkv(budget=40,causal=true)"))

    def greedy(seed):
        prompt = Prompt(2, 1, 32, 150, seed=seed, chunks=[50, 50, 50])
        whole = replace(prompt, chunks=[])
        return Contrast(
            "early decisions are final",
            "A row that an early chunk drops cannot come back, though the end of the prompt would "
            "have asked for it. Memory stays bounded in exchange; schedule=once decides at the "
            "end.",
            Side(prompt, clear(prompt, 40), "velox_snapkv(budget=40) | schedule=per_chunk"),
            Side(whole, clear(whole, 40), "velox_snapkv(budget=40)"))

    return [differing(unmasked), differing(greedy)]


def sharp_snapkv():
    def gate(seed):
        prompt = Prompt(4, 2, 16, 60, layers=2, seed=seed)
        return Contrast(
            "prompt not longer than the window",
            "The original only runs on prompts longer than its window of 64, so that a shorter "
            "one stays above its budget.",
            Side(prompt, formulas.sharp_snapkv(prompt, 40), "sharp_snapkv(budget=40)"),
            Side(prompt, formulas.sharp_snapkv(prompt, 40, recent=16, gate=False),
                 "window_attention(budget=40,window=64,queries=sum,group=sum,scope=model,pool=none,"
                 "sinks=0,recent=16,protect_window=false)"))
    return [differing(gate)]


def kvpress_snapkv(run):
    def clear(prompt, percent):
        formulas.kvpress_snapkv(prompt, percent)
        return run(prompt, budget=f"{percent}%")

    def rounding(seed):
        prompt = Prompt(2, 1, 16, 1000, seed=seed)
        return Contrast(
            "10 % of 1000 is 99",
            "The original keeps int(T * (1 - ratio)) rows; 1 - 0.9 is a little less than 0.1. "
            "kvsieve's own percentages are exact.",
            Side(prompt, clear(prompt, "10"), "kvpress_snapkv(budget=10%)"),
            Side(prompt, formulas.kvpress_snapkv(prompt, "10", rows=100),
                 "window_attention(budget=10%,window=64,pool=avg:5,pool_pad=zero,sinks=0)"))

    return [
        differing(rounding),
        zero_padding(
            "kvpress_snapkv(budget=60%)", Prompt(4, 2, 16, 150), lambda p: clear(p, "60"),
            lambda p: formulas.kvpress_snapkv(p, "60", pad="exclude"),
            "window_attention(budget=60%,window=64,pool=avg:5,pool_pad=exclude,sinks=0)"),
    ]


CONTRASTS = {
    "snapkv_paper": snapkv_paper, "snapkv_reference": snapkv_reference, "snapkv_d": snapkv_d,
    "velox_snapkv": velox_snapkv, "sharp_snapkv": sharp_snapkv, "kvpress_snapkv": kvpress_snapkv,
}
