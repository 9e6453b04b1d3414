"""Runs VeloxQuant-MLX's SnapKV cache: update_and_fetch for each chunk."""

from importlib.metadata import version
from types import SimpleNamespace

import numpy as np

from selection import Refused, exactly

try:
    import mlx.core as mx
    from veloxquant_mlx.cache.snapkv_cache import SnapKVKVCache
    from veloxquant_mlx.core.exceptions import QuantizerConfigError
    MISSING = None
except ImportError as error:
    MISSING = f"veloxquant-mlx and mlx ({error})"


def system():
    return {"system": "rajveer43/VeloxQuant-MLX SnapKVKVCache",
            "version": f"veloxquant-mlx {version('veloxquant-mlx')}",
            "with": f"mlx {version('mlx')}, mlx-lm {version('mlx-lm')}"}


def run(prompt, budget=512, window=32, sinks=4):
    """[layer][kv_head] Kept: the rows that the cache stores after the prompt and decode."""
    try:
        return [run_layer(prompt, layer, budget, window, sinks) for layer in range(prompt.layers)]
    except QuantizerConfigError as error:
        raise Refused(str(error)) from error


def run_layer(prompt, layer, budget, window, sinks):
    cache = SnapKVKVCache(SimpleNamespace(snap_budget=budget, snap_obs_window=window,
                                          snap_n_sink=sinks))
    keys = mx.array(prompt.keys(layer))[None]
    # The values say which row they are; f16, in which they are stored, is exact up to 2048.
    assert prompt.tokens <= 2048
    rows = mx.arange(prompt.tokens).astype(mx.float32)[None, None, :, None]
    values = mx.broadcast_to(rows, keys.shape)
    seen = 0
    for count in prompt.chunk_rows():
        cache.update_and_fetch(keys[:, :, seen:seen + count], values[:, :, seen:seen + count])
        seen += count
    # Not `state`, which slices by the true position.
    stored = cache.values[0, :, :cache._row_offset, 0].astype(mx.float32)
    return [exactly(head) for head in np.array(stored)]
