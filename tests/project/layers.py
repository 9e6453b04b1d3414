"""Checks every #include of every C++ file against the arrows of docs/architecture.md.

    layers.py SOURCE_DIR        exit 1 and one line per include that points the wrong way
    layers.py --self-test       each rule catches a file that breaks it

A file belongs to the first zone whose pattern matches its path. A zone lists what its files may
include; anything else is an error, so a new folder or a new dependency is a decision made here.
"""

import fnmatch
import pathlib
import re
import sys

SOURCE_DIRS = ["include", "lib", "quant", "evict", "tests", "bench", "tools", "examples", "python"]
SUFFIXES = {".h", ".cc", ".c", ".hpp", ".cpp", ".hh"}

# Packages, told by the beginning of the included name.
PACKAGES = {
    "hwy": ["hwy/"],
    "xsimd": ["xsimd/"],
    "xtensor": ["xtensor/", "xtl/"],
    "json": ["nlohmann/"],
    "cli": ["CLI/"],
    "gtest": ["gtest/", "gmock/"],
    "benchmark": ["benchmark/"],
    # The operating system and the compiler, beside the standard library.
    "posix": ["sys/", "unistd.h", "fcntl.h", "linux/", "pthread.h", "spawn.h", "signal.h",
              "dirent.h"],
    "cpu": ["immintrin.h", "cpuid.h", "arm_neon.h"],
}
# Standard headers that print or throw by their nature; the core does without.
LOUD_STD = {"iostream", "ostream", "istream", "fstream", "sstream", "iomanip", "print", "stdexcept",
            "format", "regex"}
C_STD = {"assert.h", "errno.h", "limits.h", "math.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h",
         "string.h", "stdbool.h", "time.h"}

# The public headers of the core, without the opt-in ones.
CORE_API = ["kvsieve/*.h", "!kvsieve/xtensor.h", "!kvsieve/eval/*", "!kvsieve/simd/*"]
CORE_INSIDE = CORE_API + ["kvsieve/simd/*"]
EVERYTHING_PUBLIC = ["kvsieve/*"]

# (files, own headers they may include, packages). `*` spans folders; `!` takes out again. "loud"
# allows LOUD_STD.
ZONES = [
    # Vocabulary and interfaces: nothing but themselves. Two opt-in headers bring a package.
    ("include/kvsieve/xtensor.h", CORE_API, ["xtensor"]),
    ("include/kvsieve/simd/*-inl.h", CORE_INSIDE, ["hwy"]),
    ("include/kvsieve/eval/*", CORE_API + ["kvsieve/eval/*"], []),
    ("include/kvsieve/*", CORE_API, []),
    # The core. quant and evict know base and themselves, never each other.
    ("lib/base/*", CORE_INSIDE + ["lib/base/*"], ["hwy", "cpu"]),
    ("quant/*", CORE_INSIDE + ["quant/*"], ["hwy", "xsimd", "cpu"]),
    ("evict/*", CORE_INSIDE + ["evict/*"], ["hwy"]),
    ("lib/eval/*", EVERYTHING_PUBLIC + ["lib/*", "quant/*", "evict/*"],
     ["hwy", "xtensor", "json", "posix", "loud"]),
    ("lib/*", CORE_INSIDE + ["lib/*", "!lib/eval/*", "quant/*", "evict/*"], ["hwy", "posix"]),
    # Downstream. An oracle is only worth something when it shares nothing with what it judges.
    ("tests/*oracle*", EVERYTHING_PUBLIC + ["tests/*"], ["xtensor", "gtest", "loud"]),
    ("tests/quant/*", CORE_INSIDE + ["quant/*", "tests/*"],
     ["hwy", "xsimd", "gtest", "posix", "loud"]),
    ("tests/evict/*", CORE_INSIDE + ["evict/*", "tests/*"], ["hwy", "gtest", "posix", "loud"]),
    ("tests/*", EVERYTHING_PUBLIC + ["lib/*", "quant/*", "evict/*", "tests/*", "tools/*"],
     ["hwy", "xsimd", "xtensor", "json", "gtest", "posix", "loud"]),
    # A benchmark checks its result before it is timed, against the tests' oracles.
    ("bench/*", EVERYTHING_PUBLIC + ["lib/*", "quant/*", "evict/*", "bench/*", "tests/*oracle*"],
     ["hwy", "xsimd", "benchmark", "posix", "loud"]),
    ("tools/*", EVERYTHING_PUBLIC + ["lib/*", "tools/*"], ["xtensor", "json", "cli", "posix", "loud"]),
    ("examples/*", EVERYTHING_PUBLIC, ["xtensor", "loud"]),
    ("python/*", EVERYTHING_PUBLIC, ["loud"]),
]

# HWY_TARGET_INCLUDE names the file that foreach_target.h includes again: an include by other means.
INCLUDE = re.compile(
    r'^\s*#\s*(?:include\s*(?P<computed>[A-Za-z_]\w*)|(?:include|define\s+HWY_TARGET_INCLUDE)'
    r'\s*(?P<open>[<"])(?P<name>[^>"]+)[>"])')
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def matches(name, patterns):
    """Later patterns win, as in a .gitignore."""
    verdict = False
    for pattern in patterns:
        if fnmatch.fnmatchcase(name, pattern.lstrip("!")):
            verdict = not pattern.startswith("!")
    return verdict


def package_of(name):
    for package, prefixes in PACKAGES.items():
        if any(name == p or (p.endswith("/") and name.startswith(p)) for p in prefixes):
            return package
    return None


def included_names(path, text):
    """Yields (line number, name); the name of a computed include is None."""
    folder = path.rpartition("/")[0]
    text = COMMENT.sub(lambda m: "\n" * m.group().count("\n"), text)
    for number, line in enumerate(text.splitlines(), 1):
        found = INCLUDE.match(line)
        if found and found["open"] == '"' and "/" not in found["name"]:
            yield number, f"{folder}/{found['name']}"  # a neighbour
        elif found:
            yield number, found["name"]


def complaint(path, name):
    """Why the file `path` may not include `name`, or None."""
    zone = next((z for z in ZONES if fnmatch.fnmatchcase(path, z[0])), None)
    if zone is None:
        return "the file is in no folder that docs/architecture.md knows"
    zone_pattern, own, packages = zone
    if name is None:
        return "an include through a macro cannot be checked"
    package = package_of(name)
    if package is not None:
        return None if package in packages else f"{zone_pattern} must not use {package}"
    if name in LOUD_STD:
        return None if "loud" in packages else f"{zone_pattern} must not use <{name}>"
    if ("/" not in name and "." not in name) or name in C_STD:
        return None  # the standard library
    return None if matches(name, own) else f"{zone_pattern} must not include it"


def check(files):
    """files: {path: text}. Returns (includes seen, list of errors)."""
    seen, errors = 0, []
    for path in sorted(files):
        for number, name in included_names(path, files[path]):
            seen += 1
            why = complaint(path, name)
            if why:
                errors.append(f"{path}:{number}: includes {name or 'a macro'}: {why}")
    return seen, errors


def read_tree(root):
    paths = (p for d in SOURCE_DIRS for p in (root / d).rglob("*") if p.suffix in SUFFIXES)
    return {p.relative_to(root).as_posix(): p.read_text(encoding="utf-8") for p in paths}


# path, one line that must be caught there.
VIOLATIONS = [
    ("include/kvsieve/a.h", "#include <hwy/highway.h>"),
    ("include/kvsieve/a.h", "#include <xtensor/xarray.hpp>"),
    ("include/kvsieve/a.h", '#include "quant/int8.h"'),
    ("include/kvsieve/a.h", '#include "lib/cache_impl.h"'),
    ("include/kvsieve/a.h", '#include "kvsieve/eval/trace.h"'),
    ("include/kvsieve/a.h", '#include "neighbour.h"'),
    ("include/kvsieve/a.h", '#include "kvsieve/simd/math-inl.h"'),
    ("include/kvsieve/simd/math-inl.h", "#include <xtensor/xarray.hpp>"),
    ("include/kvsieve/xtensor.h", "#include <hwy/highway.h>"),
    ("include/kvsieve/eval/a.h", "#include <nlohmann/json.hpp>"),
    ("quant/int8.cc", '#include "evict/topk.h"'),
    ("quant/int8.cc", '#include "lib/cache_impl.h"'),
    ("quant/int8.cc", "#include <xtensor/xarray.hpp>"),
    ("quant/int8.cc", "#include <iostream>"),
    ("quant/int8.cc", '#define HWY_TARGET_INCLUDE "evict/topk.cc"'),
    ("quant/int8.cc", "  #  include  MACRO_NAME"),
    ("evict/topk.cc", '#include "quant/int8.h"'),
    ("evict/topk.cc", "#include <xsimd/xsimd.hpp>"),
    ("evict/topk.cc", '#include "kvsieve/eval/trace.h"'),
    ("lib/base/types.cc", '#include "quant/int8.h"'),
    ("lib/cache.cc", '#include "lib/eval/report.h"'),
    ("lib/cache.cc", "#include <nlohmann/json.hpp>"),
    ("lib/cache.cc", "#include <sstream>"),
    ("lib/eval/report.cc", '#include "tools/table.h"'),
    ("lib/eval/report.cc", "#include <CLI/CLI.hpp>"),
    ("tests/lib/oracle.h", '#include "quant/int8.h"'),
    ("tests/quant/int8_test.cc", '#include "evict/topk.h"'),
    ("tests/evict/topk_test.cc", '#include "lib/cache_impl.h"'),
    ("tools/main.cc", '#include "tests/lib/oracle.h"'),
    ("tools/main.cc", '#include "quant/int8.h"'),
    ("examples/a.cc", '#include "lib/cache_impl.h"'),
    ("vendor/a.h", "#include <vector>"),
]
CLEAN = [
    ("include/kvsieve/a.h", '#include <vector>\n#include "kvsieve/types.h"'),
    ("include/kvsieve/kvsieve_c.h", "#include <stdint.h>"),
    ("quant/int8.cc", '#include <cmath>\n#include <hwy/highway.h>\n#include "quant/int8.h"'),
    ("tests/quant/int8_test.cc", '#include "test_util.h"'),
    ("quant/portable.cc", "#include <xsimd/xsimd.hpp>"),
    ("lib/cache.cc", '#include <sys/mman.h>\n#include "evict/topk.h"'),
    ("lib/eval/report.cc", "#include <nlohmann/json.hpp>\n#include <xtensor/xview.hpp>"),
    ("quant/int8.cc", '// #include "evict/topk.h"\n/*\n#include <iostream>\n*/'),
]


def self_test():
    for path, line in VIOLATIONS:
        _, errors = check({path: f"// A file.\n{line}\n"})
        assert len(errors) == 1 and errors[0].startswith(f"{path}:2: "), (path, line, errors)
    for path, text in CLEAN:
        _, errors = check({path: text})
        assert not errors, (path, errors)
    print(f"layers: {len(VIOLATIONS)} violations caught, {len(CLEAN)} clean files passed")


def main(argument):
    if argument == "--self-test":
        self_test()
        return 0
    files = read_tree(pathlib.Path(argument))
    seen, errors = check(files)
    print("\n".join(errors + [f"layers: {seen} includes in {len(files)} files, {len(errors)} wrong"]))
    # An empty tree is a wrong path, not a clean project.
    return 1 if errors or seen == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
