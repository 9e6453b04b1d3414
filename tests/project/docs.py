"""Checks that what the documents show is true.

    docs.py SOURCE_DIR BIN_DIR    exit 1 and one line per finding
    docs.py --self-test

  ```sh         every line is a command; ```console: lines after `$ ` are, the rest is output
      kvsieve ...   runs, in a folder that holds data/, and must exit 0 (or N, with `# exit N`)
      ./dev ...     must be a command of ./dev
      git, cd ...   are about a reader's own machine and are not run (NOT_RUN)
  ```spec       every line is a pipeline that `kvsieve explain` accepts
  ```cpp, ```c  stands, line by line, in a source file that the build compiles
  links         lead to a file, and to a heading of it
  docs/*.md     each is listed in docs/README.md
"""

import pathlib
import re
import subprocess
import sys
import tempfile
from typing import NamedTuple

NOT_RUN = {"git", "cd", "cmake", "g++", "cc", "pkg-config"}
SOURCES = ["include", "lib", "quant", "evict", "tests", "bench", "tools", "examples"]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TIMEOUT_SECONDS = 300


class Fence(NamedTuple):
    line: int
    language: str
    lines: list


def fences(text):
    for found in FENCE.finditer(text):
        first_line = text.count("\n", 0, found.start()) + 2
        yield Fence(first_line, found[2], found[3].splitlines())


def commands(fence):
    """Commands of a sh or console fence, continued lines joined, comments and blanks left out."""
    lines = fence.lines
    if fence.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [line for line in map(str.strip, joined.splitlines()) if line and line[0] != "#"]


def expected_exit(command):
    found = re.search(r"#\s*exit (\d+)\s*$", command)
    return int(found[1]) if found else 0


def squeeze(lines):
    return [line.strip() for line in lines if line.strip()]


def stands_in(snippet, text_lines):
    """Whether `snippet` is a run of consecutive lines of the text; both squeezed."""
    count = len(snippet)
    return any(text_lines[i:i + count] == snippet for i in range(len(text_lines) - count + 1))


def anchors(text):
    """Anchors of the headings, as code hosts make them."""
    text = FENCE.sub("", text)
    headings = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def check_links(root, path, text):
    for target in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (root / path).parent / name if name else root / path
        if not file.exists():
            yield f"link to {target}: no such file"
        elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
            yield f"link to {target}: no such heading"


def check_command(command, folder, environment, dev):
    """One message, or None."""
    words = command.split()
    words = [w for w in words if not re.fullmatch(r"[A-Z_]+=\S*", w)] or words  # FUZZ_SECONDS=600
    if words[0] in NOT_RUN:
        return None
    if words[0] == "./dev":
        known = subprocess.run([dev, "help", *words[1:2]], capture_output=True)
        return None if known.returncode == 0 else f"{command}: ./dev has no such command"
    if pathlib.Path(words[0]).name != "kvsieve":
        return f"{command}: not a command that the documents should show"
    done = subprocess.run(["sh", "-c", command], cwd=folder, env=environment, text=True,
                          capture_output=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_SECONDS)
    if done.returncode != expected_exit(command):
        return f"{command}: exit {done.returncode}: {done.stderr.strip()}"
    return None


class Checker:
    def __init__(self, root, bin_dir, folder):
        self.root, self.folder, self.ran = root, folder, 0
        self.environment = {"PATH": f"{bin_dir}:/usr/bin:/bin", "HOME": str(folder)}
        (folder / "data").symlink_to(root / "data")
        (folder / "build/release").mkdir(parents=True)
        (folder / "build/release/bin").symlink_to(bin_dir)
        self.sources = [squeeze(p.read_text(encoding="utf-8").splitlines())
                        for d in SOURCES for p in (root / d).rglob("*") if p.suffix in {".h", ".cc", ".c"}]

    def check_fence(self, fence):
        if fence.language in {"sh", "console"}:
            self.ran += len(commands(fence))
            for command in commands(fence):
                yield check_command(command, self.folder, self.environment, self.root / "dev")
        elif fence.language == "spec":
            for spec in squeeze(fence.lines):
                self.ran += 1
                done = subprocess.run(["kvsieve", "explain", spec], env=self.environment, text=True,
                                      capture_output=True, timeout=TIMEOUT_SECONDS)
                yield f"{spec}: {done.stderr.strip()}" if done.returncode else None
        elif fence.language in {"cpp", "c"}:
            snippet = squeeze(fence.lines)
            self.ran += 1
            if not any(stands_in(snippet, source) for source in self.sources):
                yield f"'{snippet[0]} ...' stands in no source file"

    def check_document(self, path):
        text = (self.root / path).read_text(encoding="utf-8")
        for why in check_links(self.root, path, text):
            yield f"{path}: {why}"
        for fence in fences(text):
            for why in filter(None, self.check_fence(fence)):
                yield f"{path}:{fence.line}: {why}"


def unlisted(root):
    index = (root / "docs/README.md").read_text(encoding="utf-8")
    listed = set(LINK.findall(index))
    return [f"docs/README.md: does not list {p.name}" for p in sorted((root / "docs").glob("*.md"))
            if p.name != "README.md" and p.name not in listed]


def check(root, bin_dir):
    documents = [p.relative_to(root) for pattern in ("*.md", "docs/**/*.md", "data/*.md")
                 for p in sorted(root.glob(pattern))]
    with tempfile.TemporaryDirectory() as folder:
        checker = Checker(root, bin_dir, pathlib.Path(folder))
        errors = [e for document in documents for e in checker.check_document(document)]
        errors += unlisted(root)
    print("\n".join(errors + [f"docs: {checker.ran} commands and snippets in {len(documents)} "
                              f"documents, {len(errors)} wrong"]))
    return 1 if errors or checker.ran == 0 else 0


SELF_TEST = """# Title, with `code`
[good](other.md#a-heading) [bad](gone.md) [bad](other.md#gone) [out](https://example.org)
```sh
# a comment
kvsieve list
kvsieve fails   # exit 2
kvsieve fails
./dev test \\
  -R x
./dev nope
FUZZ_SECONDS=1 ./dev nope
rm -rf /
git clone somewhere
```
```console
$ kvsieve list
kvsieve fails
```
```spec
none | kv=f16
bad
```
```cpp
int a();

  int b();
```
```cpp
int b();
int a();
```
"""
EXPECTED = ["link to gone.md: no such file", "link to other.md#gone: no such heading",
            "kvsieve fails: exit 2: no", "./dev nope: ./dev has no such command",
            "FUZZ_SECONDS=1 ./dev nope: ./dev has no such command",
            "rm -rf /: not a command that the documents should show", "bad: no",
            "'int b(); ...' stands in no source file"]


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in ("docs", "data", "lib", "bin", "run"):
            (root / name).mkdir()
        (root / "README.md").write_text(SELF_TEST)
        (root / "other.md").write_text("## A heading\n")
        (root / "docs/README.md").write_text("[x](listed.md)")
        for name in ("listed", "unlisted"):
            (root / f"docs/{name}.md").write_text("")
        (root / "lib/a.h").write_text("int a();\nint b();\n")
        for name, body in (("bin/kvsieve", 'case "$*" in *fails*|*bad*) echo no >&2; exit 2;; esac'),
                           ("dev", '[ "$2" = test ]')):
            (root / name).write_text(f"#!/bin/sh\n{body}\n")
            (root / name).chmod(0o755)
        checker = Checker(root, root / "bin", root / "run")
        found = [e.split(": ", 1)[1] for e in checker.check_document(pathlib.Path("README.md"))]
        assert found == EXPECTED, found
        assert unlisted(root) == ["docs/README.md: does not list unlisted.md"]
    print(f"docs: {len(EXPECTED) + 1} mistakes caught")


def main(arguments):
    if arguments == ["--self-test"]:
        self_test()
        return 0
    return check(*(pathlib.Path(a) for a in arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
