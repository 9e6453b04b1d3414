"""Puts one function of ours in place of a model's attention.

transformers looks attention up by name; we register two names, one on top of `sdpa` and one on top
of the model's own `eager`, so that no model needs code of its own. A handler sees every call and
answers it, mostly by delegating.
"""

import contextlib
import sys
from dataclasses import dataclass, field
from typing import Callable

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

SDPA = "kvsieve_lab_sdpa"
EAGER = "kvsieve_lab_eager"


class Unsupported(Exception):
    """A model, or a part of one, that a kv-trace cannot express."""


@dataclass
class Call:
    """One call of attention. query [1, query_heads, n, key_dim]; key and value hold the rows of the
    model's own cache (none of ours), then the new ones: [1, kv_heads, rows, dim]."""

    module: torch.nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    options: dict
    base: Callable

    @property
    def layer(self) -> int:
        return self.module.layer_idx

    @property
    def scale(self) -> float:
        scale = self.options.get("scaling")
        return float(scale if scale is not None else self.query.shape[-1] ** -0.5)

    @property
    def window(self) -> int:
        """Rows a query sees, itself included; 0 for all."""
        return int(self.options.get("sliding_window") or 0)

    @property
    def softcap(self) -> float:
        return float(self.options.get("softcap") or 0.0)

    def delegate(self) -> torch.Tensor:
        """The model's own attention: [1, n, query_heads, value_dim]."""
        return self.base(
            self.module, self.query, self.key, self.value, self.mask, **self.options
        )[0]


def _own_eager(module, *args, **options):
    return sys.modules[type(module).__module__].eager_attention_forward(module, *args, **options)


_handler: Callable[[Call], torch.Tensor] | None = None


def _entry(base):
    # kvpress wraps every registered function and hands dropout on by place.
    def attention(module, query, key, value, attention_mask, dropout=0.0, **options):
        if _handler is None:
            raise RuntimeError("kvsieve_lab attention was called outside of `installed`")
        options["dropout"] = dropout
        call = Call(module, query, key, value, attention_mask, options, base)
        if options.get("s_aux") is not None:
            raise Unsupported(f"layer {call.layer} has attention sinks (s_aux)")
        if query.shape[0] != 1:
            raise Unsupported(f"batch of {query.shape[0]} (only 1)")
        return _handler(call), None

    return attention


# `.register`, not item assignment: the mask code tests the class-wide table, and without an entry
# there a model builds no mask at all.
ALL_ATTENTION_FUNCTIONS.register(SDPA, _entry(sdpa_attention_forward))
ALL_ATTENTION_FUNCTIONS.register(EAGER, _entry(_own_eager))
ALL_MASK_ATTENTION_FUNCTIONS.register(SDPA, sdpa_mask)
ALL_MASK_ATTENTION_FUNCTIONS.register(EAGER, eager_mask)


@contextlib.contextmanager
def installed(model, handler: Callable[[Call], torch.Tensor]):
    """Within it, `handler` answers every attention call of `model`."""
    global _handler
    config = model.config.get_text_config()
    # sdpa has no softcap and would leave it out without a word.
    softcapped = bool(getattr(config, "attn_logit_softcapping", None))
    before = config._attn_implementation
    model.set_attn_implementation(EAGER if softcapped else SDPA)
    _handler = handler
    try:
        yield
    finally:
        _handler = None
        model.set_attn_implementation(before)


@dataclass
class KeptRows:
    """Rows of one KV head: positions [n] ascending, k [n, key_dim], v [n, value_dim]."""

    positions: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


@dataclass
class RaggedAttention:
    """Attends per KV head over that head's own kept rows, then the new rows, by position.

    For forwards without a cache of the model (`use_cache=False`): `positions` are those of the new
    tokens. Keys come with their rotation, so no row may be moved."""

    kept: dict[int, list[KeptRows]]
    positions: torch.Tensor
    layers_seen: set[int] = field(default_factory=set)

    def __call__(self, call: Call) -> torch.Tensor:
        heads = self.kept[call.layer]
        self.layers_seen.add(call.layer)
        _, query_heads, n, _ = call.query.shape
        group = query_heads // len(heads)
        out = call.query.new_empty(1, n, query_heads, call.value.shape[-1])
        for head, rows in enumerate(heads):
            own = slice(head * group, (head + 1) * group)
            k = torch.cat([rows.k, call.key[0, head]])
            v = torch.cat([rows.v, call.value[0, head]])
            visible = self._visible(rows.positions, call.window)
            weights = call.query[0, own] @ k.T * call.scale
            if call.softcap:
                weights = call.softcap * torch.tanh(weights / call.softcap)
            weights = weights.masked_fill(~visible, float("-inf")).float().softmax(-1)
            out[0, :, own] = (weights.to(v.dtype) @ v).transpose(0, 1)
        return out

    def _visible(self, kept_positions: torch.Tensor, window: int) -> torch.Tensor:
        rows = torch.cat([kept_positions, self.positions])
        query = self.positions[:, None]
        visible = rows[None, :] <= query
        return visible & (rows[None, :] > query - window) if window else visible
