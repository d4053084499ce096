"""A model that users write themselves costs what the library's same model costs."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from estimators.chain import build_layer_table
from estimators.layers.sharding import layer_work
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees, LayerWork
from estimators.models.spec import TransformerSpec
from estimators.platform import Platform
from estimators.tracing.graph import LayerGraph
from estimators.tracing.trace import trace_model
from estimators.tracing.user_module import UserModule
from estimators.training import TrainingSpec
from tests import failures
from topologies.accelerators import load_accelerator
from topologies.notices import gathered_notices

MODULES = Path(__file__).parent / "modules"
START = (MODULES / "small.py").read_text()

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
        replace(LLAMA, attention_implementation="plain"),
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


@failures.over("degrees", DEGREES, ids=str)
@failures.over("name", PAIRS)
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


@failures.over("name", PAIRS)
def test_a_copy_of_a_family_can_be_split_as_the_family(name: str) -> None:
    spec, file, arguments = PAIRS[name]
    own = traced(file, **arguments).spec
    for tp in (1, 2, 3, 4, 8, 16):
        for cp in (1, 2):
            degrees = Degrees(tp=tp, cp=cp)
            assert divisibility_problem(own, degrees) == divisibility_problem(
                spec, degrees
            )


@failures.over("device", ["h100-sxm", "tpu-v4"])
@failures.over("name", PAIRS)
def test_a_copy_of_a_family_takes_as_long_as_the_family(name: str, device: str) -> None:
    spec, file, arguments = PAIRS[name]
    training = TrainingSpec(global_batch_size=8)
    mine, theirs = (
        build_layer_table(
            graph,
            degrees=Degrees(tp=2, sequence_parallel=True),
            training=training,
            platform=Platform(accelerator=load_accelerator(device)),
        )
        for graph in (traced(file, **arguments), trace_model(spec))
    )
    for column in ("forward_time", "backward_time", "weight_gradient_time"):
        np.testing.assert_allclose(
            getattr(mine, column), getattr(theirs, column), rtol=1e-12
        )
    for mode, times in theirs.recompute_time.items():
        np.testing.assert_allclose(mine.recompute_time[mode], times, rtol=1e-12)
    np.testing.assert_array_equal(mine.boundary_bytes, theirs.boundary_bytes)


def written(folder: Path, text: str, *, length: int = 8) -> LayerGraph:
    file = folder / "my_model.py"
    file.write_text(START + text)
    module = UserModule(file=file, function="build", sequence_length=length)
    return module.trace().graph


def test_products_of_a_block_are_those_of_the_closed_form() -> None:
    width, inner, heads, groups = 64, 192, 8, 4
    graph = traced("llama.py")
    kept = width + 2 * groups * (width // heads)
    weights = width * (kept + width + 3 * inner)
    (block,) = {kind for kind in graph.kinds if graph.names[kind] == "block 0"}
    found = sum(op.model_flops for op in graph.layers[block].operators)
    assert found == 2 * SEQUENCE * weights + 4 * SEQUENCE**2 * width


def test_parameters_are_those_of_the_module() -> None:
    graph = traced("gpt.py")
    width, words = 64, 512
    block = 12 * width**2 + 13 * width
    assert graph.num_parameters == (
        (words + 128) * width + 3 * block + 2 * width  # the head is the embedding
    )
    assert graph.tied_parameters == words * width


WITH_GATE = """
class Odd(Block):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(16, 16)

    def forward(self, x):
        return super().forward(x) * torch.sigmoid(self.gate(x))


def build():
    return Model(block=Odd)
"""


def test_a_linear_layer_that_fits_no_pattern_is_whole_and_said_to_be(
    tmp_path: Path,
) -> None:
    with gathered_notices() as gathered:
        graph = written(tmp_path, WITH_GATE)
    notes = " ".join(gathered.sentences(math.inf))
    assert "rank computes blocks.0.gate, blocks.1.gate, blocks.2.gate of" in notes
    products = {op.name: op.sharding for op in graph.layers[1].operators}
    assert (products["gate"], products["up"], products["down"]) == ("", "column", "row")
    alone, shared = (layer_work(graph, 1, Degrees(tp=tp), 2) for tp in (1, 2))
    by_name = [
        {op.name: op.forward_flops for op in work.operators} for work in (alone, shared)
    ]
    assert by_name[1]["gate"] == by_name[0]["gate"] > 0
    assert by_name[1]["up"] == by_name[0]["up"] / 2
    layouts = {one.name: one.layout for one in graph.layers[1].parameters}
    assert layouts["gate.weight"] == "whole"
    assert divisibility_problem(graph.spec, Degrees(tp=2)) is None


ATTENTION = """
class Odd(Block):
    def __init__(self):
        super().__init__()
        self.key = nn.Linear(16, 16)

    def forward(self, x):
        heads = lambda one: one.view(1, -1, 4, 4).transpose(1, 2)
        y = F.scaled_dot_product_attention(heads(x), heads(self.key(x)), heads(x))
        return super().forward(x + y.transpose(1, 2).flatten(2))


def build():
    return Model(block=Odd)
"""


def test_attention_without_projections_keeps_the_model_whole(tmp_path: Path) -> None:
    with gathered_notices() as gathered:
        spec = written(tmp_path, ATTENTION).spec
    assert divisibility_problem(spec, Degrees()) is None
    reason = divisibility_problem(spec, Degrees(tp=2))
    assert reason is not None
    assert reason.startswith(
        "tensor_model_parallel_size 2, but the attention in blocks.0 does not stand"
    )
    assert "does not split my_model.py" in " ".join(gathered.sentences(math.inf))
    assert not spec.causal


UNLIKE = """
class Odd(Block):
    def __init__(self, inner):
        super().__init__()
        self.up, self.down = nn.Linear(16, inner), nn.Linear(inner, 16)


class Other(Model):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Odd(48 if i % 2 else 32) for i in range(4))


build = Other
"""


def test_unlike_blocks_are_layers_of_their_own_kinds(tmp_path: Path) -> None:
    graph = written(tmp_path, UNLIKE)
    assert graph.kinds == (0, 1, 2, 1, 2, 3)
    assert graph.names == ("embedding", *(f"block {i}" for i in range(4)), "head")
    assert graph.spec.ffn_hidden_size == 16  # what both inner widths can be divided by


IN_SEQUENCE = """
def build():
    return nn.Sequential(
        nn.Embedding(64, 16), Block(), Block(), Block(), nn.LayerNorm(16),
        nn.Linear(16, 64),
    )
"""


def test_blocks_are_found_in_a_sequence_of_all_layers(tmp_path: Path) -> None:
    graph = written(tmp_path, IN_SEQUENCE)
    blocks = tuple(f"block {i}" for i in range(3))
    assert graph.names == ("embedding", *blocks, "final norm", "head")


def test_a_changed_file_is_another_model(tmp_path: Path) -> None:
    before = written(tmp_path, "")
    after = written(tmp_path, "\ndef build(): return Model(4)\n")
    assert (before.spec.num_layers, after.spec.num_layers) == (3, 4)


def test_a_file_is_run_once_for_the_same_question(tmp_path: Path) -> None:
    count = tmp_path / "count"
    text = f"\nwith open({str(count)!r}, 'a') as stream: stream.write('x')\n"
    for length in (8, 8, 16):
        written(tmp_path, text, length=length)
    assert count.read_text() == "xx"


FUSED = """
class Odd(Block):
    def __init__(self):
        super().__init__()
        self.both, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        {heads}
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return super().forward(x + self.out(y.transpose(1, 2).flatten(2)))


def build():
    return Model(block=Odd)
"""
HEADS = {
    "split, then seen as heads": (
        "query, key, value = (one.view(1, -1, 4, 4).transpose(1, 2) "
        "for one in self.both(x).split(16, -1))"
    ),
    "seen as heads, then unbound": (
        "query, key, value = "
        "self.both(x).view(1, -1, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)"
    ),
    "cut by indices": (
        "both = self.both(x).unflatten(-1, (12, 4)).transpose(1, 2); "
        "query, key, value = both[:, :4], both[:, 4:8], both[:, 8:]"
    ),
}


@failures.over("heads", HEADS)
def test_queries_keys_and_values_of_one_layer_are_split_by_heads(
    tmp_path: Path, heads: str
) -> None:
    graph = written(tmp_path, FUSED.format(heads=HEADS[heads]))
    block = graph.layers[1]
    assert [op.sharding for op in block.operators if op.operation == "linear"] == (
        ["qkv", "row", "column", "row"]
    )
    layouts = {one.name: (one.elements, one.layout) for one in block.parameters}
    assert layouts["both.weight.query"] == (256, "tensor")
    assert layouts["both.weight.value"] == (256, "groups")
    assert layouts["both.bias.key"] == (16, "groups")
    (attention,) = (op for op in block.operators if op.operation == "attention")
    (qkv,) = (op for op in block.operators if op.sharding == "qkv")
    assert attention.inputs == qkv.outputs
    assert graph.spec.num_attention_heads == graph.spec.num_query_groups == 4
    assert graph.spec.causal


COMPLEX = """
class Odd(Block):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (
            nn.Linear(16, width) for width in (16, 8, 8, 16)
        )

    def forward(self, x):
        angles = torch.outer(torch.arange(x.shape[1]), torch.ones(2))
        turns = torch.polar(torch.ones_like(angles), angles)[:, None]

        def turned(heads):
            pairs = heads.float().reshape(*heads.shape[:-1], -1, 2)
            pairs = torch.view_as_complex(pairs)
            return torch.view_as_real(pairs * turns).flatten(3).type_as(heads)

        query = turned(self.query(x).view(1, -1, 4, 4))
        key = turned(self.key(x).view(1, -1, 2, 4))
        value = self.value(x).view(1, -1, 2, 4)
        key, value = (
            one[:, :, :, None].expand(1, -1, 2, 2, 4).reshape(1, -1, 4, 4)
            for one in (key, value)
        )
        heads = (one.transpose(1, 2) for one in (query, key, value))
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        return super().forward(x + self.out(y.transpose(1, 2).flatten(2)))


def build():
    return Model(block=Odd)
"""


def test_complex_angles_are_one_operator_and_repeated_groups_another(
    tmp_path: Path,
) -> None:
    graph = written(tmp_path, COMPLEX)
    operators = [op.operation for op in graph.layers[1].operators]
    head = ["linear", "rotary", "repeat", "repeat", "attention", "linear", "add"]
    assert operators[: len(head)] == head
    assert graph.spec.num_query_groups == 2
    assert graph.spec.num_attention_heads == 4
    rotary = graph.layers[1].operators[1]
    assert len(rotary.inputs) == len(rotary.outputs) == 2
    assert rotary.saved == ()


CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint


class Odd(Model):
    def forward(self, tokens, labels):
        x = self.words(tokens) * 4.0
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        logits = 30.0 * torch.tanh(self.head(x) / 30.0)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


build = Odd
"""


def test_a_module_may_compute_its_loss_from_labels(tmp_path: Path) -> None:
    graph = written(tmp_path, CHECKPOINTED)
    operators = [op.operation for op in graph.layers[-1].operators]
    assert operators[0] == "linear"
    assert operators.count("cross entropy") == 1
    assert operators[-1] == "cross entropy"
    # Something stands between the logits and the loss: they are not split.
    assert graph.layers[-1].operators[0].sharding == ""
    assert layer_work(graph, graph.kinds[-1], Degrees(tp=2), 2).collectives == ()


LINEAR_ATTENTION = """
class Odd(Block):
    def forward(self, x):
        return super().forward(x + x @ (x.transpose(1, 2) @ x))


def build():
    return Model(block=Odd)
"""


def test_other_products_of_activations_are_neither_split_nor_passed_on(
    tmp_path: Path,
) -> None:
    spec = written(tmp_path, LINEAR_ATTENTION).spec
    reason = divisibility_problem(spec, Degrees(tp=2))
    assert reason is not None
    assert "the product of two activations in blocks.0 is no attention" in reason
    assert divisibility_problem(spec, Degrees(cp=2)) is not None
    assert divisibility_problem(spec, Degrees()) is None


LEARNED_BIAS = """
class Odd(Block):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(8, 8))
        self.both, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        query, key, value = (
            one.view(1, -1, 4, 4).transpose(1, 2) for one in self.both(x).chunk(3, -1)
        )
        scores = query @ key.mT / 2 + self.bias{mask}
        y = F.softmax(scores, -1) @ value
        return super().forward(x + self.out(y.transpose(1, 2).flatten(2)))


def build():
    return Model(block=Odd)
"""


@failures.over("mask", ["", " + torch.ones(8, 8).triu(1)"])
def test_a_learned_bias_of_scores_hides_nothing(tmp_path: Path, mask: str) -> None:
    graph = written(tmp_path, LEARNED_BIAS.format(mask=mask))
    assert graph.spec.causal == bool(mask)
    assert graph.spec.attention_implementation == "plain"
    core = [op.operation for op in graph.layers[1].operators if op.core]
    assert core == ["matmul", "softmax", "matmul"]
