"""Runs a model over a prompt and the tokens after it, and keeps what attention saw."""

from dataclasses import dataclass, field

import torch

from .attention import Call, KeptRows, Unsupported, installed


@dataclass
class LayerRecord:
    """Tensors without the batch dimension, in the model's own type, after the rotary embedding.

    k, v: [kv_heads, tokens, dim]; q_window: [query_heads, window, key_dim]; the others hold the
    tokens after the prompt."""

    scale: float
    window: int
    softcap: float
    k: torch.Tensor
    v: torch.Tensor
    q_window: torch.Tensor
    q_eval: torch.Tensor | None = None
    k_eval: torch.Tensor | None = None
    v_eval: torch.Tensor | None = None
    out_eval: torch.Tensor | None = None


@dataclass
class Recording:
    """One prompt, the tokens fed after it, and the model's logits [n_eval, vocabulary] for these."""

    tokens: list[int]
    eval_tokens: list[int]
    layers: dict[int, LayerRecord] = field(default_factory=dict)
    logits: torch.Tensor | None = None

    def rows(self) -> dict[int, list[KeptRows]]:
        """Every row of the prompt, as if a cache had kept them all exactly."""
        positions = torch.arange(len(self.tokens))
        return {
            layer: [KeptRows(positions, k, v) for k, v in zip(record.k, record.v)]
            for layer, record in self.layers.items()
        }


def _check(model) -> None:
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or [])
    strange = kinds - {"full_attention", "sliding_attention"}
    if strange:
        raise Unsupported(f"{model.config.model_type} has layers of type {sorted(strange)}")


@torch.inference_mode()
def record(model, tokens: list[int], eval_tokens: list[int], query_window: int = 64) -> Recording:
    """Prefills `tokens` in one forward, then feeds `eval_tokens` (teacher forced) in another."""
    _check(model)
    recording = Recording(list(tokens), list(eval_tokens))
    layers = recording.layers

    def prompt(call: Call) -> torch.Tensor:
        k, v, q = call.key[0], call.value[0], call.query[0]
        first = max(0, q.shape[1] - query_window)
        layers[call.layer] = LayerRecord(
            call.scale, call.window, call.softcap, k.clone(), v.clone(), q[:, first:].clone()
        )
        return call.delegate()

    def after(call: Call) -> torch.Tensor:
        out = call.delegate()
        n = len(eval_tokens)
        record = layers[call.layer]
        record.q_eval = call.query[0].clone()
        record.k_eval = call.key[0, :, -n:].clone()
        record.v_eval = call.value[0, :, -n:].clone()
        record.out_eval = out[0].transpose(0, 1).clone()
        return out

    with installed(model, prompt):
        prefill = model(input_ids=torch.tensor([tokens]), use_cache=True, logits_to_keep=1)
    if not layers:
        raise Unsupported(f"{model.config.model_type} does not use transformers' attention table")
    with installed(model, after):
        answer = model(
            input_ids=torch.tensor([eval_tokens]), past_key_values=prefill.past_key_values
        )
    recording.logits = answer.logits[0].float()
    return recording
