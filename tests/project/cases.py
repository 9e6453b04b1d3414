"""Checks that docs/cases.md and the tests name the same cases.

    cases.py SOURCE_DIR    exit 1 and one line per finding
    cases.py --self-test

A test of a case is named after it: TEST(Cases, U15_ATrimCountsTokens), of two at once
U79_U81_SequencesAreIndependent, of the project itself kvs_project_test(docs_U92_AllOfThemRun ...).
A row of the table is | U15 | ... | `U15_ATrimCountsTokens` |.
"""

import pathlib
import re
import sys

TABLE = "docs/cases.md"
TEST = re.compile(r"\bTEST(?:_F|_P)?\(\s*\w+,\s*((?:U\d\d_)+\w+)\s*\)"
                  r"|\bkvs_project_test\(\s*\w*?((?:U\d\d_)+\w+)")
ROW = re.compile(r"^\| (U\S*) \|.*\| ([^|]*) \|$", re.MULTILINE)


def cases_of(test):
    return re.findall(r"U\d\d(?=_)", re.match(r"(?:U\d\d_)+", test)[0])


def check(table, sources):
    """sources: texts of test files. One message per finding."""
    written = {}  # case -> its tests
    for text in sources:
        for test in map("".join, TEST.findall(text)):
            for case in cases_of(test):
                written.setdefault(case, set()).add(test)
    listed = {}
    for case, tests in ROW.findall(table):
        if case in listed:
            yield f"{case} has two rows"
        listed[case] = set(re.findall(r"`(\w+)`", tests))
        if not listed[case]:
            yield f"{case} has no test"
    for case in sorted(written.keys() | listed.keys()):
        for test in sorted(written.get(case, set()) - listed.get(case, set())):
            yield f"{case}: the test {test} is not in its row"
        for test in sorted(listed.get(case, set()) - written.get(case, set())):
            yield f"{case}: there is no test {test}"
    if list(listed) != sorted(listed):
        yield "the rows are not in the order of their cases"


GOOD = """
| case | reported in | what must happen here | tests |
|---|---|---|---|
| U03 | a #1 | b | `U03_A`, `U03_B` |
| U79 | a | b | `U79_U81_C` |
| U81 | a | b | `U79_U81_C` |
| U92 | a | b | `U92_D` |
"""
TESTS = ["TEST(Cases, U03_A) {\nTEST_P(Other,\n       U03_B) {", "TEST_F(Cases, U79_U81_C) {}",
         "TEST(Cases, NoCase) {}", "kvs_project_test(docs_U92_D docs.py)\nkvs_project_test(dev x)"]
# What to replace in the table by what, and what must be said.
WRONG = [
    ("`U03_A`, ", "", "U03: the test U03_A is not in its row"),
    ("`U03_A`", "`U03_D`", "U03: there is no test U03_D"),
    ("| U81 | a | b | `U79_U81_C` |\n", "", "U81: the test U79_U81_C is not in its row"),
    ("| U81 |", "| U79 |", "U79 has two rows"),
    ("`U03_A`, `U03_B`", "none", "U03 has no test"),
    ("`U92_D`", "`U92_E`", "U92: the test U92_D is not in its row"),
    ("| U79 |", "| U82 |", "the rows are not in the order of their cases"),
]


def self_test():
    assert list(check(GOOD, TESTS)) == [], list(check(GOOD, TESTS))
    for old, new, said in WRONG:
        found = list(check(GOOD.replace(old, new, 1), TESTS))
        assert said in found, (said, found)
    print(f"cases: {len(WRONG)} wrong tables caught")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(sys.argv[1])
    files = [*sorted((root / "tests").rglob("*.cc")), root / "tests/project/CMakeLists.txt"]
    sources = [path.read_text(encoding="utf-8") for path in files]
    table = (root / TABLE).read_text(encoding="utf-8")
    found = list(check(table, sources))
    for message in found:
        print(f"{TABLE}: {message}")
    print(f"cases: {len(ROW.findall(table))} cases, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
