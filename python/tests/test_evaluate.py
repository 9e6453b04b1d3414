"""The harness end to end on a random model: identity, ratios, resumption, tables."""

import json
import subprocess

import pytest
import torch

from kvsieve_lab import presses, summary, tasks
from kvsieve_lab.attention import Unsupported
from kvsieve_lab.compactor import CompactError, Compactor
from kvsieve_lab.harness import EXACT, Harness
from kvsieve_lab.models import LoadedModel
from kvsieve_lab.recording import record
from kvsieve_lab.scoring import compare_logits, ragged_logits
from kvsieve_lab.state import State


class CharTokenizer:
    """One token a character, folded into 97 ids; the decoder is not needed."""

    def encode(self, text, add_special_tokens=False):
        return [ord(char) % 97 for char in text]


TEXT = "".join(chr(97 + (i * i + i // 7) % 26) for i in range(4000))


@pytest.fixture
def loaded(llama):
    return LoadedModel(llama, CharTokenizer(), "random", "none")


def harness(loaded, kvsieve, path):
    return Harness(loaded, Compactor(kvsieve), State(path), "f16", say=lambda text: None)


def test_a_text_task_scores_the_tokens_after_the_prompt(loaded):
    ids = loaded.encode(TEXT)
    task = tasks.text_task(loaded, "t", TEXT, 50, 10)
    assert task.prompt == ids[:50] and task.fed == ids[50:60] and task.targets == ids[51:61]
    assert task.scored_from == 0
    with pytest.raises(tasks.TooShort, match="4000 tokens, 5011 are needed"):
        tasks.text_task(loaded, "t", TEXT, 5000, 10)


def test_a_copy_task_has_its_answer_far_back(loaded):
    task = tasks.copy_task(loaded, "t", TEXT, 800, 50, lead=20)
    assert len(task.prompt) == 800 and len(task.fed) == 50
    passage = task.prompt[-20:] + task.fed + task.targets[-1:]
    assert passage == task.prompt[97 : 97 + 71]  # 97 = (800 - 20) / 8, far before the window


def test_needles_put_every_digit_after_compression(loaded):
    found = tasks.needle_tasks(loaded, "t", TEXT, 900, trials=1)
    assert len(found) == 3 * 4
    for task in found:
        answer = task.targets[task.scored_from :]
        assert len(task.prompt) == 900
        assert len(answer) == 6 and answer[0] == ord(" ") % 97
        at = [i for i in range(900) if task.prompt[i : i + 6] == answer]
        assert len(at) == 1 and abs(at[0] / 900 - task.depth / 100) < 0.15
        question = loaded.encode("Question")
        seen = any(task.prompt[i : i + 8] == question for i in range(850))
        assert seen == ("seen" in task.group)
        assert task.scored_from > 0 or "seen" in task.group


def test_f16_rows_through_the_command_change_nothing(loaded, kvsieve, tmp_path):
    task = tasks.text_task(loaded, "t", TEXT, 100, 20)
    results = dict(
        (settings["spec"], result)
        for settings, result in harness(loaded, kvsieve, tmp_path / "s").run(
            [task], [EXACT, "none | kv=f16", "recency(budget=40,sinks=4) | kv=f16"]
        )
    )
    assert results[EXACT]["kld_mean"] < 1e-9
    # Rounding K and V to 11 bits moves logits by about 2^-11 of themselves: KLD of their square.
    assert results["none | kv=f16"]["kld_mean"] < 1e-5
    assert results["none | kv=f16"]["rows_kept"] == 3 * 2 * 100
    short = results["recency(budget=40,sinks=4) | kv=f16"]
    assert short["kld_mean"] > 1e-3 and short["rows_kept"] == 3 * 2 * 40
    assert short["payload_ratio"] == pytest.approx(2.5)


def test_sliding_windows_go_through_the_command(gemma3, kvsieve, tmp_path):
    loaded = LoadedModel(gemma3, CharTokenizer(), "random", "none")
    task = tasks.text_task(loaded, "t", TEXT, 100, 20)
    ((_, result),) = harness(loaded, kvsieve, tmp_path / "s").run([task], ["none | kv=f16"])
    assert result["kld_mean"] < 1e-5


def test_finished_work_is_not_done_again(loaded, kvsieve, tmp_path, monkeypatch):
    task = tasks.text_task(loaded, "t", TEXT, 100, 20)
    specs = ["none | kv=f16", "none | kv=int8"]
    first = list(harness(loaded, kvsieve, tmp_path / "s").run([task], specs))
    (tmp_path / "s").write_bytes((tmp_path / "s").read_bytes()[:-40])  # an interruption
    calls = []
    monkeypatch.setattr(
        Compactor, "compact", lambda self, trace, spec, real=Compactor.compact: calls.append(spec)
        or real(self, trace, spec),
    )  # fmt: skip
    assert list(harness(loaded, kvsieve, tmp_path / "s").run([task], specs)) == first
    assert calls == ["none | kv=int8"]
    assert list(harness(loaded, kvsieve, tmp_path / "s").run([task], specs)) == first
    assert len(calls) == 1


def test_a_result_belongs_to_all_that_made_it(loaded, kvsieve, tmp_path):
    one = harness(loaded, kvsieve, tmp_path / "s")
    task = tasks.text_task(loaded, "t", TEXT, 100, 20)
    base = one.settings(task, "none | kv=int8")
    assert one.settings(tasks.text_task(loaded, "t", TEXT, 100, 21), "none | kv=int8") != base
    assert one.settings(tasks.text_task(loaded, "t", TEXT[1:], 100, 20), "none | kv=int8") != base
    one.dtype = "bf16"
    assert one.settings(task, "none | kv=int8") != base
    assert base["kvsieve"]["sha256"] and base["model"]["sha256"]


def test_a_wrong_spec_says_what_kvsieve_says(loaded, kvsieve, tmp_path):
    task = tasks.text_task(loaded, "t", TEXT, 100, 20)
    with pytest.raises(CompactError, match="column"):
        list(harness(loaded, kvsieve, tmp_path / "s").run([task], ["none | kv=nonsense"]))


def test_tables_hold_every_pipeline_and_the_full_cache(loaded, kvsieve, tmp_path):
    specs = ["none | kv=f16", "recency(budget=50%,sinks=4) | kv=f16"]
    found = [tasks.text_task(loaded, name, TEXT[i:], 100, 20) for i, name in enumerate("ab")]
    found += [tasks.copy_task(loaded, "a", TEXT, 200, 20, lead=10)]
    found += tasks.needle_tasks(loaded, "a", TEXT, 400, trials=1)
    measured = list(harness(loaded, kvsieve, tmp_path / "s").run(found, specs))
    figures = summary.summarize(measured, specs, {"model": "random", "n_eval": 20})
    assert json.loads(json.dumps(figures))["schema"] == summary.SCHEMA
    assert [table["kind"] for table in figures["texts"]] == ["text", "copy"]
    row = figures["texts"][0]["rows"][1]
    assert row["kld_mean"] == pytest.approx((row["kld"]["a"] + row["kld"]["b"]) / 2)
    assert row["kld_median"] == pytest.approx(row["kld_mean"])  # of two texts
    assert row["kld_worst"] == max(row["kld"].values())
    assert row["rows_kept"] == 3 * 2 * 50
    assert [len(table["leave_one_out"]) for table in figures["texts"]] == [2, 0]
    assert len(figures["needles"]) == 4 * 3 and figures["needles"][0]["spec"] == "(full cache)"
    assert all(row["n"] == 3 for row in figures["needles"])
    text = summary.markdown(figures)
    assert text.count("`recency(budget=50%,sinks=4) \\| kv=f16`") == 2 + 4
    assert summary.markdown(figures, choice=True).count("Leave one text out:") == 1


def test_pipelines_can_stand_in_a_file(tmp_path, monkeypatch):
    import evaluate

    (tmp_path / "specs").write_text("# about 4x\nnone | kv=turbo4\n\n  snapkv(budget=25%)\n")
    monkeypatch.setattr("sys.argv", ["evaluate.py", "-p", "exact", "--specs", f"{tmp_path}/specs"])
    assert evaluate.arguments().specs == ["exact", "none | kv=turbo4", "snapkv(budget=25%)"]
    monkeypatch.setattr("sys.argv", ["evaluate.py"])
    with pytest.raises(SystemExit):
        evaluate.arguments()


def test_the_lists_that_ship_hold_specs(kvsieve):
    import evaluate

    lists = sorted((evaluate.ROOT / "python/specs").glob("*.txt"))
    assert lists
    for spec in [spec for path in lists for spec in evaluate.listed_specs(path)]:
        done = subprocess.run([kvsieve, "explain", spec], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_presses_keep_the_share_that_was_asked_for(llama, tokens):
    pytest.importorskip("kvpress")
    recorded = record(llama, tokens[:40], tokens[40:])
    for spec, per_layer in (("kvpress:KnormPress@25%", 20), ("kvpress:AdaKVPress(KnormPress)@50%", 40)):
        kept = presses.pressed_rows(llama, tokens[:40], spec)
        assert [sum(len(head.k) for head in heads) for heads in kept.values()] == [per_layer] * 3
        for head, rows in enumerate(kept[1]):
            full = recorded.layers[1].k[head]
            assert all((full - row).abs().sum(-1).min() < 1e-4 for row in rows.k)
        logits = ragged_logits(llama, kept, 40, tokens[40:])
        assert compare_logits(recorded.logits, logits, tokens[41:] + [0])["kld_mean"] > 0
    kept = presses.pressed_rows(llama, tokens[:40], "kvpress:KnormPress@100%")
    torch.testing.assert_close(
        ragged_logits(llama, kept, 40, tokens[40:]), recorded.logits, atol=1e-4, rtol=1e-4
    )
    with pytest.raises(Unsupported, match="kvpress has no NoPress"):
        presses.make_press("kvpress:NoPress@25%")
