"""Runs tasks through pipelines: prefill once, then per pipeline compress, feed, compare."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterable

from . import VERSION, presses
from .compactor import Compactor
from .models import LoadedModel
from .recording import Recording, record
from .scoring import compare_logits, ragged_logits
from .state import State
from .tasks import Task
from .trace import tokens_sha256, write_trace

EXACT = "exact"  # no compression, through the same attention: the harness's own error


@dataclass
class Harness:
    loaded: LoadedModel
    compactor: Compactor
    state: State
    dtype: str = "f16"
    say: Callable[[str], None] = print

    def __post_init__(self):
        self._binary = self.compactor.identity()

    def settings(self, task: Task, spec: str) -> dict:
        """Whatever changes a result, so that it is in the state's key."""
        own = spec == EXACT or spec.startswith(presses.PREFIX)
        return {
            "lab": VERSION,
            "model": self.loaded.identity,
            "kvsieve": None if own else self._binary,
            "dtype": None if own else self.dtype,
            "spec": spec,
            "kind": task.kind,
            "name": task.name,
            "group": task.group,
            "depth": task.depth,
            "prompt": tokens_sha256(task.prompt),
            "fed": tokens_sha256(task.fed + task.targets[-1:]),
            "n_prompt": len(task.prompt),
            "n_fed": len(task.fed),
            "scored_from": task.scored_from,
        }

    def run(self, tasks: list[Task], specs: list[str]) -> Iterable[tuple[dict, dict]]:
        """Yields (settings, result) of every task and spec, measured now or before."""
        total, done = len(tasks) * len(specs), 0
        for task in tasks:
            settings = {spec: self.settings(task, spec) for spec in specs}
            missing = [spec for spec in specs if self.state.get(settings[spec]) is None]
            done += len(specs) - len(missing)
            if missing:
                for spec, result in self._measure(task, missing):
                    self.state.put(settings[spec], result)
                    done += 1
                    label = " ".join(filter(None, (task.kind, task.name, task.group)))
                    self.say(f"{done}/{total} {label}: KLD {result['kld_mean']:.5f}  {spec}")
            for spec in specs:
                yield settings[spec], self.state.get(settings[spec])

    def _measure(self, task: Task, specs: list[str]) -> Iterable[tuple[str, dict]]:
        recording = record(self.loaded.model, task.prompt, task.fed)
        with tempfile.TemporaryDirectory(prefix="kvsieve_lab_") as folder:
            trace = Path(folder) / "prompt.safetensors"
            about = {"model.name": self.loaded.name, "model.license": self.loaded.license}
            write_trace(trace, recording, self.loaded.model, about, dtype=self.dtype)
            for spec in specs:
                yield spec, self._one(task, recording, trace, spec)

    def _one(self, task: Task, recording: Recording, trace: Path, spec: str) -> dict:
        kept, report = self._compress(task, recording, trace, spec)
        n_prompt = len(task.prompt)
        logits = ragged_logits(self.loaded.model, kept, n_prompt, task.fed)
        figures = compare_logits(recording.logits, logits, task.targets, task.scored_from)
        sizes = report["bytes"]
        figures["ratio"] = sizes["full_bytes"] / sizes["kept_bytes"]
        figures["payload_ratio"] = sizes["full_bytes"] / (
            sizes["payload_bytes"] + sizes["scale_bytes"]
        )
        figures["kept_bytes"] = sizes["kept_bytes"]
        figures["rows_kept"] = sum(len(head.k) for heads in kept.values() for head in heads)
        return figures

    def _compress(self, task: Task, recording: Recording, trace: Path, spec: str):
        if spec == EXACT:
            kept = recording.rows()
        elif spec.startswith(presses.PREFIX):
            kept = presses.pressed_rows(self.loaded.model, task.prompt, spec)
        else:
            compacted = self.compactor.compact(trace, spec)
            return compacted.kept, compacted.report
        return kept, presses.f16_report(kept, len(task.prompt))
