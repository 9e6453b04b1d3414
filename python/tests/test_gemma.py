"""The tokenizer made of a GGUF vocabulary, on a vocabulary of our own."""

import pytest

pytest.importorskip("sentencepiece")

import gguf  # noqa: E402

from kvsieve_lab.gemma import GemmaTokenizer, sentencepiece_model  # noqa: E402

CONTROL, NORMAL, USER_DEFINED, BYTE = 3, 1, 4, 6


@pytest.fixture
def tokenizer(tmp_path):
    # As converters write it: <unk> as a control piece, runs of spaces unmarked.
    vocabulary = [("<pad>", 0, CONTROL), ("<eos>", 0, CONTROL), ("<bos>", 0, CONTROL)]
    vocabulary += [("<unk>", 0, CONTROL), ("  ", 0, USER_DEFINED), ("\n\n", 0, USER_DEFINED)]
    vocabulary += [(f"<0x{byte:02X}>", 0, BYTE) for byte in range(256)]
    vocabulary += [("ab", -1, NORMAL), ("bc", -2, NORMAL), ("bca", -2.5, NORMAL)]
    vocabulary += [("\u2581ab", -3, NORMAL)]
    vocabulary += [(letter, -10, NORMAL) for letter in "abc\u2581\n"]
    path = tmp_path / "vocabulary.gguf"
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_token_list([piece for piece, _, _ in vocabulary])
    writer.add_token_scores([float(score) for _, score, _ in vocabulary])
    writer.add_token_types([kind for _, _, kind in vocabulary])
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    model = tmp_path / "tokenizer.model"
    model.write_bytes(sentencepiece_model(path))
    ids = {piece: i for i, (piece, _, _) in enumerate(vocabulary)}
    return GemmaTokenizer(model), ids


def test_pairs_merge_best_score_first(tokenizer):
    encoder, ids = tokenizer
    assert encoder.encode("abc") == [ids["ab"], ids["c"]]
    # Not the split of the best sum, which is a|bca: by then ab is one piece.
    assert encoder.encode("abca") == [ids["ab"], ids["c"], ids["a"]]
    assert encoder.encode("a ab") == [ids["a"], ids["\u2581ab"]]


def test_runs_of_spaces_and_lines_are_pieces(tokenizer):
    encoder, ids = tokenizer
    assert encoder.encode("a  b\n\nc") == [ids["a"], ids["  "], ids["b"], ids["\n\n"], ids["c"]]
    assert encoder.encode(" ab  ") == [ids["\u2581ab"], ids["  "]]


def test_unknown_letters_become_bytes(tokenizer):
    encoder, ids = tokenizer
    assert encoder.encode("\u00e9") == [ids["<0xC3>"], ids["<0xA9>"]]
    assert encoder.encode("a", add_special_tokens=True) == [2, ids["a"]]
