"""A model that users write themselves costs what the library's same model costs."""

from pathlib import Path

import pytest

from estimators.layers.sharding import layer_work
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees, LayerWork
from estimators.models.spec import TransformerSpec
from estimators.tracing.graph import LayerGraph
from estimators.tracing.trace import trace_model
from estimators.tracing.user_module import UserModule

MODULES = Path(__file__).parent / "modules"

SEQUENCE = 128

LLAMA = TransformerSpec(
    family="llama",
    num_layers=3,
    hidden_size=64,
    num_attention_heads=8,
    num_query_groups=4,
    ffn_hidden_size=192,
    vocab_size=512,
    sequence_length=SEQUENCE,
    gated_linear_unit=True,
    normalization="rmsnorm",
    position_embedding_type="rope",
    tie_word_embeddings=False,
    add_bias_linear=False,
)
GPT = TransformerSpec(
    family="gpt",
    num_layers=3,
    hidden_size=64,
    num_attention_heads=4,
    vocab_size=512,
    sequence_length=SEQUENCE,
    hidden_dropout=0.1,
)
PAIRS = {
    "llama": (LLAMA, "llama.py", {}),
    "llama, written-out attention": (
        # A mask that is written out hides later tokens, too.
        TransformerSpec(
            **{
                **{name: getattr(LLAMA, name) for name in LLAMA.__slots__},
                "attention_implementation": "plain",
            }
        ),
        "llama.py",
        {"written_out": True},
    ),
    "gpt": (GPT, "gpt.py", {}),
}
DEGREES = (
    Degrees(),
    Degrees(tp=2, micro_batch_size=2),
    Degrees(tp=4, micro_batch_size=2, sequence_parallel=True),
)


def traced(file: str, **arguments: object) -> LayerGraph:
    module = UserModule(
        file=MODULES / file,
        function="build",
        sequence_length=SEQUENCE,
        arguments=arguments,
    )
    return module.trace().graph


def costs(graph: LayerGraph, degrees: Degrees) -> list[LayerWork]:
    return [layer_work(graph, kind, degrees, 2) for kind in graph.kinds]


@pytest.mark.parametrize("degrees", DEGREES, ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_a_copy_of_a_family_costs_what_the_family_costs(
    name: str, degrees: Degrees
) -> None:
    spec, file, arguments = PAIRS[name]
    own, library = traced(file, **arguments), trace_model(spec)
    assert own.names == library.names
    assert own.num_parameters == library.num_parameters
    for mine, theirs in zip(costs(own, degrees), costs(library, degrees), strict=True):
        assert mine.model_flops == theirs.model_flops
        assert mine.parameters == theirs.parameters
        assert dict(mine.saved_bytes) == dict(theirs.saved_bytes)
        assert mine.collectives == theirs.collectives
        assert mine.working_bytes == theirs.working_bytes
        assert mine.gathered_bytes == theirs.gathered_bytes
        assert mine.weight_gradient_bytes == theirs.weight_gradient_bytes
        assert [
            (op.kind, op.forward_flops, op.forward_bytes, op.backward_bytes, op.core)
            for op in mine.operators
        ] == [
            (op.kind, op.forward_flops, op.forward_bytes, op.backward_bytes, op.core)
            for op in theirs.operators
        ]


@pytest.mark.parametrize("name", PAIRS)
def test_a_copy_of_a_family_can_be_split_as_the_family(name: str) -> None:
    spec, file, arguments = PAIRS[name]
    own = traced(file, **arguments).spec
    for tp in (1, 2, 3, 4, 8, 16):
        for cp in (1, 2):
            degrees = Degrees(tp=tp, cp=cp)
            assert divisibility_problem(own, degrees) == divisibility_problem(
                spec, degrees
            )
