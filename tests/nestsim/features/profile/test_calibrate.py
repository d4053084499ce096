"""Own runs: altered constants are found again, few rows move little, files are ours."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from estimators.constants import load_constants
from estimators.user_files import read_user_constants
from nestsim.cli import main
from nestsim.features.calibration.parameters import load_fit_spec
from nestsim.features.profile.constants import (
    FITTED,
    NARROWER,
    calibrate_runs,
    constant_name,
    run_parameters,
)
from nestsim.features.profile.document import NOT_TOLD
from nestsim.features.validation.case import read_case
from nestsim.features.validation.columns import Measurements, read_measurements
from nestsim.features.validation.predict import Predictor
from tests import failures
from tests.nestsim.features.validation.validation_rows import (
    GPT,
    MEMORY,
    gpt,
    write_csv,
)
from topologies.errors import InputError

MATMUL = "accelerator.a100.matmul"
GAP = "software.megatron-lm.layer_gap"
FABRIC = "links.fabric.efficiency"
STEP = "software.megatron-lm.iteration_time"
WRONG_INPUT = 2

NODE, NODES = {"num_devices": "8", "dp": "2"}, {}

SIZES = [
    *((512, 1, NODE), (512, 2, NODE), (1024, 1, NODE), (1024, 2, NODE)),
    *((4096, 2, NODES), (4096, 4, NODES), (4096, 8, NODES)),
    *((8192, 2, NODES), (8192, 4, NODES), (8192, 8, NODES)),
]
"""Hidden size, micro-batch and cluster of runs: on one node gaps between layers take a
quarter of the time of small layers; products most of that of large ones."""


def runs(truth, sizes=SIZES):
    """Return rows that took what the predictor says under a truth."""
    predictor = Predictor(load_constants().replaced(truth))
    rows = []
    for hidden, batch, cluster in sizes:
        cells = {
            "row_id": f"{hidden} x {batch} x {cluster.get('num_devices', 16)}",
            "source_key": f"{hidden}",
            "hidden": str(hidden),
            "ffn": str(4 * hidden),
            "micro_batch": str(batch),
            **cluster,
        }
        time = predictor.predict(read_case(gpt(**cells))).iteration_time
        rows.append(gpt(**cells, iter_time_s=repr(time)))
    return Measurements(name="runs.csv", kind="throughput", rows=tuple(rows))


@pytest.fixture(scope="module")
def shipped():
    known = load_constants().values
    return {MATMUL: known[MATMUL], GAP: known["software.default.layer_gap"]}


@pytest.fixture(scope="module")
def truth(shipped):
    return {MATMUL: 0.85 * shipped[MATMUL], GAP: 2.5 * shipped[GAP]}


@pytest.fixture(scope="module")
def found(truth):
    return calibrate_runs(runs(truth))


def test_altered_constants_are_found_within_their_uncertainty(found, truth):
    by_name = {one.name: one for one in found.constants}
    for name, value in truth.items():
        one = by_name[name]
        assert one.is_told
        assert abs(math.log(one.value / value)) < 2.0 * one.deviation
        # Half of the way at least.
        assert abs(math.log(one.value / value)) < 0.5 * abs(
            math.log(one.shipped / value)
        )


def test_errors_fall_also_of_rows_left_out(found):
    assert found.before.mape > 0.1
    assert found.after.mape < 0.03
    assert found.left_out.mape < 0.5 * found.before.mape
    assert found.after.rows == found.left_out.rows == len(SIZES)


def test_what_the_rows_do_not_tell_stays_as_shipped_and_is_said_to(found):
    (step,) = [one for one in found.constants if one.name == STEP]
    assert step.shipped == load_constants().values["software.default.iteration_time"]
    assert not step.is_told
    assert step.value == pytest.approx(step.shipped, rel=0.1)


def test_constants_that_no_row_depends_on_are_left_out(found):
    """The runs have plain attention, and no products in 8 bits."""
    names = {one.name.rsplit(".", 1)[1] for one in found.constants}
    assert names == {
        "matmul",
        "layer_gap",
        "iteration_time",
        "iteration_time_many_nodes",
        "efficiency",
    }


def test_a_fabric_that_reaches_less_is_found():
    """Gradients of large layers over one slow adapter of each node."""
    slow = {"inter_node_net": "50 Gb/s per node"}
    truth = {FABRIC: 0.5}
    sizes = [(hidden, 2, slow) for hidden in (2048, 3072, 4096, 6144)]
    found = calibrate_runs(runs(truth, sizes))
    (fabric,) = [one for one in found.constants if one.name == FABRIC]
    assert fabric.shipped == 0.95
    assert fabric.is_told
    assert abs(math.log(fabric.value / 0.5)) < 2.0 * fabric.deviation
    assert found.after.mape < 0.2 * found.before.mape


def test_links_of_two_kinds_are_not_fitted_together():
    """NVLink of A100 and of H100 reach different parts of it."""
    rows = [gpt(), gpt(accelerator="H100-80GB-SXM")]
    cases = [type("Row", (), {"case": read_case(row)}) for row in rows]
    names = {
        one.name for one in run_parameters(cases, load_constants(), load_fit_spec())
    }
    assert "links.node.efficiency" not in names
    assert FABRIC in names


def test_runs_as_predicted_change_nothing(shipped):
    found = calibrate_runs(runs({}, SIZES[2:4]))
    for one in found.constants:
        assert one.value == pytest.approx(one.shipped, rel=1e-3)
    assert found.left_out is None


def test_one_run_moves_a_constant_less_than_many(truth, found):
    """The prior holds against a single row, the more so as others share the blame."""
    alone = calibrate_runs(runs(truth, SIZES[-1:]))
    moved, all_moved = (
        abs(math.log(one.value / one.shipped))
        for result in (alone, found)
        for one in result.constants
        if one.name == MATMUL
    )
    assert 0 < moved < all_moved


def test_priors_are_the_shipped_values_narrower_than_before_any_fit():
    spec, constants = load_fit_spec(), load_constants()
    (row,) = runs({}, SIZES[:1]).rows
    observation = type("Row", (), {"case": read_case(row)})
    by_name = {one.name: one for one in run_parameters([observation], constants, spec)}
    (matmul,) = [one for one in spec.parameters if one.name == MATMUL]
    assert by_name[MATMUL].prior == constants.values[MATMUL]
    assert by_name[MATMUL].sigma == NARROWER * matmul.sigma
    for one in by_name.values():
        assert one.lower <= one.prior <= one.upper


@failures.over(
    ("group", "member", "constant", "name"),
    [
        ("accelerator", "a100-80gb", "matmul", "accelerator.a100.matmul"),
        ("accelerator", "b200", "fused_attention", "accelerator.b200.fused_attention"),
        ("accelerator", "my-own", "matmul", "accelerator.my-own.matmul"),
        ("software", "ddp", "layer_gap", "software.ddp.layer_gap"),
    ],
)
def test_a_constant_is_named_so_that_others_keep_theirs(group, member, constant, name):
    constants = load_constants()
    assert constant_name(constants, group, member, "", constant) == name
    changed = constants.replaced({name: 0.123})
    assert getattr(getattr(changed, group)(member), constant) == 0.123
    other = {"accelerator": "v100", "software": "maxtext"}[group]
    before = getattr(getattr(constants, group)(other), constant)
    assert getattr(getattr(changed, group)(other), constant) == before


def test_a_framework_of_other_kernels_has_a_constant_of_its_own():
    constants = load_constants()
    of = ("accelerator", "h100-sxm")
    own = "accelerator.h100-with-fsdp"
    assert constant_name(constants, *of, "fsdp", "matmul") == f"{own}.matmul"
    assert constant_name(constants, *of, "nemo", "matmul") == "accelerator.h100.matmul"
    name = constant_name(constants, *of, "fsdp", "flash_attention")
    assert name == "accelerator.h100.flash_attention"


def test_every_fitted_constant_is_one_that_there_is():
    constants = load_constants()
    for group, names in FITTED.items():
        for name in names:
            assert f"{group}.default.{name}" in constants.values


def csv(folder: Path, *, extra: str = "") -> Path:
    rows = [dict(row.values) for row in runs({MATMUL: 0.6}, SIZES[2:4]).rows]
    if extra:
        rows.append({**rows[0], "row_id": "strange", "accelerator": extra})
    return write_csv(folder / "runs.csv", *rows)


def test_the_command_prints_and_writes_a_file_that_is_read_back(tmp_path, capsys):
    file = csv(tmp_path, extra="abacus")
    target = tmp_path / "mine.toml"
    assert main(["calibrate", str(file), "-o", str(target)]) == 0
    captured = capsys.readouterr()
    assert "2 rows fitted to, 1 refused" in captured.out
    assert "unknown-accelerator (1): row strange" in captured.out
    assert NOT_TOLD in captured.out
    assert f"The constants are in {target}" in captured.err
    own = read_user_constants(target)
    assert own.source == "2 rows of runs.csv"
    assert 0.6 < dict(own.values)[MATMUL] < load_constants().values[MATMUL]
    assert main(["calibrate", str(file), "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    (matmul,) = [one for one in found["constants"] if one["name"] == MATMUL]
    assert matmul["value"] == pytest.approx(dict(own.values)[MATMUL], rel=1e-3)
    assert found["errors"]["left_out"] is None
    assert found["errors"]["fitted"]["mape"] < found["errors"]["shipped"]["mape"]


def test_a_file_of_other_origin_is_kept(tmp_path, capsys):
    target = tmp_path / "notes.txt"
    target.write_text("mine")
    file = csv(tmp_path)
    assert main(["calibrate", str(file), "-o", str(target)]) == WRONG_INPUT
    assert "--output" in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert main(["calibrate", str(file), "-o", str(target), "--force", "-q"]) == 0
    assert read_user_constants(target).values


def test_files_that_say_nothing_of_steps_are_refused(tmp_path, capsys):
    file = write_csv(tmp_path / "memory.csv", MEMORY)
    assert main(["calibrate", str(file)]) == WRONG_INPUT
    assert "says nothing of the time of a step" in capsys.readouterr().err
    none = write_csv(tmp_path / "none.csv", {**GPT, "accelerator": "abacus"})
    with pytest.raises(InputError, match="has no row that can be predicted"):
        calibrate_runs(read_measurements(none))


def test_more_rows_make_constants_firmer(truth):
    rows = runs(truth).rows
    apart = [
        replace(row, source=f"cluster {number}") for number, row in enumerate(rows)
    ]
    together, split = (
        calibrate_runs(
            Measurements(name="runs.csv", kind="throughput", rows=tuple(one))
        )
        for one in (rows, apart)
    )
    for one, other in zip(together.constants, split.constants, strict=True):
        assert one.name == other.name
        assert other.deviation <= one.deviation
