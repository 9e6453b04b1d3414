"""Which rows a rule keeps, and whether its scores leave a doubt.

Scores come in double precision. A problem is only used when no score lies within MARGIN of the
threshold without being equal to it: f32 sums of some hundred weights are off by about 1e-6
relative, so their order of summation cannot decide.
"""

from dataclasses import dataclass

import numpy as np

MARGIN = 1e-4   # relative to the threshold
EQUAL = 1e-12   # double rounding; planted ties are equal to the bit in f32


class Unclear(Exception):
    """Some score is too close to the threshold; take another seed."""


class Refused(Exception):
    """The original does not take the problem; the message is its own."""


@dataclass(frozen=True)
class Kept:
    """Rows of one head: `certain`, and `rows` in total, the rest any of `tied`."""

    certain: tuple
    tied: tuple = ()
    rows: int = 0

    def allows(self, positions):
        positions = set(positions)
        extra = positions - set(self.certain)
        return (set(self.certain) <= positions and extra <= set(self.tied)
                and len(positions) == self.rows)

    def to_json(self):
        if not self.tied:
            return ranges(self.certain)
        return {"certain": ranges(self.certain), "tied": ranges(self.tied), "rows": self.rows}


def exactly(positions):
    positions = tuple(sorted(int(p) for p in positions))
    return Kept(positions, (), len(positions))


def ranges(positions):
    """"0-3,17,40-63"."""
    runs = []
    for p in positions:
        if runs and runs[-1][1] == p - 1:
            runs[-1][1] = p
        else:
            runs.append([p, p])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def top(scores, candidates, count, ties):
    """(certain, tied) rows that make up the best `count` of `candidates`. ties: low or high
    position first, or any, where the original does not say."""
    candidates = np.asarray(sorted(candidates), dtype=int)
    if count <= 0:
        return (), ()
    if count >= len(candidates):
        return tuple(candidates.tolist()), ()
    values = scores[candidates]
    threshold = np.sort(values)[::-1][count - 1]
    distance = np.abs(values - threshold) / abs(threshold)
    equal = distance <= EQUAL
    if np.any(~equal & (distance <= MARGIN)):
        raise Unclear
    above = candidates[~equal & (values > threshold)].tolist()
    level = candidates[equal].tolist()
    missing = count - len(above)
    if missing == len(level):
        return tuple(above + level), ()
    if ties == "any":
        return tuple(above), tuple(level)
    return tuple(above + (level[:missing] if ties == "low" else level[-missing:])), ()


def fill(scores, always, count, ties):
    """`always`, then the best of the other rows up to `count` in total."""
    others = set(range(len(scores))) - set(always)
    certain, tied = top(scores, others, count - len(always), ties)
    return Kept(tuple(sorted([*always, *certain])), tied, max(count, len(always)))
