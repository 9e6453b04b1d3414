"""Feeds tokens after a compressed prompt, and compares logits with those of the full cache."""

import math

import torch

from .attention import KeptRows, RaggedAttention, installed


@torch.inference_mode()
def ragged_logits(model, kept: dict[int, list[KeptRows]], n_prompt: int, eval_tokens: list[int]):
    """Logits [n_eval, vocabulary] of `eval_tokens` at the positions after the prompt."""
    positions = torch.arange(n_prompt, n_prompt + len(eval_tokens))
    dtype = model.dtype
    kept = {
        layer: [KeptRows(rows.positions, rows.k.to(dtype), rows.v.to(dtype)) for rows in heads]
        for layer, heads in kept.items()
    }
    attention = RaggedAttention(kept, positions)
    with installed(model, attention):
        answer = model(
            input_ids=torch.tensor([eval_tokens]), position_ids=positions[None], use_cache=False
        )
    if attention.layers_seen != set(kept):
        raise RuntimeError("some compressed layers were never attended to")
    return answer.logits[0].float()


def compare_logits(full, other, targets: list[int], first: int = 0) -> dict:
    """Figures over the outputs from `first` on; targets[i] is the token after output i.

    KL(full || other) in nats over the whole vocabulary, in f64: at 1e-5 f32 sums would show."""
    wanted = torch.tensor(targets[first:])
    full, other = full[first:], other[first:]
    kld, full_nll, nll = [], [], []
    for begin in range(0, len(wanted), 32):
        part = slice(begin, begin + 32)
        log_p = full[part].double().log_softmax(-1)
        log_q = other[part].double().log_softmax(-1)
        kld.append((log_p.exp() * (log_p - log_q)).sum(-1).clamp_min(0))
        index = wanted[part, None]
        full_nll.append(-log_p.gather(1, index)[:, 0])
        nll.append(-log_q.gather(1, index)[:, 0])
    kld, full_nll, nll = torch.cat(kld), torch.cat(full_nll), torch.cat(nll)
    best = other.argmax(-1)
    ranked = kld.sort().values
    return {
        "n": len(wanted),
        "kld_mean": kld.mean().item(),
        "kld_p99": ranked[math.ceil(0.99 * len(ranked)) - 1].item(),  # nearest rank
        "top1": (best == full.argmax(-1)).double().mean().item(),
        "nll_full": full_nll.mean().item(),
        "nll": nll.mean().item(),
        "right": (best == wanted).double().mean().item(),
        "right_full": (full.argmax(-1) == wanted).double().mean().item(),
    }
