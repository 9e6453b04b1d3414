"""Recording changes nothing, and what it keeps is what attention saw."""

import json
import subprocess

import pytest
import torch
from safetensors import safe_open

from kvsieve_lab.recording import record
from kvsieve_lab.trace import tokens_sha256, write_trace

ABOUT = {"model.name": "random", "model.license": "none"}


def test_recording_leaves_the_models_logits_unchanged(any_model, tokens):
    recorded = record(any_model, tokens[:40], tokens[40:])
    with torch.inference_mode():
        plain = any_model(input_ids=torch.tensor([tokens])).logits[0, 40:]
    # One forward against two: the same sums in another order, logits of size ~10 in f32.
    torch.testing.assert_close(recorded.logits, plain, atol=1e-4, rtol=1e-4)


def test_keys_are_those_of_one_long_forward(llama, tokens):
    recorded = record(llama, tokens[:40], tokens[40:], query_window=8)
    whole = record(llama, tokens[:59], tokens[59:], query_window=8)
    layer = recorded.layers[1]
    assert layer.k.shape == (2, 40, 16) and layer.k_eval.shape == (2, 20, 16)
    assert layer.q_window.shape == (4, 8, 16) and layer.q_eval.shape == (4, 20, 16)
    torch.testing.assert_close(
        torch.cat([layer.k, layer.k_eval], 1)[:, :59], whole.layers[1].k, atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(
        layer.q_eval[:, 11:19], whole.layers[1].q_window, atol=1e-5, rtol=1e-5
    )


def test_a_short_prompt_has_a_short_query_window(llama, tokens):
    recorded = record(llama, tokens[:5], tokens[5:9], query_window=64)
    assert recorded.layers[0].q_window.shape == (4, 5, 16)


def test_windows_softcaps_and_bases_reach_the_metadata(gemma3, gemma2, tokens, tmp_path):
    path = tmp_path / "trace.safetensors"
    write_trace(path, record(gemma3, tokens[:40], tokens[40:]), gemma3, ABOUT)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert metadata["attn.sliding_window"] == "8,8,0"
    assert metadata["rope.theta"] == "10000,10000,1000000"
    assert metadata["prompt.sha256"] == tokens_sha256(tokens[:40])
    write_trace(path, record(gemma2, tokens[:40], tokens[40:]), gemma2, ABOUT, layers=[1])
    with safe_open(path, "pt") as file:
        assert file.metadata()["attn.softcap"] == "2"
        assert {name.split(".")[1] for name in file.keys() if "layer" in name} == {"1"}


def test_keys_that_overflow_f16_are_refused(llama, tokens, tmp_path):
    recorded = record(llama, tokens[:40], tokens[40:])
    recorded.layers[2].k = recorded.layers[2].k * 1e6
    with pytest.raises(ValueError, match=r"layer\.2\.k does not fit"):
        write_trace(tmp_path / "trace.safetensors", recorded, llama, ABOUT)
    write_trace(tmp_path / "trace.safetensors", recorded, llama, ABOUT, dtype="bf16")


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_kvsieve_reads_the_trace_and_repeats_the_engines_outputs(
    any_model, tokens, tmp_path, kvsieve, dtype
):
    path = tmp_path / "trace.safetensors"
    write_trace(path, record(any_model, tokens[:40], tokens[40:]), any_model, ABOUT, dtype=dtype)
    subprocess.run([kvsieve, "inspect", path], check=True, capture_output=True)
    command = [kvsieve, "compare", path, "-p", "none | kv=f16", "--json", "-", "--quiet"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    # Rounding of K, Q and V to p bits: logits of size ~10 move by 10 * 2^-p, outputs by as much.
    limit = {"f16": 2e-3, "bf16": 2e-2, "f32": 1e-5}[dtype]
    assert report["trace"]["engine_rel_error"] < limit
