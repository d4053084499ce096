"""Multi-head latent attention and experts that all tokens share."""

from dataclasses import replace

import pytest
import torch

from estimators.layers.sharding import layer_work
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees, model_flops_per_sequence
from estimators.models.spec import TransformerSpec
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.torch_models import build_layers, example_inputs
from tests.estimators.whole_models import build_model
from topologies.errors import InputError

DEEPSEEK_V3 = TransformerSpec(
    family="mixtral",
    num_layers=61,
    hidden_size=7168,
    num_attention_heads=128,
    vocab_size=129280,
    sequence_length=4096,
    ffn_hidden_size=2048,
    kv_channels=128,
    gated_linear_unit=True,
    normalization="rmsnorm",
    position_embedding_type="rope",
    tie_word_embeddings=False,
    add_bias_linear=False,
    num_moe_experts=256,
    moe_router_topk=8,
    moe_shared_expert_intermediate_size=2048,
    kv_lora_rank=512,
    q_lora_rank=1536,
    qk_pos_emb_head_dim=64,
    v_head_dim=128,
)
SMALL = replace(
    DEEPSEEK_V3,
    num_layers=2,
    hidden_size=64,
    num_attention_heads=4,
    num_query_groups=4,
    vocab_size=101,
    sequence_length=16,
    max_position_embeddings=16,
    ffn_hidden_size=32,
    kv_channels=8,
    num_moe_experts=4,
    moe_router_topk=2,
    moe_shared_expert_intermediate_size=48,
    kv_lora_rank=24,
    q_lora_rank=40,
    qk_pos_emb_head_dim=4,
    v_head_dim=12,
)


def test_deepseek_v3_has_its_published_parameters():
    """671 billion; its first 3 layers are dense there, of 9 experts' width each."""
    graph = trace_model(DEEPSEEK_V3)
    expert = 3 * 7168 * 2048
    dense = 3 * (256 + 1 - 9) * expert + 3 * 256 * 7168
    assert (graph.num_parameters - dense) / 1e9 == pytest.approx(671.0, abs=0.1)


def test_deepseek_v3_needs_its_published_flops():
    """37 billion parameters for a token, and half of the square of attention."""
    flops = model_flops_per_sequence(trace_model(DEEPSEEK_V3), counts_masked=False)
    attention = 3 * 61 * 2 * 4096 * 128 * (192 + 128) / 2
    used = (flops / 4096 - attention) / 6
    # The embedding's rows are no products.
    assert (used + 129280 * 7168) / 1e9 == pytest.approx(37.6, abs=0.2)


def test_attention_is_what_its_matrices_say():
    torch.manual_seed(0)
    attention = build_layers(SMALL, "cpu")["block"].self_attention
    hidden = torch.randn(1, 16, 64)
    found = attention(hidden)

    def turned(vector, position):
        angles = position * 10000.0 ** (-torch.arange(0, 4, 2) / 4)
        angles = torch.cat((angles, angles))
        left, right = vector.chunk(2)
        return vector * angles.cos() + torch.cat((-right, left)) * angles.sin()

    token = hidden[0]
    queries = attention.q_norm(token @ attention.linear_q_down_proj.weight.T)
    queries = (queries @ attention.linear_q_up_proj.weight.T).view(16, 4, 12)
    down = token @ attention.linear_kv_down_proj.weight.T
    up = attention.kv_norm(down[:, :24]) @ attention.linear_kv_up_proj.weight.T
    keys, values = up.view(16, 4, 20)[..., :8], up.view(16, 4, 20)[..., 8:]
    contexts = torch.zeros(16, 4, 12)
    for head in range(4):
        for row in range(16):
            scores = []
            for column in range(row + 1):
                plain = queries[row, head, :8] @ keys[column, head]
                turn = turned(queries[row, head, 8:], row) @ turned(
                    down[column, 24:], column
                )
                scores.append((plain + turn) / 12**0.5)
            weights = torch.stack(scores).softmax(0)
            contexts[row, head] = weights @ values[: row + 1, head]
    expected = contexts.flatten(1) @ attention.linear_proj.weight.T
    torch.testing.assert_close(found[0], expected)


@failures.over("q_lora_rank", [40, 0])
def test_small_latent_models_learn_on_a_cpu(q_lora_rank):
    torch.manual_seed(0)
    spec = replace(SMALL, q_lora_rank=q_lora_rank)
    model = build_model(spec, "cpu")
    inputs, labels = example_inputs(spec, "cpu")
    labels = (torch.randint(spec.vocab_size, labels[0].shape),)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = model(inputs, labels)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    traced = trace_model(spec).num_parameters
    assert traced == sum(p.numel() for p in model.parameters())


def test_shared_experts_are_added_to_what_routed_ones_do():
    torch.manual_seed(0)
    layer = build_layers(SMALL, "cpu")["block"].mlp
    hidden = torch.randn(1, 16, 64)
    together = layer(hidden)
    beside, layer.shared_experts = layer.shared_experts(hidden), None
    torch.testing.assert_close(together, layer(hidden) + beside)


def test_up_projections_are_split_over_heads_and_down_projections_are_not():
    graph = trace_model(SMALL)
    works = [layer_work(graph, 1, Degrees(tp=tp), 2) for tp in (1, 2)]
    flops = [{op.name: op.forward_flops for op in work.operators} for work in works]
    for name, part in flops[0].items():
        is_down = name.endswith(("down_proj", "router"))
        assert flops[1][name] == (part if is_down else part / 2), name


@failures.over(
    ("changes", "where"),
    [
        ({"kv_lora_rank": 0}, "q_lora_rank"),
        ({"qk_pos_emb_head_dim": 0}, "qk_pos_emb_head_dim"),
        ({"qk_pos_emb_head_dim": 3}, "qk_pos_emb_head_dim"),
        ({"num_query_groups": 2}, "num_query_groups"),
        ({"position_embedding_type": "learned"}, "position_embedding_type"),
        ({"attention_implementation": "plain"}, "attention_implementation"),
        ({"add_qkv_bias": True}, "add_qkv_bias"),
    ],
)
def test_what_latent_attention_does_not_have_is_refused(changes, where):
    with pytest.raises(InputError) as caught:
        replace(SMALL, **changes)
    assert caught.value.where == where


def test_shared_experts_need_routed_ones_and_widths_that_split():
    with pytest.raises(InputError) as caught:
        replace(SMALL, family="llama", num_moe_experts=0, moe_router_topk=0)
    assert caught.value.where == "moe_shared_expert_intermediate_size"
    odd = replace(SMALL, moe_shared_expert_intermediate_size=50)
    assert "moe_shared_expert" in (divisibility_problem(odd, Degrees(tp=4)) or "")


def test_values_are_as_wide_as_keys_if_nothing_is_said():
    assert replace(SMALL, v_head_dim=0).v_head_dim == 8
