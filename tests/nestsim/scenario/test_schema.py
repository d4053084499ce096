"""The JSON Schema accepts what the loader accepts, and refuses what it refuses."""

import json
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import tomli
from jsonschema import Draft202012Validator

from nestsim.scenario.model import ModelSetting
from nestsim.scenario.schema import scenario_schema
from tests import failures
from topologies.accelerators import accelerator_names

SCENARIOS = Path(__file__).parents[3] / "scenarios"
SHIPPED = sorted(
    path for path in SCENARIOS.glob("*.toml") if not path.name.endswith("_links.toml")
)
SCHEMA = scenario_schema()


def read(name: str) -> dict[str, Any]:
    return tomli.loads((SCENARIOS / f"{name}.toml").read_text(encoding="utf-8"))


def accepts(document: object) -> bool:
    return bool(Draft202012Validator(SCHEMA).is_valid(document))


def tables() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "scenario", SCHEMA
    yield from SCHEMA["$defs"].items()


def settings() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{table}.{name}", setting)
        for table, schema in tables()
        for name, setting in schema["properties"].items()
    ]


def test_it_is_a_schema_of_draft_2020_12() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    assert SCHEMA["title"] == "nestsim scenario"
    assert SCHEMA["$id"] == "urn:nestsim:scenario"


@failures.over("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_scenario_is_valid(path: Path) -> None:
    Draft202012Validator(SCHEMA).validate(tomli.loads(path.read_text(encoding="utf-8")))


SEVERAL = sorted((SCENARIOS / "jobs").glob("*.toml"))


@pytest.mark.parametrize("path", SEVERAL, ids=lambda path: path.stem)
def test_several_jobs_may_have_all_models_for_themselves(path: Path) -> None:
    document = tomli.loads(path.read_text(encoding="utf-8"))
    assert accepts(document)
    del document["model"], document["training"]
    assert accepts(document)
    del document["jobs"]
    assert not accepts(document)


def test_groups_may_stand_for_the_accelerator() -> None:
    path = SCENARIOS / "mixed" / "llama2_7b_32_a100_h100.toml"
    document = tomli.loads(path.read_text(encoding="utf-8"))
    document["cluster"].pop("accelerator", None)
    assert accepts(document)
    del document["cluster"]["groups"]
    assert not accepts(document)


WRONG: dict[str, tuple[str, list[str | int], object]] = {
    "unknown table": ("llama2_7b_64_h100", ["serach"], {}),
    "unknown key": ("llama2_7b_64_h100", ["training", "batch_size"], 5),
    "unknown model": ("llama2_7b_64_h100", ["model", "name"], "llama-7b"),
    "two models": ("llama2_7b_64_h100", ["model", "hidden_size"], 4096),
    "unknown accelerator": ("llama2_7b_64_h100", ["cluster", "accelerator"], "h100"),
    "unknown kind": ("llama2_7b_64_h100", ["cluster", "network", "kind"], "leafy"),
    "settings of another kind": (
        *("llama2_7b_64_h100", ["cluster", "network", "kind"], "rail"),
    ),
    "bare number": (
        *("llama2_7b_64_h100", ["cluster", "network", "nic_bandwidth"], 50),
    ),
    "number in quotes": (
        *("llama2_7b_64_h100", ["cluster", "network", "nic_bandwidth"], "50"),
    ),
    "negative quantity": (
        *("llama2_7b_64_h100", ["cluster", "network", "nic_latency"], "-2 us"),
    ),
    "bare number in a level": (
        "gpt3_175b_512_tpuv4",
        ["cluster", "network", "levels", 1, "bandwidth"],
        100,
    ),
    "unknown number format": (
        "gpt3_175b_512_tpuv4",
        ["cluster", "accelerator", "peak_flops", "bf61"],
        "1 TFLOP/s",
    ),
    "text for a number": ("llama2_7b_64_h100", ["training", "global_batch_size"], "5"),
    "true for a number": (
        *("llama2_7b_64_h100", ["training", "global_batch_size"], True),
    ),
    "zero": ("llama2_7b_64_h100", ["training", "global_batch_size"], 0),
    "absurd": ("llama2_7b_64_h100", ["training", "global_batch_size"], 10**10),
    "number for a list": ("llama2_7b_64_h100", ["search", "micro_batch_sizes"], 4),
    "empty list": ("llama2_7b_64_h100", ["search", "micro_batch_sizes"], []),
    "value twice": ("llama2_7b_64_h100", ["search", "micro_batch_sizes"], [1, 1]),
    "unknown choice": ("llama2_7b_64_h100", ["search", "recompute"], ["ful"]),
    "unplanned schedule": (
        "llama2_7b_64_h100",
        ["search", "schedules"],
        ["combined-1f1b"],
    ),
    "four dimensions": (
        "llama3_70b_256_tpu_torus",
        ["cluster", "network", "dimensions"],
        [2, 2, 2, 2],
    ),
    "tolerance": ("llama2_7b_64_h100", ["simulation", "tolerance"], 1.0),
    "link that is sped up": (
        "llama2_7b_64_h100_degraded",
        ["cluster", "degraded", "slow_links", 0, "factor"],
        0.5,
    ),
    "device below 0": (
        "llama2_7b_64_h100_degraded",
        ["cluster", "degraded", "slow_devices", 0, "device"],
        -1,
    ),
    "link removed twice": (
        "llama2_7b_64_h100_degraded",
        ["cluster", "degraded", "removed_links"],
        ["leaf 0 <-> spine 1", "leaf 0 <-> spine 1"],
    ),
}


@failures.over("case", WRONG.values(), ids=WRONG.keys())
def test_a_typical_mistake_is_one_error_where_it_stands(
    case: tuple[str, list[str | int], object],
) -> None:
    name, path, value = case
    document = read(name)
    inner: Any = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    errors = list(Draft202012Validator(SCHEMA).iter_errors(document))
    # What must not be there is an error of the table, as what must be there.
    places = {tuple(error.absolute_path) for error in errors}
    assert len(places) == 1, errors
    (place,) = places
    assert list(place[: len(path)]) == path[: len(place)]
    assert len(place) >= len(path) - 1


def test_no_table_may_have_one_of_several_forms_by_trial() -> None:
    """Editors would say of each form what is wrong with it."""
    text = json.dumps(SCHEMA)
    assert '"oneOf"' not in text
    assert '"discriminator"' not in text
    choices = re.findall(r'"anyOf": \[(.{12})', text)
    assert set(choices) == {'{"required":'}


def test_every_form_of_a_model_is_told_from_the_others() -> None:
    """As the loader does it, in its order."""
    chain, names = SCHEMA["properties"]["model"], []
    while "if" in chain:
        names.append(chain["then"]["$ref"].rpartition("/")[2])
        chain = chain["else"]
    names.append(chain["$ref"].rpartition("/")[2])
    forms = get_args(get_args(ModelSetting)[0])
    assert sorted(names) == sorted(get_args(form)[0].__name__ for form in forms)


def files_with_a_schema() -> Iterator[tuple[Path, str]]:
    for path in sorted(SCENARIOS.rglob("*.toml")):
        text = path.read_text(encoding="utf-8")
        if {"model", "jobs"} & tomli.loads(text).keys():
            yield path, text.split("\n")[0]


def test_every_shipped_scenario_names_the_schema_that_lies_beside_them() -> None:
    kept = SCENARIOS / "scenario.schema.json"
    remade = "nestsim schema > scenarios/scenario.schema.json"
    assert json.loads(kept.read_text(encoding="utf-8")) == SCHEMA, remade
    lines = list(files_with_a_schema())
    assert len(lines) > 100
    for path, line in lines:
        depth = len(path.relative_to(SCENARIOS).parts) - 1
        assert line == f"#:schema {'../' * depth}{kept.name}", path


def test_taplo_accepts_every_shipped_scenario_and_refuses_a_wrong_one(
    tmp_path: Path,
) -> None:
    taplo = Path(sysconfig.get_path("scripts")) / "taplo"
    if not taplo.exists():
        pytest.skip("taplo, of the group dev, is not installed")
    files = [str(path) for path, _ in files_with_a_schema()]
    done = subprocess.run([taplo, "check", *files], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    wrong = tmp_path / "wrong.toml"
    text = (SCENARIOS / "llama2_7b_64_h100.toml").read_text(encoding="utf-8")
    schema = f"#:schema {(SCENARIOS / 'scenario.schema.json').as_uri()}\n"
    wrong.write_text(
        schema + text.partition("\n")[2].replace('"400 Gbit/s"', "50"), encoding="utf-8"
    )
    done = subprocess.run([taplo, "check", wrong], check=False, capture_output=True)
    assert done.returncode != 0
    assert done.stderr.decode().count("error: ") == 1
    assert '50 is not of type "string"' in done.stderr.decode()


@failures.over(
    "path",
    [
        ["name"],
        ["model"],
        ["training"],
        ["cluster"],
        ["training", "global_batch_size"],
        ["cluster", "accelerator"],
        ["cluster", "network", "kind"],
        ["cluster", "network", "nic_bandwidth"],
    ],
    ids=".".join,
)
def test_what_is_required_must_be_there(path: list[str]) -> None:
    document = read("llama2_7b_64_h100")
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    assert not accepts(document)


def test_every_table_says_what_it_is_and_takes_nothing_unknown() -> None:
    for name, schema in tables():
        assert schema["description"], name
        assert schema["additionalProperties"] is False, name


def test_every_setting_is_described_on_one_line() -> None:
    def words(setting: dict[str, Any]) -> str:
        if "description" not in setting:  # pydantic leaves out what the table says
            table = setting["$ref"].removeprefix("#/$defs/")
            setting = SCHEMA["$defs"][table]
        return str(setting["description"])

    texts = {name: words(setting) for name, setting in settings()}
    assert len(texts) > 400
    assert [k for k, text in texts.items() if text[-1] != "." or "\n" in text] == []


def test_defaults_and_examples_are_valid_themselves() -> None:
    wrong = []
    for name, setting in settings():
        validator = Draft202012Validator({"$defs": SCHEMA["$defs"], **setting})
        shown = [setting[key] for key in ("default",) if key in setting]
        shown += setting.get("examples", [])
        wrong += [(name, value) for value in shown if not validator.is_valid(value)]
    assert wrong == []


def test_editors_can_complete_names_from_the_library_and_the_catalogue() -> None:
    accelerator = SCHEMA["$defs"]["ClusterTable"]["properties"]["accelerator"]
    assert accelerator["if"] == {"type": "string"}
    assert accelerator["then"]["enum"] == list(accelerator_names())
    assert "llama2-7b" in SCHEMA["$defs"]["LibraryModel"]["properties"]["name"]["enum"]
