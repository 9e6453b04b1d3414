import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


@pytest.fixture(scope="session")
def llama():
    """Random weights, four query heads on two KV heads: built in memory, runs in milliseconds."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, initializer_range=0.2,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="session")
def gemma3():
    """Sliding windows of 8 rows on every layer but the last, and two rotary bases."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(2)
    config = Gemma3TextConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=1, head_dim=32, sliding_window=8,
        query_pre_attn_scalar=32, initializer_range=0.2,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    )  # fmt: skip
    return Gemma3ForCausalLM(config).eval()


@pytest.fixture(scope="session")
def gemma2():
    """Softcapped logits, which transformers' sdpa leaves out: eager is the model."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(3)
    config = Gemma2Config(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=8,
        query_pre_attn_scalar=16, attn_logit_softcapping=2.0, initializer_range=0.5,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    model = Gemma2ForCausalLM(config).eval()
    model.set_attn_implementation("eager")
    return model


@pytest.fixture(params=["llama", "gemma3", "gemma2"])
def any_model(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def tokens():
    generator = torch.Generator().manual_seed(4)
    return torch.randint(97, (60,), generator=generator).tolist()


@pytest.fixture(scope="session")
def kvsieve():
    """The command, where it was built: build/release/bin/kvsieve or $KVSIEVE."""
    import os

    root = Path(__file__).resolve().parent.parent.parent
    binary = Path(os.environ.get("KVSIEVE", root / "build/release/bin/kvsieve"))
    if not binary.exists():
        pytest.skip(f"{binary} is not built")
    return binary
