"""The instrument: records attention of a transformers model, and measures what compression costs it.

capture    a model and a text -> a kv-trace 1 file
evaluate   model, texts, pipelines -> divergence, perplexity, needles, bytes
"""

VERSION = "1"
