"""Checks every #include of every C++ file against the arrows of docs/architecture.md.

    layers.py SOURCE_DIR        exit 1 and one line per include that points the wrong way
    layers.py --self-test       each rule catches a file that breaks it, however it is written

A file belongs to the first zone whose pattern matches its path. A zone lists what its files may
include; anything else is an error, so a new folder or a new dependency is a decision made here.
"""

import bisect
import fnmatch
import pathlib
import re
import sys
import tempfile

# Whatever a compiler may be given or an #include may name. A file of our own with another suffix
# cannot be included, so nothing is included unread.
SUFFIXES = set(".h .hh .hpp .hxx .h++ .c .cc .cpp .cxx .c++ .inc .inl .ipp .tcc .tpp .txx .def .x "
               ".ixx .cppm .cu .cuh .m .mm .s".split())

# Packages, told by the beginning of the included name.
PACKAGES = {
    "hwy": ["hwy/"],
    "xsimd": ["xsimd/"],
    "xtensor": ["xtensor/", "xtl/"],
    "json": ["nlohmann/"],
    "cli": ["CLI/"],
    "xxhash": ["xxhash.h", "xxh3.h"],
    "gtest": ["gtest/", "gmock/"],
    "benchmark": ["benchmark/"],
    "ggml": ["ggml.h", "ggml-cpu.h"],
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
    ("lib/checksum.cc", ["lib/checksum.h"], ["xxhash"]),
    # A client of the interfaces, as any other; files are the only thing of eval in it.
    ("lib/capi/*", CORE_API + ["lib/capi/*", "kvsieve/eval/state_file.h"], []),
    ("lib/*", CORE_INSIDE + ["lib/*", "!lib/eval/*", "quant/*", "evict/*"], ["hwy", "posix"]),
    # Downstream. An oracle is only worth something when it shares nothing with what it judges.
    ("tests/*oracle*", EVERYTHING_PUBLIC + ["tests/*"], ["xtensor", "gtest", "loud"]),
    ("tests/quant/*", CORE_INSIDE + ["quant/*", "tests/*"],
     ["hwy", "xsimd", "gtest", "posix", "loud"]),
    ("tests/evict/*", CORE_INSIDE + ["evict/*", "tests/*"], ["hwy", "gtest", "posix", "loud"]),
    ("tests/bench/*", EVERYTHING_PUBLIC + ["bench/*", "tests/*"], ["gtest", "posix"]),
    ("tests/*", EVERYTHING_PUBLIC + ["lib/*", "quant/*", "evict/*", "tests/*", "tools/*"],
     ["hwy", "xsimd", "xtensor", "json", "gtest", "posix", "loud"]),
    # One file alone calls ggml, which only a benchmark on demand has.
    ("bench/peers/ggml_contenders.cc", EVERYTHING_PUBLIC + ["bench/*"], ["ggml"]),
    # A benchmark checks its result before it is timed, against the tests' oracles.
    ("bench/*", EVERYTHING_PUBLIC + ["lib/*", "quant/*", "evict/*", "bench/*", "tests/*oracle*"],
     ["hwy", "xsimd", "benchmark", "posix", "loud"]),
    ("tools/*", EVERYTHING_PUBLIC + ["lib/*", "tools/*"], ["xtensor", "json", "cli", "posix", "loud"]),
    ("examples/*", EVERYTHING_PUBLIC, ["xtensor", "loud"]),
    ("python/*", EVERYTHING_PUBLIC, ["loud"]),
]

# HWY_TARGET_INCLUDE names the file that foreach_target.h includes again: an include by other means.
# %: is # by another spelling; `import` takes headers too.
DIRECTIVE = re.compile(
    r"\s*(?:(?:#|%:)\s*(?:include|include_next|import|define\s+HWY_TARGET_INCLUDE)\b"
    r'|(?:export\s+)?import\b(?=\s*[<"]))(?P<target>.*)', re.DOTALL)
TARGET = re.compile(r'"(?P<quoted>[^"]+)"|<(?P<angled>[^>]+)>')
SPLICE = re.compile(r"\\[ \t]*\r?\n")
# Words and numbers are tokens so that neither 1'000 nor uR"( is cut in the middle.
TOKEN = re.compile(r"""(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))
                     |(?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)")
                     |(?P<newline>\n)
                     |\d(?:'?[\w.])*|\w+|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|.""",
                   re.DOTALL | re.VERBOSE)


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


def logical_lines(text):
    """Yields (number, line) as the preprocessor sees them: continued lines joined, comments a
    space, raw strings empty. The number is that of the line's first character."""
    pieces = SPLICE.split(text)
    splices, length = [], 0  # places in the joined text where a line ended
    for piece in pieces[:-1]:
        length += len(piece)
        splices.append(length)
    joined = "".join(pieces)

    def number_at(place):
        return joined.count("\n", 0, place) + bisect.bisect_right(splices, place) + 1

    line, start = "", 0
    for token in TOKEN.finditer(joined):
        if token["newline"]:
            yield number_at(start), line
            line, start = "", token.end()
        elif token["comment"]:
            line += " "
        else:
            line += '""' if token["raw"] else token.group()
    yield number_at(start), line


def included_names(path, text):
    """Yields (line number, name); the name is None when it cannot be told."""
    folder = path.rpartition("/")[0]
    for number, line in logical_lines(text):
        directive = DIRECTIVE.match(line)
        if not directive:
            continue
        target = TARGET.fullmatch(directive["target"].strip())
        if target is None:
            yield number, None
        elif target["quoted"] and "/" not in target["quoted"]:
            yield number, f"{folder}/{target['quoted']}"  # a neighbour
        else:
            yield number, target["quoted"] or target["angled"]


def complaint(path, name):
    """Why the file `path` may not include `name`, or None."""
    zone = next((z for z in ZONES if fnmatch.fnmatchcase(path, z[0])), None)
    if zone is None:
        return "the file is in no folder that docs/architecture.md knows"
    zone_pattern, own, packages = zone
    if name is None:
        return "an include through a macro cannot be checked"
    if "\\" in name or {"", ".", ".."} & set(name.split("/")):
        return "a path has one spelling: from the root of the sources, without . and .."
    package = package_of(name)
    if package is not None:
        return None if package in packages else f"{zone_pattern} must not use {package}"
    if name in LOUD_STD:
        return None if "loud" in packages else f"{zone_pattern} must not use <{name}>"
    if ("/" not in name and "." not in name) or name in C_STD:
        return None  # the standard library
    if not matches(name, own):
        return f"{zone_pattern} must not include it"
    return None if is_source(name) else "a file of this suffix is not checked"


def is_source(name):
    return pathlib.PurePosixPath(name).suffix.lower() in SUFFIXES


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
    """All sources below `root`, in whatever folder, but for hidden and build folders."""
    files = {}
    for top in root.iterdir():
        if top.name.startswith(".") or top.name == "build" or top.name.startswith("build-"):
            continue
        for path in top.rglob("*") if top.is_dir() else [top]:
            if is_source(path.name) and path.is_file():
                # Not all that a package brings need be UTF-8; what matters here is.
                text = path.read_text(encoding="utf-8", errors="replace")
                files[path.relative_to(root).as_posix()] = text
    return files


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
    ("lib/cache.cc", "#include <xxhash.h>"),
    ("lib/capi/cache.cc", '#include "lib/cache_impl.h"'),
    ("lib/capi/cache.cc", '#include "kvsieve/eval/trace.h"'),
    ("lib/eval/report.cc", '#include "tools/table.h"'),
    ("lib/eval/report.cc", "#include <CLI/CLI.hpp>"),
    ("tests/lib/oracle.h", '#include "quant/int8.h"'),
    ("tests/quant/int8_test.cc", '#include "evict/topk.h"'),
    ("tests/evict/topk_test.cc", '#include "lib/cache_impl.h"'),
    ("tools/main.cc", '#include "tests/lib/oracle.h"'),
    ("tools/main.cc", '#include "quant/int8.h"'),
    ("examples/a.cc", '#include "lib/cache_impl.h"'),
    ("vendor/a.h", "#include <vector>"),
    # Other spellings of the same.
    ("quant/int8.cc", '#include "quant/../evict/topk.h"'),
    ("quant/int8.cc", '#include "quant/./int8.h"'),
    ("quant/int8.cc", '#include "../evict/topk.h"'),
    ("quant/int8.cc", '#include "/usr/include/hwy/highway.h"'),
    ("quant/int8.cc", "#include <sys//mman.h>"),
    ("quant/int8.cc", '#include "quant/table.txt"'),
    ("quant/table.inc", '#include "evict/topk.h"'),
    ("quant/table.INL", '#include "evict/topk.h"'),
    ("quant/int8.cc", '#include \\\n  "evict/topk.h"'),
    ("quant/int8.cc", '#inc\\  \nlude "evict/topk.h"'),
    ("quant/int8.cc", '#import "evict/topk.h"'),
    ("quant/int8.cc", '#include_next "evict/topk.h"'),
    ("quant/int8.cc", '%:include "evict/topk.h"'),
    ("quant/int8.cc", "import <iostream>;"),
    ("quant/int8.cc", '/**/ # /**/ include /*\n*/ "evict/topk.h"  // why'),
    ("quant/int8.cc", '#include "evict/topk.h" junk'),
]
# path, text whose third line must be caught.
HIDDEN = [
    ("quant/int8.cc", 'const char* a = "/*";\n\n#include "evict/topk.h"\nconst char* b = "*/";'),
    ("quant/int8.cc", "char a = '\"'; int b = 1'000;\n\n#include \"evict/topk.h\"\nchar c = '\"';"),
    ("quant/int8.cc", 'auto a = R"x(\n/*)x";\n#include "evict/topk.h"\n// */'),
    ("quant/int8.cc", '#define A \\\n  1\n#include "evict/topk.h"'),
    ("quant/int8.cc", '// this goes on \\\n#include "quant/int8.h"\n#include "evict/topk.h"'),
]
CLEAN = [
    ("include/kvsieve/a.h", '#include <vector>\n#include "kvsieve/types.h"'),
    ("include/kvsieve/kvsieve_c.h", "#include <stdint.h>"),
    ("quant/int8.cc", '#include <cmath>\n#include <hwy/highway.h>\n#include "quant/int8.h"'),
    ("tests/quant/int8_test.cc", '#include "test_util.h"'),
    ("quant/portable.cc", "#include <xsimd/xsimd.hpp>"),
    ("lib/checksum.cc", "#include <xxhash.h>"),
    ("lib/cache.cc", '#include <sys/mman.h>\n#include "evict/topk.h"'),
    ("lib/eval/report.cc", "#include <nlohmann/json.hpp>\n#include <xtensor/xview.hpp>"),
    ("quant/int8.cc", '// #include "evict/topk.h"\n/*\n#include <iostream>\n*/'),
    ("quant/int8.cc", 'auto a = R"(\n#include "evict/topk.h"\n)";'),
    ("quant/int8.cc", '// on \\\n#include "evict/topk.h"'),
    ("quant/int8.cc", "const char* import = \"\";\nint a = import < 3;"),
]


def self_test():
    for path, line in VIOLATIONS:
        _, errors = check({path: f"// A file.\n{line}\n"})
        assert len(errors) == 1 and errors[0].startswith(f"{path}:2: "), (path, line, errors)
    for path, text in HIDDEN:
        _, errors = check({path: text})
        assert len(errors) == 1 and errors[0].startswith(f"{path}:3: "), (path, text, errors)
    for path, text in CLEAN:
        _, errors = check({path: text})
        assert not errors, (path, errors)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in ["lib/a.cc", "quant/deep/b.inc", "new/c.H", "d.cpp", "build/e.cc", ".git/f.h",
                     "docs/g.md"]:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
        assert set(read_tree(root)) == {"lib/a.cc", "quant/deep/b.inc", "new/c.H", "d.cpp"}
    caught = len(VIOLATIONS) + len(HIDDEN)
    print(f"layers: {caught} violations caught, {len(CLEAN)} clean files passed")


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
