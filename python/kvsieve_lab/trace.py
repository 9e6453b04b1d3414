"""Writes a recording as kv-trace 1 (docs/trace-format.md)."""

import hashlib
import os

import torch
from safetensors.torch import save_file

from . import VERSION
from .recording import Recording

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
# Models of transformers that rotate neighbouring pairs; the others rotate halves.
_INTERLEAVED = {"cohere", "cohere2", "codegen", "ernie4_5", "glm", "glm4", "gptj", "helium"}


def tokens_sha256(tokens: list[int]) -> str:
    return hashlib.sha256(torch.tensor(tokens, dtype=torch.int32).numpy().tobytes()).hexdigest()


def _stored(tensor: torch.Tensor, dtype: torch.dtype, what: str) -> torch.Tensor:
    stored = tensor.to(dtype).contiguous()
    if not torch.isfinite(stored).all():
        raise ValueError(f"{what} does not fit {dtype}; take another --dtype")
    return stored


def trace_tensors(recording: Recording, layers: list[int], dtype: str) -> dict[str, torch.Tensor]:
    kind = DTYPES[dtype]
    n_tokens, n_eval = len(recording.tokens), len(recording.eval_tokens)
    window = recording.layers[layers[0]].q_window.shape[1]
    tensors = {
        "tokens": torch.tensor(recording.tokens, dtype=torch.int32),
        "positions": torch.arange(n_tokens, dtype=torch.int32),
        "q_window_positions": torch.arange(n_tokens - window, n_tokens, dtype=torch.int32),
        "q_eval_positions": torch.arange(n_tokens, n_tokens + n_eval, dtype=torch.int32),
    }
    for layer in layers:
        record = recording.layers[layer]
        for name in ("k", "v", "q_window", "q_eval", "k_eval", "v_eval"):
            key = f"layer.{layer}.{name}"
            tensors[key] = _stored(getattr(record, name), kind, key)
        # Outputs are what the trace is checked against: never rounded.
        tensors[f"layer.{layer}.out_eval"] = record.out_eval.float().contiguous()
    return tensors


def _joined(values: list) -> str:
    """One value where all layers agree, else a comma list in the order of the layers."""
    texts = [format(v, ".9g") if isinstance(v, float) else str(v) for v in values]
    return texts[0] if len(set(texts)) == 1 else ",".join(texts)


def _rope_theta(config, layer: int) -> float:
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = getattr(config, "layer_types", None)
    if kinds and isinstance(rope.get(kinds[layer]), dict):
        rope = rope[kinds[layer]]
    return float(rope.get("rope_theta") or 0.0)


def trace_metadata(recording: Recording, layers: list[int], model, about: dict) -> dict[str, str]:
    """`about`: model.name, model.license, optionally text.source."""
    config = model.config.get_text_config()
    records = [recording.layers[layer] for layer in layers]
    thetas = [_rope_theta(config, layer) for layer in layers]
    rope = "interleaved" if config.model_type in _INTERLEAVED else "half"
    names = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
    return {
        "kvtrace.version": "1",
        "model.arch": config.model_type,
        "attn.scale": _joined([record.scale for record in records]),
        "attn.sliding_window": _joined([record.window for record in records]),
        "attn.softcap": _joined([record.softcap for record in records]),
        "rope.type": _joined([rope if theta else "none" for theta in thetas]),
        "rope.theta": _joined(thetas),
        "source.dtype": names.get(model.dtype, str(model.dtype)),
        "capture.tool": f"kvsieve_lab capture {VERSION}",
        "prompt.sha256": tokens_sha256(recording.tokens),
        **about,
    }


def write_trace(path, recording: Recording, model, about: dict, *, layers=None, dtype="f16"):
    layers = sorted(recording.layers) if layers is None else layers
    missing = [layer for layer in layers if layer not in recording.layers]
    if missing:
        raise ValueError(f"no layers {missing}; the model has {sorted(recording.layers)}")
    metadata = trace_metadata(recording, layers, model, about)
    unfinished = f"{path}.tmp"
    save_file(trace_tensors(recording, layers, dtype), unfinished, metadata=metadata)
    os.replace(unfinished, path)
