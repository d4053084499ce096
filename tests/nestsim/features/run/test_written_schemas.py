"""What is written is what the JSON Schemas say, and nothing beside it."""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

import nestsim
from nestsim.cli import main
from nestsim.cli.catalog import schema_of
from nestsim.document.dumps import FORMAT, dump_json
from nestsim.features.run.record import result_json, written_plan
from tests import failures
from tests.nestsim.features.compare.small import write
from tests.nestsim.features.run.examples import (
    FOUR_STAGES,
    INTERLEAVED,
    make_job,
    nothing_fits,
    nothing_found_yet,
    plans_of,
)

NAMES = ("result", "plan", "manifest")
FACTS = {"scenario", "scenario_sha256", "software", "operator_times"}
"""What the manifest of a run says beside its record."""


def problems(name: str, data: object, *, also: set[str] = frozenset()) -> list[str]:  # type: ignore[assignment]
    """Return what a schema has against JSON that has no other keys than it names."""
    schema = schema_of(name)
    schema["properties"] |= dict.fromkeys(also, True)
    for record in (schema, *schema.get("$defs", {}).values()):
        record["additionalProperties"] = False
    validator = Draft202012Validator(schema)
    return [f"{e.json_path}: {e.message[:200]}" for e in validator.iter_errors(data)]


@failures.over("name", NAMES)
def test_each_is_a_schema_that_describes_its_keys(name: str) -> None:
    schema = schema_of(name)
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:nestsim:{name}"
    assert all(key["description"] for key in schema["properties"].values())


def test_folders_of_results_are_as_the_schemas_say(tmp_path: Path, capsys: Any) -> None:
    scenario = write(tmp_path)
    with scenario.open("a", encoding="utf-8") as file:
        file.write('\n[assert]\nmfu = ">= 0.01"\n')
    folder = tmp_path / "run"
    options = ("--no-figures", "-q", "--json", "--output")
    assert main(["run", str(scenario), *options, str(folder)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert problems("result", printed) == []
    assert printed["format"] == FORMAT
    assert printed["assertions"][0]["holds"] is True
    for name in NAMES:
        data = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        assert problems(name, data, also=FACTS if name == "manifest" else set()) == []
    found = nestsim.simulate(scenario, plan=folder / "plan.json")
    assert problems("result", found.to_dict()) == []
    assert "candidates" not in found.to_dict()


@failures.over(
    "job",
    [
        make_job(*FOUR_STAGES),
        make_job(*INTERLEAVED),
        nothing_fits(),
        nothing_found_yet(),
    ],
)
def test_results_of_any_kind_are_as_the_schema_says(job: Any) -> None:
    assert problems("result", json.loads(dump_json(result_json(job)))) == []


def test_what_few_plans_have_is_known_to_the_schema(tmp_path: Path) -> None:
    """The records refuse keys that they do not know."""
    plan = make_job(*INTERLEAVED).candidates[0].priced.plan
    stage = {"recompute_num_layers": 2, "offload": {"optimizer": 0.5}}
    rare = {"recompute_modules": ["core_attn"], "microbatch_group_size_per_vp_stage": 4}
    data = {**plan.to_json(), **rare}
    data["stages"] = [{**each, **stage} for each in data["stages"]]
    assert problems("plan", data) == []
    assert problems("plan", written_plan(plan)) == []
    assert written_plan(plan) == plan.to_json()


def test_wrong_json_is_refused() -> None:
    data = result_json(make_job(*FOUR_STAGES))
    assert problems("result", {**data, "confirmed": "yes"}) != []
    assert problems("result", {**data, "new": 1}) != []
    del data["verdict"]
    assert problems("result", data) != []


def test_plans_that_the_planner_tests_make_are_as_the_schema_says() -> None:
    for candidate in plans_of(make_job(*FOUR_STAGES)).candidates:
        assert problems("plan", written_plan(candidate.priced.plan)) == []
