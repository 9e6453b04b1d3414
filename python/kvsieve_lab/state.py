"""Results that survive an interruption: one JSON line each, keyed by everything that matters."""

import hashlib
import json
from pathlib import Path


def key_of(settings: dict) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


class State:
    def __init__(self, path: Path):
        self.path = path
        self.results: dict[str, dict] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:
                    continue  # the line that an interruption cut
                self.results[entry["key"]] = entry["result"]

    def get(self, settings: dict) -> dict | None:
        return self.results.get(key_of(settings))

    def put(self, settings: dict, result: dict) -> None:
        key = key_of(settings)
        entry = {"key": key, "settings": settings, "result": result}
        line = json.dumps(entry) + "\n"
        if self.path.exists() and not self.path.read_bytes().endswith((b"\n",)):
            line = "\n" + line  # the file ends in a line that was cut, or is empty
        with self.path.open("a") as file:
            file.write(line)
        self.results[key] = result
