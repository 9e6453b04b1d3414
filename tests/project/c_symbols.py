"""Checks that the C library exports what its header declares, versioned, and nothing else.

    c_symbols.py NM LIBRARY.so HEADER MAP   exit 1 and one line per finding
    c_symbols.py --self-test
"""

import pathlib
import re
import subprocess
import sys

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
DECLARED = re.compile(r"\bKVS_API\b[^;]*?\b(kvs_\w+)\s*\(")
# Any function that the header declares, so that one without KVS_API is seen too.
FUNCTION = re.compile(r"^(?!typedef)[\w ]+[ *](kvs_\w+)\s*\([^;{]*\);", re.MULTILINE)
NODE = re.compile(r"^(KVSIEVE_[\d.]+) *\{(.*?)^\}", re.DOTALL | re.MULTILINE)


def declared(header):
    """(exported, all): names."""
    text = COMMENT.sub("", header)
    return set(DECLARED.findall(text)), set(FUNCTION.findall(text))


def versions(script):
    """{name: node} of the linker script."""
    return {name: node for node, body in NODE.findall(COMMENT.sub("", script))
            for name in re.findall(r"\b(kvs_\w+);", body)}


def exported(listing):
    """{name: node} of what nm lists; the node is None where there is none."""
    symbols = {}
    for line in listing.splitlines():
        *_, kind, symbol = line.split()
        name, _, node = symbol.partition("@")
        if kind != "A":  # nm also lists each node itself, as an absolute symbol
            symbols[name] = node.lstrip("@") or None
    return symbols


def check(header, script, listing):
    with_api, functions = declared(header)
    wanted, found = versions(script), exported(listing)
    errors = [f"{name}: declared without KVS_API" for name in sorted(functions - with_api)]
    errors += [f"{name}: declared, but not in the linker script"
               for name in sorted(with_api - wanted.keys())]
    errors += [f"{name}: in the linker script, but not declared"
               for name in sorted(wanted.keys() - with_api)]
    errors += [f"{name}: declared, but not exported" for name in sorted(with_api - found.keys())]
    errors += [f"{name}: exported, but not declared" for name in sorted(found.keys() - with_api)]
    errors += [f"{name}: exported as {found[name]}, not as {wanted[name]}"
               for name in sorted(found.keys() & wanted.keys()) if found[name] != wanted[name]]
    return len(found), errors


HEADER = """typedef void (*kvs_task)(void* context);
KVS_API int kvs_a(int a,
                  int b);
KVS_API const char* kvs_b(void);  // KVS_API int kvs_comment(void);
int kvs_bare(void);
KVS_API int kvs_unversioned(void);
KVS_API int kvs_missing(void);
"""
MAP = """KVSIEVE_0.1 { global: kvs_a; kvs_bare; kvs_missing;
};
KVSIEVE_0.2 { global: kvs_b;
} KVSIEVE_0.1;
"""
LISTING = """0000000000000000 A KVSIEVE_0.1
0000000000000000 A KVSIEVE_0.2@@KVSIEVE_0.2
0000000000001000 T kvs_a@@KVSIEVE_0.1
0000000000001000 T kvs_b@@KVSIEVE_0.1
0000000000001000 T kvs_unversioned
0000000000001000 u _ZNSt3foo
"""


def self_test():
    count, errors = check(HEADER, MAP, LISTING)
    assert count == 4, count
    assert errors == ["kvs_bare: declared without KVS_API",
                      "kvs_unversioned: declared, but not in the linker script",
                      "kvs_bare: in the linker script, but not declared",
                      "kvs_missing: declared, but not exported",
                      "_ZNSt3foo: exported, but not declared",
                      "kvs_b: exported as KVSIEVE_0.1, not as KVSIEVE_0.2"], errors
    print(f"c_symbols: {len(errors)} mistakes caught")


def main(arguments):
    if arguments == ["--self-test"]:
        self_test()
        return 0
    nm, library, header, script = arguments
    listing = subprocess.run([nm, "-D", "--defined-only", library], check=True, text=True,
                             stdout=subprocess.PIPE).stdout
    count, errors = check(pathlib.Path(header).read_text(encoding="utf-8"),
                          pathlib.Path(script).read_text(encoding="utf-8"), listing)
    print("\n".join(errors + [f"c_symbols: {count} exported, {len(errors)} wrong"]))
    return 1 if errors or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
