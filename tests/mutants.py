"""Hand-made mistakes in selection, accounting and trim code, each with the test that must find it.

    mutants.py BUILD_DIR [FIRST [LAST]]    exit 1 when one survives

Run it in a clone of its own: it changes a source, builds the test, runs it, and puts the source back.
Not part of ctest: it takes minutes.
"""

import pathlib
import subprocess
import sys
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Mutant(NamedTuple):
    file: str
    right: str
    wrong: str
    test: str


MUTANTS = [
    # Taking back.
    Mutant("lib/cache_trim.cc", "tokens = std::max(tokens, trims[i].tokens());",
           "tokens = trims[i].tokens();", "random_lives_test"),
    Mutant("lib/cache_trim.cc", "if (end < exact &&", "if (end + 1 < exact &&", "random_lives_test"),
    Mutant("lib/trim.cc", "layer.exact_from = std::min(layer.exact_from, end_);", "",
           "sequence_test"),
    Mutant("lib/trim.cc", "layer.since_eviction - tokens_", "layer.since_eviction",
           "sequence_test"),
    Mutant("lib/trim.cc", "head.sinks.Trim(std::move(stored_[h].sinks));", "",
           "random_lives_test"),
    Mutant("lib/trim.cc", "layer.next_position = std::min(layer.next_position, end_);", "",
           "random_lives_test"),
    Mutant("lib/trim.cc", "layer.ring.Trim(layer.spec, end_);", "", "sequence_test"),
    Mutant("lib/seen_positions.cc", "run.tokens_before + position - run.first)",
           "run.tokens_before + position - run.first + 1)", "random_lives_test"),
    Mutant("lib/seen_positions.cc", "tokens_ = TokensBefore(end);", "TokensBefore(end);",
           "random_lives_test"),
    # Drafts.
    Mutant("lib/verify_rows.cc", "return std::lower_bound(held", "return std::upper_bound(held",
           "random_lives_test"),
    Mutant("lib/verify_rows.cc", "std::min(most_rows, std::max(total, 2 * room()))",
           "std::max(total, 2 * room())", "verify_test"),
    Mutant("lib/cache_verify.cc", "CloseVerify(open - n)", "CloseVerify(n)", "random_lives_test"),
    Mutant("lib/cache_verify.cc", "open > 0 ? open : impl_->speculative_rows",
           "impl_->speculative_rows", "random_lives_test"),
    Mutant("lib/cache_verify.cc", "if (n < open) {", "if (n <= open) {", "random_lives_test"),
    Mutant("lib/cache.cc", "if (layer.verify.rows() > 0) return Status::Ok();", "",
           "verify_test"),
    # Windows, schedules, positions.
    Mutant("lib/decode_append.cc", "std::int64_t{positions_.front()} + 1 -",
           "std::int64_t{positions_.front()} + 2 -", "random_lives_test"),
    Mutant("lib/decode_append.cc", "layer_.since_eviction += std::ssize(positions_);", "",
           "schedule_test"),
    Mutant("lib/layer_state.h", "position + spec.sliding_window)",
           "position + spec.sliding_window - 1)", "sequence_test"),
    Mutant("lib/reselect.cc", "layer.exact_from = layer.next_position;", "", "schedule_test"),
    Mutant("lib/cache.cc", "layer.since_eviction >= schedule.tokens",
           "layer.since_eviction > schedule.tokens", "schedule_test"),
    Mutant("lib/cache.cc", "if (positions[i] < least ||", "if (positions[i] + 1 < least ||",
           "random_lives_test"),
    Mutant("lib/position_store.cc",
           "bits[0] &= static_cast<std::uint8_t>(0xFFU << (kept.first - base_));", "",
           "state_test"),
    Mutant("lib/compaction.cc", "while (next < keep.size() && keep[next] < block[i]) ++next;",
           "if (next < keep.size() && keep[next] < block[i]) ++next;", "random_lives_test"),
    # Bytes.
    Mutant("lib/allocator.cc",
           "if (memory == nullptr) used_bytes_ -= static_cast<std::int64_t>(bytes);", "",
           "row_memory_test"),
    Mutant("lib/cache_set.cc", "return total += repeated * -1;", "return total;",
           "random_lives_test"),
    Mutant("lib/tier_bytes.cc", "report.reserved_bytes = room * (row.codes + row.scales);",
           "report.reserved_bytes = room * row.codes;", "cache_test"),
    Mutant("lib/cache_report.cc", "bytes.reserved_bytes = layer.verify.resident_bytes();", "",
           "random_lives_test"),
    # Selection.
    Mutant("evict/protection.cc", "tokens - newest), tokens}", "tokens - newest + 1), tokens}",
           "evict_test"),
    Mutant("evict/protection.cc", "plan.best = budget - set.protected_count;",
           "plan.best = budget;", "evict_test"),
    Mutant("evict/protection.cc", "std::int64_t{protect.last} + 1", "std::int64_t{protect.last}",
           "evict_test"),
    Mutant("evict/budget.cc", "(tokens + 3) / 4", "tokens / 4", "evict_test"),
    Mutant("evict/top_k.cc", "if (bin.above + counts[bin.index] >= rank) break;",
           "if (bin.above + counts[bin.index] > rank) break;", "evict_test"),
    Mutant("evict/tiers.cc", "range->begin <= rows[i]", "range->begin < rows[i]", "evict_test"),
]


def verdict(mutant, build_dir):
    path = ROOT / mutant.file
    source = path.read_text()
    if source.count(mutant.right) != 1:
        return f"{source.count(mutant.right)} places hold the right text"
    path.write_text(source.replace(mutant.right, mutant.wrong))
    try:
        built = subprocess.run(["ninja", "-C", build_dir, mutant.test], capture_output=True,
                               check=False)
        if built.returncode != 0:
            return "does not build"
        binary = pathlib.Path(build_dir).resolve() / "bin" / mutant.test
        try:
            ran = subprocess.run([binary], capture_output=True, timeout=120, check=False)
        except subprocess.TimeoutExpired:
            return "caught"
        return "caught" if ran.returncode != 0 else "SURVIVES"
    finally:
        path.write_text(source)


def main():
    build_dir = sys.argv[1]
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    last = int(sys.argv[3]) if len(sys.argv) > 3 else len(MUTANTS)
    caught = 0
    for number, mutant in enumerate(MUTANTS[first - 1:last], first):
        start = time.monotonic()
        found = verdict(mutant, build_dir)
        caught += found == "caught"
        print(f"{number:3} {mutant.file}: {mutant.right[:50]!r}, {mutant.test}: {found}"
              f" ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"mutants: {caught} of {last - first + 1} caught")
    return caught != last - first + 1


if __name__ == "__main__":
    sys.exit(main())
