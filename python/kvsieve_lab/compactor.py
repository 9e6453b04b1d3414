"""Calls `kvsieve compact` on a trace and reads back what stayed."""

import hashlib
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from .attention import KeptRows


class CompactError(Exception):
    """What kvsieve said on standard error."""


@dataclass
class Compacted:
    kept: dict[int, list[KeptRows]]
    report: dict  # the pipeline's part of the byte report


@dataclass(frozen=True)
class Compactor:
    binary: Path
    threads: int = 1

    def identity(self) -> dict:
        """Version and digest: results of another build are other results."""
        version = subprocess.run(
            [self.binary, "--version"], capture_output=True, text=True, check=True
        ).stdout.strip()
        return {"version": version, "sha256": hashlib.sha256(self.binary.read_bytes()).hexdigest()}

    def compact(self, trace: Path, spec: str) -> Compacted:
        with tempfile.TemporaryDirectory(dir=trace.parent) as folder:
            rows, report = Path(folder) / "rows.safetensors", Path(folder) / "report.json"
            command = [self.binary, "compact", trace, "-p", spec, "-o", rows, "--json", report]
            command += ["--threads", str(self.threads), "--quiet"]
            done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
            if done.returncode != 0:
                raise CompactError(done.stderr.strip() or f"exit code {done.returncode}")
            return Compacted(read_rows(rows), json.loads(report.read_text())["pipelines"][0])


def read_rows(path: Path) -> dict[int, list[KeptRows]]:
    kept: dict[int, dict[int, KeptRows]] = {}
    with safe_open(path, "pt") as file:
        for name in file.keys():
            if not name.endswith(".positions"):
                continue
            _, layer, _, head, _ = name.split(".")
            stem = name.removesuffix("positions")
            kept.setdefault(int(layer), {})[int(head)] = KeptRows(
                file.get_tensor(name).long(), file.get_tensor(stem + "k"), file.get_tensor(stem + "v")
            )
    return {layer: [heads[h] for h in range(len(heads))] for layer, heads in kept.items()}
