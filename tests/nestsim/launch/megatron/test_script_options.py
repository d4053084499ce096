"""What a script says beside its plan comes back on export, or is named as changed."""

import math
import shlex
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from nestsim.launch.formats.megatron import options as known
from nestsim.launch.formats.megatron.reading import find_command, read_megatron
from nestsim.launch.formats.megatron.writing import SCRIPT, write_megatron
from nestsim.launch.job import LaunchFiles, LaunchJob
from nestsim.launch.read import LaunchSource, imported_scenario
from nestsim.scenario.load import Scenario
from tests import failures
from tests.nestsim.launch.megatron.small import small_scenario

SIZES = {
    "num-layers": "8",
    "hidden-size": "512",
    "num-attention-heads": "8",
    "seq-length": "256",
    "max-position-embeddings": "256",
    "micro-batch-size": "1",
    "global-batch-size": "64",
    "position-embedding-type": "rope",
    "disable-bias-linear": "",
    "bf16": "",
}
EXPERTS = {"swiglu": "", "num-experts": "8", "expert-model-parallel-size": "2"}
WORDS = st.sampled_from(
    ["1", "0.1", "500000", "1e-6", "/data/my corpus", "it's", "$DATA/a", "a;b", "é"]
)
OF_MODELS = {
    "rotary-base": ["10000", "500000"],
    "norm-epsilon": ["1e-5", "1e-6"],
    "moe-token-dispatcher-type": ["alltoall", "allgather", "flex"],
    "moe-router-load-balancing-type": ["aux_loss", "none", "sinkhorn"],
    "moe-aux-loss-coeff": ["1e-2", "0"],
    "recompute-modules": ["core_attn", "core_attn moe_act"],
    "attention-backend": ["flash", "fused", "auto"],
    "rampup-batch-size": ["16 16 1000"],
    "ckpt-format": ["torch_dist"],
}
TOKENS = [
    {"tokenizer-type": "NullTokenizer", "vocab-size": "50256"},
    {"tokenizer-type": "NullTokenizer", "vocab-size": "32000"},
    {"tokenizer-type": "GPT2BPETokenizer", "vocab-file": "v.json"},
    {"tokenizer-type": "HuggingFaceTokenizer", "tokenizer-model": "my/own"},
    {"vocab-size": "51200"},
    {},
]
OTHERS = sorted(
    (known.TABLE.silent | known.TABLE.assumed.keys()) - {*OF_MODELS, "vocab-file"}
)

SCRIPTS = st.builds(
    lambda tokens, experts, of_models, others, tp: {
        **SIZES,
        **tokens,
        **(EXPERTS if experts else {}),
        **others,
        **of_models,
        "tensor-model-parallel-size": tp,
    },
    st.sampled_from(TOKENS),
    st.booleans(),
    st.fixed_dictionaries(
        {}, optional={name: st.sampled_from(one) for name, one in OF_MODELS.items()}
    ),
    st.dictionaries(st.sampled_from(OTHERS), st.just("") | WORDS, max_size=12),
    st.sampled_from(["1", "2"]),
)


def script_of(options: dict[str, str]) -> str:
    """Return a script that starts a command."""

    def quoted(word: str) -> str:
        return f'"{word}"' if "$" in word else shlex.quote(word)

    split = {"recompute-modules", "rampup-batch-size"}
    lines = [
        " ".join(
            [f"--{name}"]
            + [quoted(one) for one in (value.split() if name in split else [value])]
            * bool(value)
        )
        for name, value in options.items()
    ]
    start = "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py"
    return " \\\n    ".join([start, *lines]) + "\n"


def read(text: str) -> tuple[dict[str, tuple[str, ...]], dict[str, Any]]:
    """Return the options of a script, and the tables that it is read into."""
    source = LaunchSource(path=Path("job.sh"), text=text)
    tables = dict(read_megatron(source).tables)
    return dict(find_command(source).given.values), tables


def imported(text: str) -> Scenario:
    """Return the scenario of a script."""
    job = read_megatron(LaunchSource(path=Path("job.sh"), text=text))
    return imported_scenario(job, Path("job.toml"), origin="job.sh").scenario


def exported(text: str) -> tuple[Scenario, LaunchFiles]:
    """Return the scenario of a script, and what is written of it."""
    scenario = imported(text)
    return scenario, write_megatron(LaunchJob.of(scenario))


def rows(options: dict[str, tuple[str, ...]]) -> int | None:
    """Return the rows of the embedding, by Megatron-LM's rule; None if unknown.

    ``_vocab_size_with_padding`` and ``_NullTokenizer`` of
    ``megatron/training/tokenizer/tokenizer.py`` at ``core_v0.16.1``.
    """
    if options.get("tokenizer-type") != ("NullTokenizer",):
        return None
    size = int(options["vocab-size"][0]) + 1
    divisor = int(options.get("make-vocab-size-divisible-by", ("128",))[0])
    multiple = divisor * int(options.get("tensor-model-parallel-size", ("1",))[0])
    return math.ceil(size / multiple) * multiple


@given(options=SCRIPTS)
@settings(max_examples=25, phases=[Phase.generate])
def test_what_a_script_says_comes_back_or_is_named(options: dict[str, str]) -> None:
    if not options.get("make-vocab-size-divisible-by", "1").isdecimal():
        options["make-vocab-size-divisible-by"] = "64"
    text = script_of(options)
    first, tables = read(text)
    scenario, files = exported(text)
    second, again = read(str(files.files[SCRIPT]))
    named = {gap.setting for gap in files.gaps}
    copy = imported(str(files.files[SCRIPT]))
    assert copy.spec == scenario.spec
    assert copy.training == scenario.training
    assert LaunchJob.of(copy).plan == LaunchJob.of(scenario).plan
    assert again["software"] == tables["software"]
    held = (known.BY_NAME.keys() | known.COMPOSED) - known.TABLE.finer
    kept = tables.get("launch", {}).get("options", {})
    back = again["launch"]["options"]
    lost = {name for name in kept if back.get(name) != kept[name]}
    assert {f"--{name}" for name in lost - {"vocab-size"}} <= named
    lost -= {*known.TABLE.facts["retired"].split(), "vocab-size"}
    if "tokenizer-type" in first:
        assert lost == set()
    else:  # what made-up tokens have instead
        assert lost <= {"make-vocab-size-divisible-by", "tokenizer-model"}
    assert {name for name in first if name not in held} == set(kept)
    if "tokenizer-type" in first:
        assert rows(second) == rows(first)
    else:  # as many rows as were priced
        assert rows(second) == tables["model"]["vocab_size"] + (
            -tables["model"]["vocab_size"] % int(options["tensor-model-parallel-size"])
        )


@failures.over(
    ("options", "found"),
    [
        ({"cuda-graph-impl": "none", "cuda-graph-scope": "attn"}, {}),
        ({"cuda-graph-impl": "local"}, {"cuda_graphs": "layers"}),
        ({"external-cuda-graph": ""}, {"cuda_graphs": "layers"}),
        (
            {"cuda-graph-impl": "transformer_engine", "cuda-graph-modules": "mlp,attn"},
            {"cuda_graphs": "layers", "cuda_graph_modules": ["attn", "mlp"]},
        ),
        (
            {"enable-cuda-graph": "", "cuda-graph-scope": "full_iteration"},
            {"cuda_graphs": "full_iteration"},
        ),
        ({"cuda-graph-impl": "full_iteration"}, {"cuda_graphs": "full_iteration"}),
    ],
)
def test_graphs_are_what_any_release_calls_them(options, found) -> None:
    """Core 0.14 to 0.19: docs/user-guide/features/cuda_graph.md, Migration Guide."""
    _, tables = read(script_of(SIZES | options))
    software = tables["software"]
    assert {name: software[name] for name in software if "graph" in name} == found


def test_graphs_of_layers_are_of_what_the_model_has() -> None:
    graphs = {"cuda_graphs": "layers"}
    files = write_megatron(LaunchJob.of(small_scenario({}, software=graphs)))
    values, tables = read(str(files.files[SCRIPT]))
    parts = ("attn", "moe_router", "moe_preprocess")
    assert values["cuda-graph-impl"] == ("transformer_engine",)
    assert values["cuda-graph-scope"] == parts
    assert tables["software"]["cuda_graph_modules"] == list(parts)
    assert not [gap for gap in files.gaps if "graphs" in gap.setting]
    # What runs again as a whole is in no graph: transformer_config.py (core_v0.16.1).
    again = small_scenario({"recompute": "full"}, software=graphs)
    files = write_megatron(LaunchJob.of(again))
    assert "cuda-graph" not in str(files.files[SCRIPT])
    assert "software.cuda_graphs" in {gap.setting for gap in files.gaps}


def test_a_vocabulary_is_trained_as_it_was_priced_or_is_named() -> None:
    """By Megatron-LM's own rule, for any tensor-parallel size."""
    for size in (1024, 50_257, 128_256, 250_881):
        for tp in (1, 2, 4):
            plan = {"tensor_model_parallel_size": tp}
            scenario = small_scenario(plan, model={"vocab_size": size})
            files = write_megatron(LaunchJob.of(scenario))
            values, tables = read(str(files.files[SCRIPT]))
            assert tables["model"]["vocab_size"] == size
            trained = rows(values)
            named = {gap.setting for gap in files.gaps}
            assert (trained == size) == ("vocab_size" not in named), (size, tp)
            assert trained is not None
            assert 0 <= trained - size < tp


def test_a_plan_that_asks_for_another_value_names_the_change() -> None:
    options = SIZES | EXPERTS | {"ckpt-format": "torch_dist", "lr": "1e-3"}
    options |= {"moe-token-dispatcher-type": "alltoall"}
    scenario, _ = exported(script_of(options))
    other = scenario.replace(
        {
            "plan.zero_stage": 3,
            "plan.expert_model_parallel_size": 4,
            "model.vocab_size": 1000,
            "software.moe_token_dispatcher_type": "flex",
        }
    )
    files = write_megatron(LaunchJob.of(other))
    values, _ = read(str(files.files[SCRIPT]))
    named = {gap.setting: gap.reason for gap in files.gaps}
    assert "is flex" in named["--moe-token-dispatcher-type"]
    assert "fsdp_dtensor" in named["--ckpt-format"]
    assert values["lr"] == ("1e-3",)
    assert values["ckpt-format"] == ("fsdp_dtensor",)
    assert values["moe-token-dispatcher-type"] == ("flex",)


def test_nothing_of_a_script_is_run_by_what_is_written(tmp_path: Path) -> None:
    """Words of a scenario that somebody sent stay words."""
    scenario, _ = exported(script_of(SIZES))
    text = scenario.text.decode() + (
        '\n[launch]\nformat = "megatron"\n\n[launch.options]\n'
        "lr = '$(touch marker)'\nsave = '`touch marker`; touch marker'\n"
        "load = '${X}\"; touch marker; \"'\n"
    )
    other = Scenario.from_toml(text, tmp_path / "job.toml")
    lines = str(write_megatron(LaunchJob.of(other)).files[SCRIPT]).splitlines()
    assert "    --lr '$(touch marker)'" in lines
    assert "    --save '`touch marker`; touch marker'" in lines
    assert '    --load "${X}"\'"; touch marker; "\'' in lines
