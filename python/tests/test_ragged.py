"""Attention over kept rows is the model's own when all rows are kept, and exact when not."""

import pytest
import torch

from kvsieve_lab.attention import KeptRows, Unsupported, installed
from kvsieve_lab.recording import record
from kvsieve_lab.scoring import compare_logits, ragged_logits


def test_all_rows_give_the_models_own_logits(any_model, tokens):
    recorded = record(any_model, tokens[:40], tokens[40:])
    logits = ragged_logits(any_model, recorded.rows(), 40, tokens[40:])
    torch.testing.assert_close(logits, recorded.logits, atol=1e-4, rtol=1e-4)
    figures = compare_logits(recorded.logits, logits, tokens[41:] + [0])
    assert figures["kld_mean"] < 1e-9 and figures["top1"] == 1


def test_each_head_sees_its_own_rows(llama, tokens):
    """Against plain attention whose missing rows are masked out per head and layer."""
    recorded = record(llama, tokens[:40], tokens[40:])
    generator = torch.Generator().manual_seed(5)
    keep = {layer: torch.rand(2, 40, generator=generator) < 0.4 for layer in recorded.layers}
    kept = {
        layer: [
            KeptRows(rows.positions[mask], rows.k[mask], rows.v[mask])
            for rows, mask in zip(heads, keep[layer])
        ]
        for layer, heads in recorded.rows().items()
    }
    assert len({len(rows.k) for heads in kept.values() for rows in heads}) > 1
    ragged = ragged_logits(llama, kept, 40, tokens[40:])

    def masked(call):
        n = call.query.shape[2]
        k = torch.cat([recorded.layers[call.layer].k, call.key[0]], 1).repeat_interleave(2, 0)
        v = torch.cat([recorded.layers[call.layer].v, call.value[0]], 1).repeat_interleave(2, 0)
        causal = torch.ones(n, n, dtype=torch.bool).tril()
        old = keep[call.layer].repeat_interleave(2, 0)[:, None].expand(-1, n, -1)
        mask = torch.cat([old, causal.expand(4, -1, -1)], 2)
        out = torch.nn.functional.scaled_dot_product_attention(
            call.query[0], k, v, attn_mask=mask, scale=call.scale
        )
        return out.transpose(0, 1)[None]

    positions = torch.arange(40, 60)[None]
    with torch.inference_mode(), installed(llama, masked):
        plain = llama(
            input_ids=torch.tensor([tokens[40:]]), position_ids=positions, use_cache=False
        ).logits[0]
    torch.testing.assert_close(ragged, plain, atol=1e-4, rtol=1e-4)
    assert (ragged - recorded.logits).abs().max() > 0.1


def test_a_head_may_keep_nothing(llama, tokens):
    recorded = record(llama, tokens[:40], tokens[40:])
    kept = recorded.rows()
    kept[1][0] = KeptRows(torch.zeros(0).long(), torch.zeros(0, 16), torch.zeros(0, 16))
    assert torch.isfinite(ragged_logits(llama, kept, 40, tokens[40:])).all()


def test_the_models_attention_comes_back(llama):
    before = llama.config._attn_implementation
    with pytest.raises(Unsupported, match="batch of 2"):
        with installed(llama, lambda call: call.delegate()):
            llama(input_ids=torch.zeros(2, 3, dtype=torch.long))
    assert llama.config._attn_implementation == before


def test_divergence_is_that_of_the_definition():
    full = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]])
    other = torch.tensor([[0.0, 1.0, 0.5], [3.0, 0.0, 0.0]])
    p, q = full[0].softmax(0), other[0].softmax(0)
    figures = compare_logits(full, other, [2, 1])
    assert figures["kld_mean"] == pytest.approx(float((p * (p / q).log()).sum()) / 2, rel=1e-5)
    assert figures["kld_p99"] == pytest.approx(2 * figures["kld_mean"])
    assert figures["top1"] == 0.5
    assert figures["right_full"] == 0.5 and figures["right"] == 0
    assert compare_logits(full, other, [2, 1], first=1)["kld_mean"] == 0
