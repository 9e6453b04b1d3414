"""Prompts from a seed, the same here and in presets_test.cc, so that golden files hold no tensors.

An element is a multiple of 1/8 in [-2, 2): exact in f16, and a dot product of up to 64 of them is
exact in f32 in any order. Equal keys therefore have equal scores, bit for bit, on every machine.
"""

from dataclasses import dataclass, field, replace

import numpy as np

KEYS, VALUES, QUERIES = 0, 1, 2


def splitmix64(x):
    """The output function of splitmix64 (Steele, Lea, Flood 2014) for states `x`, uint64."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class Prompt:
    """All layers of one prompt. `period` p > 0: token t has the keys of token t % p, which plants
    ties. `kv_repeat` g: key heads h with equal h // g are the same, as if repeated for the query
    heads that share them. `chunks`: rows of each append; empty: all at once. `decode`: the last
    tokens that come one by one, in decode."""

    query_heads: int
    kv_heads: int
    dim: int
    tokens: int
    layers: int = 1
    seed: int = 0
    period: int = 0
    kv_repeat: int = 1
    chunks: list = field(default_factory=list)
    decode: int = 0

    def rows(self, layer, kind):
        """f32 [heads, tokens, dim]."""
        heads = np.arange(self.query_heads if kind == QUERIES else self.kv_heads)
        tokens = np.arange(self.tokens)
        if kind == KEYS and self.period:
            tokens = tokens % self.period
        if kind != QUERIES:
            heads = heads // self.kv_repeat
        place = [np.asarray(x, np.uint64) for x in
                 (self.seed, layer, kind, heads[:, None, None], tokens[:, None],
                  np.arange(self.dim))]
        state = np.uint64(0)
        for part, shift in zip(place, (48, 40, 36, 28, 8, 0)):
            state = state | part << np.uint64(shift)
        return ((splitmix64(state) >> np.uint64(59)).astype(np.float32) - 16) / 8

    def keys(self, layer):
        return self.rows(layer, KEYS)

    def queries(self, layer):
        return self.rows(layer, QUERIES)

    def chunk_rows(self):
        """Rows of each append, those of decode included."""
        return (self.chunks or [self.tokens - self.decode]) + [1] * self.decode

    def with_seed(self, seed):
        return replace(self, seed=seed)

    def repeated(self):
        """Each query head with a KV head of its own, as caches without GQA support store it."""
        return replace(self, kv_heads=self.query_heads,
                       kv_repeat=self.query_heads // self.kv_heads)

    def to_json(self):
        fields = {"query_heads": self.query_heads, "kv_heads": self.kv_heads, "dim": self.dim,
                  "tokens": self.tokens, "layers": self.layers, "seed": self.seed,
                  "period": self.period, "kv_repeat": self.kv_repeat}
        fields |= {"chunks": self.chunks} if self.chunks else {}
        return fields | ({"decode": self.decode} if self.decode else {})
