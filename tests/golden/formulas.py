"""The keep sets of each system from its formulas, in double precision, in words of our own.

A function takes a prompt and the system's settings and returns [layer][kv_head] Kept, where the
two indexes run over all layers and heads even where they share one set. It raises Unclear when
rounding could decide.
"""

from decimal import Decimal

import numpy as np

from prompts import Prompt
from selection import exactly, fill, top, Kept


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def attention(queries, keys, causal):
    """Weights [heads, window, rows] of the last queries over all keys; float64 in and out."""
    logits = queries @ keys.swapaxes(-1, -2) / np.sqrt(keys.shape[-1])
    if causal:
        window, rows = logits.shape[-2:]
        later = np.arange(rows) > (rows - window + np.arange(window))[:, None]
        logits = np.where(later, -np.inf, logits)
    return softmax(logits)


def window_attention(prompt, layer, window):
    """[query_heads, window, tokens]: the last `window` queries, each over the rows up to itself."""
    window = min(window, prompt.tokens)
    keys = prompt.keys(layer).astype(np.float64)
    group = prompt.query_heads // prompt.kv_heads
    queries = prompt.queries(layer)[:, -window:].astype(np.float64)
    return attention(queries, np.repeat(keys, group, axis=0), causal=True)


def pooled(scores, kind, kernel, pad):
    """Smooths [heads, rows] over rows. What lies beyond the ends is left out (`exclude`), or counts
    as rows of score 0 (`zero`)."""
    half = kernel // 2
    rows = scores.shape[-1]
    out = np.empty_like(scores)
    for i in range(rows):
        near = scores[:, max(0, i - half):min(rows, i + half + 1)]
        if kind == "max":
            out[:, i] = near.max(axis=-1)
        else:
            out[:, i] = near.sum(axis=-1) / (kernel if pad == "zero" else near.shape[-1])
    return out


def everything(prompt):
    return [[exactly(range(prompt.tokens))] * prompt.kv_heads for _ in range(prompt.layers)]


def snapkv(prompt: Prompt, budget, window, pool, pad="exclude"):
    """SnapKV (arXiv:2404.14469): sum over the window of the weights of the rows before it, pooled
    over those rows; the window stays. The original does so per query head. Where several share a KV
    head, their mean is pooled."""
    if prompt.tokens <= budget:
        return everything(prompt)
    kept = []
    for layer in range(prompt.layers):
        weights = window_attention(prompt, layer, window)[..., :-window].sum(axis=1)
        weights = weights.reshape(prompt.kv_heads, -1, weights.shape[-1]).mean(axis=1)
        scores = pooled(weights, *pool, pad)
        kept.append([with_window(s, budget, window) for s in scores])
    return kept


def with_window(prefix_scores, budget, window):
    """The observation window, and the best rows before it; torch.topk leaves ties open."""
    prefix = len(prefix_scores)
    certain, tied = top(prefix_scores, range(prefix), budget - window, "any")
    return Kept(tuple(sorted([*certain, *range(prefix, prefix + window)])), tied, budget)


def summed(prompt, window):
    """Weights of the window queries, summed over queries, heads and layers: [tokens]."""
    return sum(window_attention(prompt, layer, window).sum(axis=(0, 1))
               for layer in range(prompt.layers))


def one_set(prompt, kept):
    return [[kept] * prompt.kv_heads for _ in range(prompt.layers)]


def snapkv_d(prompt: Prompt, budget=512, window=24, sinks=4, recent=None, min_tokens=128,
             guarantee_sinks=True, scores=None):
    """SnapKV-D: one set for the model: first rows, newest rows, then the best; the later of equal
    rows first. `scores` replaces those of the prompt seen at once."""
    if prompt.tokens <= min_tokens or budget >= prompt.tokens:
        return everything(prompt)
    if not guarantee_sinks:
        sinks = min(sinks, max(1, budget // 8))
    sinks = min(sinks, budget)
    recent = max(1, budget // 8) if recent is None else recent
    recent = min(recent, budget - sinks)
    always = {*range(sinks), *range(prompt.tokens - recent, prompt.tokens)}
    scores = summed(prompt, window) if scores is None else scores
    return one_set(prompt, fill(scores, always, budget, "high"))


def snapkv_d_chunked_scores(prompt: Prompt, window=24):
    """What SnapKV-D's capture holds after a prompt in chunks: the last queries of every chunk, each
    over the rows so far, added from row 0 on."""
    scores = np.zeros(prompt.tokens)
    seen = 0
    for rows in prompt.chunk_rows():
        seen += rows
        for layer in range(prompt.layers):
            keys = prompt.keys(layer)[:, :seen].astype(np.float64)
            last = prompt.queries(layer)[:, seen - min(window, rows):seen].astype(np.float64)
            keys = np.repeat(keys, prompt.query_heads // prompt.kv_heads, axis=0)
            scores[:seen] += attention(last, keys, causal=True).sum(axis=(0, 1))
    return scores


def sharp_auto(max_tokens):
    """SharpInference's budget when none is set: a quarter of the context, between 1024 and 4096."""
    quarter = max_tokens // 4
    return min(4096, quarter if quarter >= 1024 else min(1024, max_tokens))


def sharp_snapkv(prompt: Prompt, budget, window=64, recent=64, gate=True):
    """SharpInference: one set for the model: newest rows, then the best; the earlier of equal rows
    first. Only runs on prompts longer than the window (`gate`)."""
    if budget >= prompt.tokens or (gate and prompt.tokens <= window):
        return everything(prompt)
    recent = min(recent, budget)
    always = range(prompt.tokens - recent, prompt.tokens)
    return one_set(prompt, fill(summed(prompt, window), always, budget, "low"))


def velox_snapkv(prompt: Prompt, budget=512, window=32, sinks=4, causal=False):
    """VeloxQuant-MLX: the last keys of a head stand in for queries and see all rows; first rows,
    then the best, the earlier of equal rows first. After each chunk of several rows the budget is
    met again over what stayed and the chunk; single rows stay until then."""
    return [[exactly(velox_head(prompt, keys.astype(np.float64), budget, window, sinks, causal))
             for keys in prompt.keys(layer)] for layer in range(prompt.layers)]


def velox_head(prompt, keys, budget, window, sinks, causal):
    stored, seen = [], 0
    for rows in prompt.chunk_rows():
        stored = [*stored, *range(seen, seen + rows)]
        seen += rows
        if rows > 1 and len(stored) > budget:
            candidates = keys[stored]
            weights = attention(candidates[None, -window:], candidates[None], causal)
            scores = weights[0].mean(axis=0)
            kept = fill(scores, range(min(sinks, budget)), budget, "low")
            stored = [stored[i] for i in kept.certain]
    return stored


def kvpress_ratio(percent):
    """The compression ratio that a user of kvpress writes to keep `percent`."""
    return float(1 - Decimal(percent) / 100)


def kvpress_snapkv(prompt: Prompt, percent, window=64, rows=None, pad="zero"):
    """kvpress SnapKVPress: mean over the window, average pool of 5 with rows of score 0 beyond the
    ends, mean over the group (in either order the same); window rows rank above all others and
    alike."""
    ratio = kvpress_ratio(percent)
    if prompt.tokens <= window or ratio == 0:
        return everything(prompt)
    if rows is None:
        rows = max(1, int(prompt.tokens * (1 - ratio)))
    if rows < window:
        newest = tuple(range(prompt.tokens - window, prompt.tokens))
        return one_set(prompt, Kept((), newest, rows))
    return snapkv(prompt, rows, window, ("avg", 5), pad)
