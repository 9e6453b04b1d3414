"""Checks that the core library can neither throw, print nor abort.

    symbols.py NM LIBRARY.a SOURCE_DIR   exit 1 and one line per finding
    symbols.py --self-test CXX NM

Reads the undefined symbols of a Release build: what the core asks of others. Catching is allowed
(the core turns std::bad_alloc into kOutOfMemory at its boundary), starting an exception is not.
Two things look in an object file just as the containers' own code does, `throw;` and `.at()`, and
a trap is an instruction without a symbol: for those it reads the source.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

# What the standard containers call when a size cannot be had. The core uses std::vector and
# std::string for bookkeeping; it never asks for such sizes, and catches what remains.
ALLOWED = {
    "std::__throw_length_error(char const*)": "vector and string growth past max_size()",
    "std::__throw_bad_alloc()": "operator new inside containers and allocators",
    "std::__throw_bad_array_new_length()": "vector(n) past max_size()",
    "__cxa_throw_bad_array_new_length": "new T[n] and make_unique<T[]>(n) past the address space",
    "std::__throw_logic_error(char const*)": "string from a null pointer; never passed",
    "std::__throw_out_of_range_fmt(char const*, ...)": "position check of string_view::substr() "
                                                       "and its like; positions are checked first",
    "std::__throw_system_error(int)": "std::mutex::lock on a mutex that this thread holds",
    "__cxa_rethrow": "containers that pass on the bad_alloc of an element's copy; starts nothing",
    "__cxa_pure_virtual": "slot of a pure virtual function in the table of an abstract class",
}

FORBIDDEN = {
    "throws": r"__cxa_(throw|allocate_exception|bad_cast|bad_typeid|throw_bad_\w+)\b"
              r"|_Unwind_(RaiseException|Resume_or_Rethrow)\b"
              r"|std::(__throw_\w+|rethrow_\w+|__exception_ptr::\w+)",
    "prints": r"_*v?[fd]?w?printf(_chk)?$|_*(puts|fputs|fputc|putc|putchar|fwrite|perror)(_unlocked)?$"
              r"|p?writev?(64)?$|syscall$|(stdout|stderr)$|std::(w?cout|w?cerr|w?clog)$"
              r"|std::(ios_base|ostream|basic_ostream|__ostream_insert|basic_streambuf)\b"
              r"|std::__cxx11::basic_\w*stringstream",
    "aborts": r"(abort|exit|_exit|_Exit|quick_exit|raise|__assert_fail|__assert|__fortify_fail"
              r"|__chk_fail)$|std::(terminate|abort|exit|quick_exit|__glibcxx_assert_fail)\b"
              r"|hwy::Abort\b",
}
FORBIDDEN = {kind: re.compile(pattern) for kind, pattern in FORBIDDEN.items()}


CORE = ["include/kvsieve", "lib", "quant", "evict"]
NOT_CORE = ["lib/eval", "include/kvsieve/eval", "include/kvsieve/xtensor.h"]
TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
WORDS = re.compile(r"\bthrow\b|(?:\.|->)at\s*\("
                   r"|\b__builtin_(?:verbose_trap|trap|debugtrap|abort)\b|\b__debugbreak\b")


def judge(symbol):
    """throws, prints, aborts, or None."""
    if symbol in ALLOWED:
        return None
    return next((kind for kind, pattern in FORBIDDEN.items() if pattern.match(symbol)), None)


def undefined_symbols(nm, library):
    """Yields (unit, symbol)."""
    listing = subprocess.run([nm, "-C", "--undefined-only", library], check=True, text=True,
                             stdout=subprocess.PIPE).stdout
    unit = "?"
    for line in listing.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            unit = line[:-1]
        elif line.strip():
            # "                 U abort", with a version suffix in some toolchains
            yield unit, re.sub(r"@.*$", "", line.split(None, 1)[1])


def forbidden_words(text):
    """Yields (line number, word) outside comments and literals."""
    code = TEXT.sub(lambda m: "\n" * m.group().count("\n"), text)
    for number, line in enumerate(code.splitlines(), 1):
        for found in WORDS.finditer(line):
            yield number, found.group()


def check_source(root):
    errors = []
    paths = (p for d in CORE for p in (root / d).rglob("*") if p.suffix in {".h", ".cc"})
    for path in sorted(paths):
        name = path.relative_to(root).as_posix()
        if not name.startswith(tuple(NOT_CORE)):
            errors += [f"{name}:{number}: throws or aborts: {word}"
                       for number, word in forbidden_words(path.read_text(encoding="utf-8"))]
    return errors


def check_library(nm, library):
    seen, errors = 0, []
    for unit, symbol in undefined_symbols(nm, library):
        seen += 1
        kind = judge(symbol)
        if kind:
            errors.append(f"{unit} {kind}: {symbol}")
    return seen, errors


# One function each, compiled as the core is; what the check must say of it.
SAMPLES = {
    "throws": ["#include <new>\nvoid f() { throw 1; }",
               "#include <optional>\nint f(std::optional<int> o) { return o.value(); }",
               "#include <functional>\nint f(std::function<int()>& g) { return g(); }",
               "#include <map>\nint f(std::map<int, int>& m, int i) { return m.at(i); }",
               "#include <stdexcept>\nvoid f() { throw std::runtime_error(\"x\"); }"],
    "prints": ["#include <cstdio>\nvoid f() { std::puts(\"x\"); }",
               "#include <cstdio>\nvoid f(int i) { std::printf(\"%d\", i); }",
               "#include <cstdio>\nvoid f(int i) { std::fprintf(stderr, \"%d\", i); }",
               "#include <unistd.h>\nlong f() { return write(2, \"x\", 1); }",
               "#include <iostream>\nvoid f(int i) { std::cout << i; }",
               "#include <sstream>\nstd::string f(int i) { std::ostringstream s; s << i; "
               "return s.str(); }"],
    "aborts": ["#include <cstdlib>\nvoid f() { std::abort(); }",
               "#include <cstdlib>\nvoid f() { std::exit(1); }",
               "#include <exception>\nvoid f() { std::terminate(); }",
               "#undef NDEBUG\n#include <cassert>\nvoid f(int i) { assert(i == 1); }",
               "#include <hwy/base.h>\nvoid f(int i) { HWY_ASSERT(i == 1); }"],
    None: ["#include <string>\n#include <vector>\nvoid f(std::vector<std::string>& v, char* p) "
           "{ v.emplace_back(p); v.push_back(v[0].substr(2)); }",
           "#include <cstdio>\nint f(char* p, int i) { return std::snprintf(p, 9, \"%d\", i); }",
           "#include <memory>\n#include <new>\nint* f(int n) { try { return new int[n]; } "
           "catch (const std::bad_alloc&) { return nullptr; } }",
           "struct A { virtual void g() = 0; virtual ~A(); };\nA::~A() {}"],
}


def self_test(cxx, nm):
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        source, unit = pathlib.Path(folder, "sample.cc"), pathlib.Path(folder, "sample.o")
        for expected, samples in SAMPLES.items():
            for text in samples:
                source.write_text(text, encoding="utf-8")
                subprocess.run([cxx, "-std=c++20", "-O3", "-DNDEBUG", "-c", source, "-o", unit],
                               check=True)
                kinds = {judge(symbol) for _, symbol in undefined_symbols(nm, unit)} - {None}
                assert (expected in kinds) if expected else not kinds, (expected, kinds, text)
                count += 1
    assert [*forbidden_words('// throw\nf("throw"); throw;\nv.at(1);\nthrown = look_at(2);')] == [
        (2, "throw"), (3, ".at(")]
    assert [*forbidden_words("if (i) __builtin_trap();")] == [(1, "__builtin_trap")]
    print(f"symbols: {count} samples judged rightly")


def main(arguments):
    if arguments[0] == "--self-test":
        self_test(*arguments[1:])
        return 0
    nm, library, source_dir = arguments
    seen, errors = check_library(nm, library)
    errors += check_source(pathlib.Path(source_dir))
    print("\n".join(errors + [f"symbols: {seen} undefined symbols, {len(errors)} findings"]))
    return 1 if errors or seen == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
