"""Runs kvpress's SnapKVPress as its own code runs it: compress() of an attention module."""

from importlib.metadata import version

import numpy as np

from formulas import kvpress_ratio
from selection import Refused, exactly

try:
    import torch
    from kvpress import SnapKVPress
    MISSING = None
except ImportError as error:
    MISSING = f"kvpress and torch ({error})"


def system():
    return {"system": "NVIDIA/kvpress SnapKVPress", "version": f"kvpress {version('kvpress')}",
            "with": f"torch {version('torch')}, transformers {version('transformers')}"}


def attention_module(prompt):
    """What the press asks a Llama attention layer for. The hidden states are the queries."""
    module = torch.nn.Module()
    module.config = type("Config", (), {"num_attention_heads": prompt.query_heads,
                                        "num_key_value_heads": prompt.kv_heads})()
    module.head_dim = prompt.dim
    module.q_proj = torch.nn.Identity()
    return module


def run(prompt, percent, window=64):
    """[layer][kv_head] Kept. The press sees the whole prompt, whatever its chunks."""
    try:
        return [run_layer(prompt, layer, percent, window) for layer in range(prompt.layers)]
    except AssertionError as error:
        raise Refused(str(error)) from error


def run_layer(prompt, layer, percent, window):
    press = SnapKVPress(compression_ratio=kvpress_ratio(percent), window_size=window)
    queries = torch.from_numpy(prompt.queries(layer))
    hidden = queries.transpose(0, 1).reshape(1, prompt.tokens, -1)
    keys = torch.from_numpy(prompt.keys(layer))[None]
    # The values say which row they are.
    values = torch.arange(prompt.tokens, dtype=torch.float32)[None, None, :, None]
    values = values.expand_as(keys)
    unrotated = (torch.ones(1, prompt.tokens, prompt.dim), torch.zeros(1, prompt.tokens, prompt.dim))
    _, kept = press.compress(attention_module(prompt), hidden, keys, values, None,
                             {"position_embeddings": unrotated})
    return [exactly(head) for head in kept[0, :, :, 0].numpy().astype(np.int64)]
