"""The six systems: where each comes from, its formula, and how it is run where it can be."""

from dataclasses import dataclass
from typing import Callable, Optional

import formulas
import kvpress_run
import velox_run


@dataclass(frozen=True)
class Preset:
    name: str
    formula: Callable                # (prompt, **settings) -> [layer][kv_head] Kept
    source: dict                     # of a transcribed system: what was transcribed, what checked
    runner: Optional[object] = None  # module with MISSING, system() and run() where it is run

    def spec(self, settings, prompt):
        """The call, and per_chunk where the original selects again after every chunk."""
        args = ",".join(f"{key}={text(value)}" for key, value in settings.items())
        call = f"{self.name}({args})" if args else self.name
        greedy = self.name == "velox_snapkv" and prompt.chunks
        return f"{call} | schedule=per_chunk" if greedy else call


def text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def paper(prompt, budget, window=32):
    return formulas.snapkv(prompt, budget, window, ("max", 7))


def reference(prompt, budget=320, window=64):
    return formulas.snapkv(prompt, budget, window, ("avg", 5), "zero")


def sharp(prompt, budget, max_tokens=None, **settings):
    budget = formulas.sharp_auto(max_tokens) if budget == "auto" else budget
    return formulas.sharp_snapkv(prompt, budget, **settings)


def kvpress(prompt, budget, **settings):
    return formulas.kvpress_snapkv(prompt, budget.rstrip("%"), **settings)


class KvpressRunner:
    MISSING = kvpress_run.MISSING
    system = staticmethod(kvpress_run.system)

    @staticmethod
    def run(prompt, budget, **settings):
        return kvpress_run.run(prompt, budget.rstrip("%"), **settings)


PRESETS = {preset.name: preset for preset in [
    Preset("snapkv_paper", paper,
           {"system": "SnapKV, Li et al. 2024, arXiv:2404.14469, window 32, max pool 7",
            "version": "arXiv:2404.14469; FasterDecoding/SnapKV e216ddc",
            "checked": "all problems against SnapKVCluster.update_kv of FasterDecoding/SnapKV "
                       "e216ddc (kernel_size 7, maxpool) run on torch 2.15.0; with GQA, its sets "
                       "per query head, on the same keys repeated"}),
    Preset("snapkv_reference", reference,
           {"system": "FasterDecoding/SnapKV SnapKVCluster, its own defaults",
            "version": "e216ddc",
            "checked": "all problems against SnapKVCluster.update_kv run on torch 2.15.0; with "
                       "GQA, its sets per query head, on the same keys repeated"}),
    Preset("snapkv_d", formulas.snapkv_d,
           {"system": "SnapKV-D, ml-explore/mlx-lm pull request 1518 (closed, not merged)",
            "version": "the revision without the option guarantee_sinks (its default from the "
                       "tests of the later one)",
            "checked": "all problems whose budget does not cap the sinks, and the original side "
                       "of both contrasts, against SnapKVAttentionCapture and "
                       "snapkv_keep_indices run on mlx 0.32.4"}),
    Preset("velox_snapkv", formulas.velox_snapkv, {}, velox_run),
    Preset("sharp_snapkv", sharp,
           {"system": "pekkah/SharpInference SnapKvSelector",
            "version": "d3dbc47",
            "checked": "all problems against AccumulateLayer and SelectKeepSet compiled with "
                       "mono, dot product and softmax in plain C#"}),
    Preset("kvpress_snapkv", kvpress, {}, KvpressRunner),
]}
