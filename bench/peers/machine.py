"""What the tables say about the machine."""

import platform
from pathlib import Path


def cpu_name() -> str:
    wanted = {"model name": "", "cpu family": "family ", "model": "model "}
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    found = dict(tuple(map(str.strip, line.split(":", 1))) for line in lines if ":" in line)
    words = [prefix + found[key] for key, prefix in wanted.items() if key in found]
    return ", ".join(words) or platform.machine()
