"""Checks that an engine needs at most 50 lines of code for the cache: examples/engine.c.

    glue.py FILE.c

Counts the lines of its part `glue` and, outside of the oracle, each line that calls kvsieve.
"""

import pathlib
import re
import sys

MOST = 50
PART = re.compile(r"^// -- (.*?) -+$", re.MULTILINE)


def code_lines(text):
    return [line for line in map(str.strip, text.splitlines()) if line and line[:2] != "//"]


def main(path):
    _, *parts = PART.split(pathlib.Path(path).read_text(encoding="utf-8"))
    lines = []
    for name, text in zip(parts[::2], parts[1::2]):
        if name.startswith("glue"):
            lines += code_lines(text)
        elif name != "the oracle":
            lines += [line for line in code_lines(text) if "kvs_" in line]
    print("\n".join(lines + [f"glue: {len(lines)} lines, at most {MOST}"]))
    return 0 if 20 < len(lines) <= MOST else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
