"""kvpress's presses in the same harness: `kvpress:SnapKVPress@25%` keeps 25 % of the rows.

The press compresses the model's cache in its own way during prefill; the rows that stay are then
attended to by the same code as kvsieve's."""

import re

import torch
from transformers import DynamicCache

from .attention import KeptRows, Unsupported

PREFIX = "kvpress:"
_SPEC = re.compile(r"kvpress:(\w+)(?:\((\w+)\))?@(\d+(?:\.\d+)?)%")


def make_press(spec: str):
    """The press of `kvpress:Press@kept%` or `kvpress:Wrapper(Press)@kept%`, else its defaults."""
    match = _SPEC.fullmatch(spec)
    if not match:
        raise Unsupported(f"'{spec}' is not kvpress:Press@25% or kvpress:Wrapper(Press)@25%")
    import kvpress

    outer, inner, kept = match.group(1), match.group(2), float(match.group(3))
    for name in filter(None, (outer, inner)):
        if not hasattr(kvpress, name):
            raise Unsupported(f"kvpress has no {name}")
    if not 0 < kept <= 100:
        raise Unsupported(f"'{spec}' keeps {kept:g} %")
    press = getattr(kvpress, inner or outer)(compression_ratio=1 - kept / 100)
    return getattr(kvpress, outer)(press) if inner else press


@torch.inference_mode()
def pressed_rows(model, prompt: list[int], spec: str) -> dict[int, list[KeptRows]]:
    """Positions are not known to a press: those given (0, 1, ...) only say "before the prompt's
    end", so that models with sliding windows are refused."""
    press = make_press(spec)
    config = model.config.get_text_config()
    if "sliding_attention" in (getattr(config, "layer_types", None) or []):
        raise Unsupported("kvpress does not tell positions, sliding windows need them")
    cache = DynamicCache(config=model.config)
    with press(model):
        model(input_ids=torch.tensor([prompt]), past_key_values=cache, logits_to_keep=1)
    kept = {}
    for layer, block in enumerate(model.model.layers):
        k, v = cache.layers[layer].keys[0], cache.layers[layer].values[0]
        stays = torch.ones(k.shape[:2], dtype=torch.bool)
        # Head-wise presses (AdaKV) mask rows instead of dropping them.
        masked = getattr(block.self_attn, "masked_key_indices", None)
        if masked is not None:
            stays[masked[1], masked[2]] = False
            block.self_attn.masked_key_indices = None
        kept[layer] = [
            KeptRows(torch.arange(len(k[h]))[stays[h]], k[h][stays[h]], v[h][stays[h]])
            for h in range(k.shape[0])
        ]
    return kept


def f16_report(kept: dict[int, list[KeptRows]], n_prompt: int) -> dict:
    """Ratios as kvsieve's byte report has them, of rows at f16 without positions."""
    bytes_full = bytes_kept = rows = 0
    for heads in kept.values():
        for head in heads:
            row = 2 * (head.k.shape[-1] + head.v.shape[-1])
            bytes_full += n_prompt * row
            bytes_kept += len(head.k) * row
            rows += len(head.k)
    return {
        "bytes": {
            "full_bytes": bytes_full, "kept_bytes": bytes_kept,
            "payload_bytes": bytes_kept, "scale_bytes": 0,
        },
        "rows": {"kept": rows},
    }  # fmt: skip
