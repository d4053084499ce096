"""Scenario files: what is read arrives in base units, and nothing ever crashes."""

import json
import tempfile
from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import tomli
from hypothesis import example, given, settings
from hypothesis import strategies as st

from estimators.models.library import load_model
from estimators.models.spec import TransformerSpec
from nestsim.scenario import Scenario, base, load_scenario
from nestsim.scenario.base import Table
from nestsim.scenario.hardware.network import (
    CustomTable,
    FatTreeTable,
    LevelTable,
    RailTable,
    SpineLeafTable,
)
from nestsim.scenario.model import SpelledOutModel
from planner.work import DEFAULT_WORK
from tests import failures
from topologies.errors import InputError
from topologies.link_file import read_link_file
from topologies.specs import (
    CustomSpec,
    FatTreeSpec,
    LevelSpec,
    RailSpec,
    SpineLeafSpec,
    TorusSpec,
)

SCENARIOS = Path(__file__).parents[3] / "scenarios"
SHIPPED = sorted(
    path for path in SCENARIOS.glob("*.toml") if not path.name.endswith("_links.toml")
)

MINIMAL = """
name = "smallest"
[model]
name = "gpt3-125m"
[software]
preset = "ideal"
[training]
global_batch_size = 16
[cluster]
accelerator = "a100-40gb"
[cluster.network]
kind = "torus"
dimensions = [8]
bandwidth = "400 Gbit/s"
latency = "2 us"
"""


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def load_text(text: str, **replaced: str) -> Scenario:
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "scenario.toml"
        path.write_text(text, encoding="utf-8")
        return load_scenario(path)

    return load_text


def test_the_scenarios_that_the_project_promises_are_there() -> None:
    names = {path.stem for path in SHIPPED}
    assert names >= {
        "llama2_7b_64_h100",
        "gpt3_175b_512_tpuv4",
        "mixtral_8x7b_128_h100",
        "llama3_70b_256_tpu_torus",
        "gpt3_1.3b_8_a100",
        "custom_network",
    }


@failures.over("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_scenario_loads_and_keeps_its_text(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.path == path
    assert scenario.text == path.read_bytes()
    assert scenario.name


def test_the_main_scenario_is_64_h100_with_leaves_oversubscribed_2_to_1() -> None:
    scenario = load_scenario(SCENARIOS / "llama2_7b_64_h100.toml")
    spec = scenario.network_spec
    assert isinstance(spec, SpineLeafSpec)
    assert spec.num_devices == 64
    assert spec.nic_bandwidth == 50e9
    assert spec.node_bandwidth == 450e9
    assert spec.oversubscription == 2.0
    assert (spec.nic, spec.num_spines, spec.num_leaves) == ("device", 2, 4)
    assert scenario.accelerator.name == "h100-sxm"
    assert scenario.spec == load_model("llama2-7b", sequence_length=4096)
    assert scenario.training.global_batch_size == 512


def test_the_papers_fat_tree_has_512_devices_and_its_three_bandwidths() -> None:
    scenario = load_scenario(SCENARIOS / "gpt3_175b_512_tpuv4.toml")
    spec = scenario.network_spec
    assert isinstance(spec, FatTreeSpec)
    assert [level.fan_out for level in spec.levels] == [8, 4, 16]
    assert [level.bandwidth for level in spec.levels] == [900e9, 100e9, 400e9]
    assert spec.nic == "node"
    assert scenario.accelerator.memory_bytes == 64 * 2**30
    assert scenario.accelerator.peak_flops == {"bf16": 275e12}


def test_quantities_arrive_in_base_units(load: Any) -> None:
    spec = load(MINIMAL).network_spec
    assert spec == TorusSpec(
        dimensions=(8,), wrap=(True,), bandwidth=50e9, latency=2e-6
    )


@failures.over(
    ("written", "value"),
    [
        ("50 GB/s", 50e9),
        ("50GB/s", 50e9),
        ("400 Gbit/s", 50e9),
        ("400 Gbps", 50e9),
        ("5e1 GB / s", 50e9),
        (" 50.0 GB/s", 50e9),
        ("50 GiB/s", 50 * 2**30),
        (".5 TB/s", 0.5e12),
    ],
)
def test_one_bandwidth_may_be_written_in_many_ways(
    load: Any, written: str, value: float
) -> None:
    scenario = load(MINIMAL, **{"400 Gbit/s": written})
    assert scenario.network_spec.bandwidth == value


def test_what_is_left_out_has_the_documented_defaults(load: Any) -> None:
    scenario = load(MINIMAL)
    search = scenario.search
    assert search.micro_batch_sizes is None
    assert search.data_parallel_sizes is None
    assert search.sequence_parallel is None
    assert search.recompute == ("none", "selective", "full")
    assert search.context_parallel_sizes is None
    assert search.virtual_pipeline_model_parallel_sizes is None
    assert search.zero_stages == (0, 1, 2, 3)
    assert search.keep_best == 5
    assert (search.time_limit, search.memory_reserve) == (None, 0.0)
    assert search.work_limit == DEFAULT_WORK
    assert scenario.simulation.tolerance == 0.05
    assert scenario.training.precision == "bf16"


def test_every_setting_of_the_search_reaches_the_planner(load: Any) -> None:
    written = """
    [search]
    planner = "nest"
    micro_batch_sizes = [2, 1]
    tensor_model_parallel_sizes = [4]
    pipeline_model_parallel_sizes = [1, 2]
    data_parallel_sizes = [8]
    sequence_parallel = false
    recompute = ["full"]
    zero_stages = [3]
    schedules = ["1f1b"]
    keep_best = 2
    time_limit = "1.5 min"
    work_limit = 1_000_000
    [simulation]
    tolerance = 0.1
    trace_events = 0
    """
    memory = 'accelerator = "a100-40gb"'
    reserved = memory + '\nmemory_reserve = "1 GB"'
    scenario = load(MINIMAL + written, **{memory: reserved})
    search = scenario.search
    assert search.micro_batch_sizes == (2, 1)
    assert search.tensor_model_parallel_sizes == (4,)
    assert search.pipeline_model_parallel_sizes == (1, 2)
    assert search.data_parallel_sizes == (8,)
    assert search.sequence_parallel is False
    assert search.recompute == ("full",)
    assert search.zero_stages == (3,)
    assert (search.keep_best, search.time_limit) == (2, 90.0)
    assert search.work_limit == 1_000_000
    assert search.memory_reserve == 1e9
    assert (scenario.simulation.tolerance, scenario.simulation.trace_events) == (0.1, 0)


def test_a_library_model_can_be_cut_to_a_small_variant(load: Any) -> None:
    changed = (
        'name = "gpt3-125m"\nnum_layers = 2\nsequence_length = 64\nattention = "plain"'
    )
    spec = load(MINIMAL, **{'name = "gpt3-125m"': changed}).spec
    assert (spec.num_layers, spec.sequence_length) == (2, 64)
    assert spec.attention_implementation == "plain"
    assert spec.hidden_size == 768


def test_sequences_without_padding_are_as_long_as_their_mean(load: Any) -> None:
    model = 'name = "bert-large"\nsequence_length = 512\nmean_sequence_length = 288'
    spec = load(MINIMAL, **{'name = "gpt3-125m"': model}).spec
    assert (spec.sequence_length, spec.max_position_embeddings) == (288, 512)
    longer = model.replace("288", "513")
    with pytest.raises(InputError) as caught:
        load(MINIMAL, **{'name = "gpt3-125m"': longer})
    assert "model.mean_sequence_length" in caught.value.where
    assert "512" in caught.value.expected


def test_latent_attention_and_shared_experts_can_be_spelled_out(load: Any) -> None:
    spelled_out = """family = "mixtral"
    num_layers = 2
    hidden_size = 64
    num_attention_heads = 4
    ffn_hidden_size = 32
    vocab_size = 128
    sequence_length = 16
    kv_channels = 8
    num_moe_experts = 4
    moe_router_topk = 2
    moe_shared_expert_intermediate_size = 32
    kv_lora_rank = 24
    q_lora_rank = 40
    qk_pos_emb_head_dim = 4"""
    spec = load(MINIMAL, **{'name = "gpt3-125m"': spelled_out}).spec
    assert (spec.kv_lora_rank, spec.v_head_dim) == (24, 8)
    assert spec.moe_shared_expert_intermediate_size == 32


def test_a_spelled_out_llama_equals_the_librarys(load: Any) -> None:
    spelled_out = """family = "llama"
    num_layers = 32
    hidden_size = 4096
    ffn_hidden_size = 11008
    num_attention_heads = 32
    vocab_size = 32000
    sequence_length = 4096
    """
    spec = load(MINIMAL, **{'name = "gpt3-125m"': spelled_out}).spec
    assert spec == load_model("llama2-7b")


def test_a_spelled_out_gemma_equals_the_librarys(load: Any) -> None:
    spelled_out = """family = "llama"
    num_layers = 42
    hidden_size = 3584
    ffn_hidden_size = 14336
    num_attention_heads = 16
    num_query_groups = 8
    kv_channels = 256
    vocab_size = 256000
    sequence_length = 8192
    activation_func = "gelu"
    norm_placement = "sandwich"
    scale_embeddings = true
    tie_word_embeddings = true
    attn_logit_softcapping = 50.0
    final_logit_softcapping = 30.0
    window_size = 4096
    window_attn_skip_freq = 2
    """
    spec = load(MINIMAL, **{'name = "gpt3-125m"': spelled_out}).spec
    assert spec == load_model("gemma2-9b")


def test_blocks_without_windows_do_not_alternate(load: Any) -> None:
    spelled_out = """family = "llama"
    num_layers = 4
    hidden_size = 64
    num_attention_heads = 4
    vocab_size = 128
    sequence_length = 16
    window_attn_skip_freq = 2
    """
    with pytest.raises(InputError) as caught:
        load(MINIMAL, **{'name = "gpt3-125m"': spelled_out})
    assert caught.value.where.endswith("model.window_attn_skip_freq")


def test_a_spelled_out_bert_is_neither_causal_nor_without_token_types(
    load: Any,
) -> None:
    spelled_out = """family = "bert"
    num_layers = 24
    hidden_size = 1024
    num_attention_heads = 16
    vocab_size = 30522
    sequence_length = 512
    hidden_dropout = 0.1
    attention_dropout = 0.1
    """
    spec = load(MINIMAL, **{'name = "gpt3-125m"': spelled_out}).spec
    assert spec == load_model("bert-large")


def test_a_hugging_face_config_is_found_beside_the_scenario(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {
        "model_type": "llama",
        "hidden_act": "silu",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(SCENARIOS)
    spec = load(MINIMAL, **{'name = "gpt3-125m"': 'config = "config.json"'}).spec
    assert (spec.num_layers, spec.ffn_hidden_size) == (32, 11008)


def test_a_file_of_links_is_found_beside_the_scenario(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    scenario = load_scenario(SCENARIOS / "custom_network.toml")
    assert isinstance(scenario.network_spec, CustomSpec)
    assert read_link_file(scenario.network_spec.path).num_devices == 8


def test_a_mistake_in_the_file_of_links_names_both_files(tmp_path: Path) -> None:
    for name in ("custom_network.toml", "custom_network_links.toml"):
        text = (SCENARIOS / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace('"31.5 GB/s"', '"31.5 GB"'))
    with pytest.raises(InputError) as caught:
        load_scenario(tmp_path / "custom_network.toml")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'custom_network.toml'}: cluster.network")
    assert "custom_network_links.toml: links[0].bandwidth" in message


def test_a_byte_order_mark_of_utf8_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load_scenario(path).name == "smallest"


@failures.over(
    ("table", "record"),
    [
        (LevelTable, LevelSpec),
        (FatTreeTable, FatTreeSpec),
        (SpineLeafTable, SpineLeafSpec),
        (RailTable, RailSpec),
        (CustomTable, CustomSpec),
    ],
)
def test_networks_are_written_with_the_names_of_their_records(
    table: type[Table], record: Any
) -> None:
    # What transports say, and which levels are a node's, follows from their names.
    written = {name for name in table.model_fields if not name.endswith("transport")}
    # Links themselves are those of another program's file.
    kept = {field.name for field in fields(record)} - {"node_levels", "listed"}
    assert written - {"kind", "pods"} == kept


def test_architectures_are_spelled_out_with_the_names_of_their_record() -> None:
    known = {field.name for field in fields(TransformerSpec)}
    own = set(base.settings(SpelledOutModel)) - known
    others = {"hybrid_override_pattern", "window_attn_skip_freq", "moe_layer_freq"}
    others |= {"linear_attention_freq", "linear_attention", "dsa_indexer_layers"}
    others |= {"document_lengths", "moe_routing_file"}
    assert own == {"attention", "mean_sequence_length", *others}


# Whatever stands in a file: a scenario, or an InputError that names the file.

TEXT = (SCENARIOS / "gpt3_175b_512_tpuv4.toml").read_text(encoding="utf-8")
SNIPPETS = (
    *("[", "]", '"', "=", "\n", "{", "}", ",", ".", "#", "'''", "\\", "\x00", "\r"),
    *("nan", "inf", "-1", "0", "true", "1e400", "9" * 5000, "[[", "x = 1\n", "[a.b]\n"),
    *('"1 GB/s"', '"2 s"', "1979-05-27", "\u0000", "\ud800", "kind", "name", "é"),
)


def loads_or_explains(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.toml"
        path.write_bytes(content)
        message = ""
        try:
            load_scenario(path)
        except InputError as error:
            message = str(error)
    if message:
        assert message.startswith(f"{path}: ")
        assert "".join(message.split("\n")).isprintable()


@settings(max_examples=80)
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, len(TEXT)),
            st.integers(0, 12),
            st.sampled_from(SNIPPETS) | st.text(max_size=5) | st.just(""),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_slip_of_the_keyboard_is_explained(edits: list[Any]) -> None:
    text = TEXT
    for start, length, inserted in edits:
        text = text[:start] + inserted + text[start + length :]
    loads_or_explains(text.encode("utf-8", errors="surrogatepass"))


@settings(max_examples=30)
@given(st.binary(max_size=60))
def test_any_bytes_are_explained(content: bytes) -> None:
    loads_or_explains(content)


@failures.over(
    "content",
    [
        b"a = " + b"[" * 100_000,
        b"a = " + b"{b=" * 5_000,
        b".".join([b"a"] * 5_000) + b" = 1",
        b"a = 0x" + b"f" * 100_000,
        b"a = " + b"1" * 100_000,
        b"a = '" + b"x" * 10_000_000 + b"'",
    ],
    ids=["brackets", "braces", "dots", "hexadecimal", "decimal", "long"],
)
def test_files_made_to_break_a_parser_are_explained(content: bytes) -> None:
    loads_or_explains(content)


def toml(value: object) -> str:
    """Write a value as TOML on one line."""
    if isinstance(value, dict):
        pairs = (f"{toml(key)} = {toml(one)}" for key, one in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(one) for one in value) + "]"
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    return value.isoformat() if isinstance(value, date) else repr(value)


def paths(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where every value of a document is."""
    inner = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    return [path, *(deep for key, one in inner for deep in paths(one, (*path, key)))]


def documents() -> st.SearchStrategy[Any]:
    shipped = [tomli.loads(path.read_text(encoding="utf-8")) for path in SHIPPED]
    places = [
        (document, path) for document in shipped for path in paths(document) if path
    ]
    return st.sampled_from(places)


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=12)
VALUES = st.recursive(
    st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 2**70, 10**12, 10**30])
    | st.floats()
    | st.dates(min_value=date(1000, 1, 1))
    | WORDS
    | st.text("0123456789.eE+-* /GiBTsbytn", max_size=12)
    | st.sampled_from(["0 B", "1 GB/s", "5 Gb/s", "80 GiB", "1e9 s", "torus", "fp32"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=100)
@given(place=documents(), value=VALUES)
@example(place=(tomli.loads(MINIMAL), ("cluster", "network")), value={"kind": "rail"})
@example(place=(tomli.loads(MINIMAL), ("model",)), value={"config": "x" * 190})
@example(place=(tomli.loads(MINIMAL), ("model",)), value={"config": "é" * 190})
@example(place=(tomli.loads(MINIMAL), ("model",)), value={"config": "."})
def test_any_value_in_any_place_is_accepted_or_explained(
    place: tuple[Any, tuple[Any, ...]], value: object
) -> None:
    document, path = place
    changed = json.loads(json.dumps(document))
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    text = "\n".join(f"{json.dumps(key)} = {toml(one)}" for key, one in changed.items())
    tomli.loads(text)  # the test writes TOML, so that it reaches what it means to
    loads_or_explains(text.encode())


@failures.over(
    ("schedules", "sizes"),
    [
        ('["1f1b", "zb-h2"]', (1,)),
        ('["zb-v"]', (2,)),
        ('["1f1b", "dualpipe-v"]', (1, 2)),
        ('["1f1b", "interleaved-1f1b", "zb-v"]', None),
    ],
)
def test_schedules_say_how_many_chunks_there_are(
    load: Any, schedules: str, sizes: tuple[int, ...] | None
) -> None:
    search = load(MINIMAL + f"\n[search]\nschedules = {schedules}\n").search
    assert search.schedules == tuple(json.loads(schedules))
    assert search.virtual_pipeline_model_parallel_sizes == sizes


def test_schedules_that_split_the_backward_pass_are_searched_by_replays(
    load: Any,
) -> None:
    chosen = '\n[search]\nobjective = "planned"\nschedules = ["1f1b", "zb-h1"]\n'
    with pytest.raises(InputError, match="are searched by replays only") as caught:
        load(MINIMAL + chosen)
    assert str(caught.value.where).endswith("search.schedules")
