"""Curves made of measurements: what is told, what is inferred, what is refused."""

import numpy as np
import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from estimators.collectives.curves import read_curves
from estimators.collectives.transports import WIRE_FRACTIONS
from nestsim.features.calibration.curves import (
    OPERATIONS,
    MeasuredKey,
    curve_scores,
    curve_table,
    curves_toml,
    extended,
    knots,
    read_curve_points,
    rising,
    transport_of,
)
from nestsim.features.validation.columns import Row
from topologies.errors import InputError

HEAD = "system,op_name,nccl_dtype,num_gpus,message_size,latency_ms\n"
SIZES = [2**k for k in range(9, 30)]
LARGE_ROW = {
    "accelerator": "A100-SXM",
    "num_nodes": "1",
    "num_ranks": "8",
    "collective": "all_reduce",
    "message_bytes": str(2**33),
    "time_us": "60000",
}


def law(system, operation, ranks, size):
    """10 us and a ring at 300 GB/s, of an A100."""
    bandwidth = {"a100_sxm": 200e9, "h100_sxm": 350e9}[system]
    return 10e-6 + WIRE_FRACTIONS[operation](ranks) * size / bandwidth


def measured(*left_out):
    keys = [
        MeasuredKey(system, operation, ranks)
        for system in ("a100_sxm", "h100_sxm")
        for operation in OPERATIONS
        for ranks in (2, 4, 8)
    ]
    return {
        key: {size: law(*key, size) for size in SIZES}
        for key in keys
        if key not in left_out
    }


def test_rows_of_both_widths_are_bytes_and_repeats_their_median(tmp_path):
    file = tmp_path / "nccl.csv"
    lines = [
        "a100_sxm,alltoall,half,4,1024,0.02",
        "a100_sxm,alltoall,int8,4,2048,0.04",
        "a100_sxm,alltoall,int8,4,2048,0.03",
    ]
    file.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    (points,) = read_curve_points(file).values()
    assert points == {2048: pytest.approx(30e-6)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("system,op_name\n", "has no column nccl_dtype"),
        (HEAD + "a100_sxm,gather,half,2,512,1\n", "names no operation"),
        (HEAD + "a100_sxm,alltoall,fp4,2,512,1\n", "names no operation"),
    ],
)
def test_files_that_are_not_understood_are_refused(tmp_path, text, message):
    file = tmp_path / "nccl.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_curve_points(file)


def test_a_system_whose_ports_nobody_wrote_down_is_refused():
    assert transport_of("gb300") == "nvswitch-b200"
    with pytest.raises(InputError, match="datasheet"):
        transport_of("mi300x")


def test_what_was_measured_is_told_and_what_was_not_is_inferred():
    missing = MeasuredKey("h100_sxm", "all_gather", 4)
    table = curve_table(measured(missing))
    key = missing._replace(system="nvswitch-h100")
    assert key not in table.measured
    assert len(table.measured) == 23
    for (name, operation, ranks), (sizes, times) in table.curves.items():
        system = "a100_sxm" if name == "nvswitch-a100" else "h100_sxm"
        expected = [law(system, operation, ranks, int(size)) for size in sizes]
        within = 0.1 if (name, operation, ranks) == key else 1e-9
        assert times == pytest.approx(np.array(expected), rel=within)


def test_the_file_reads_back_and_says_what_is_inferred():
    missing = MeasuredKey("a100_sxm", "all_gather", 8)
    text = curves_toml(measured(missing))
    assert 'inferred = "all_gather of 8"' in text
    assert 'inferred = "none"' in text
    curves = read_curves(tomli.loads(text)["nvswitch-h100"])
    for size in (512, 3e5, 2.0**27):
        told = curves.time("all_reduce", 4, size, 450e9)
        assert told == pytest.approx(law("h100_sxm", "all_reduce", 4, size), rel=0.06)


def test_large_messages_of_other_publications_are_added():
    added = extended(measured(), [Row(row_id="1", source="x", values=LARGE_ROW)])
    (new,) = set(added) - set(measured())
    assert new == ("nvswitch-a100", "all_reduce", 8)
    assert added[new] == {2**33: pytest.approx(0.06)}


def test_scores_hold_out_points_and_curves():
    scores = {score.name: score for score in curve_scores(measured())}
    fit, points = scores["all in the fit"], scores["a quarter of the points held out"]
    assert fit.error <= points.error <= 0.05
    assert fit.error <= 0.02


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30))
def test_rising_rows_are_the_nearest(values):
    row = np.array(values)
    found = rising(row)
    assert (np.diff(found) >= 0).all()
    assert found.sum() == pytest.approx(row.sum(), abs=1e-9)
    # The mean of any constant row, which rises too, is no nearer.
    assert ((found - row) ** 2).sum() <= ((row - row.mean()) ** 2).sum() + 1e-9


@given(st.lists(st.floats(0, 1), min_size=3, max_size=25))
def test_knots_tell_all_points_within_the_tolerance(steps):
    sizes = 2 ** np.arange(9, 9 + len(steps))
    times = np.exp(np.cumsum(steps)) * 1e-6
    chosen = knots(sizes, times)
    told = np.interp(np.log(sizes), np.log(sizes[chosen]), np.log(times[chosen]))
    assert np.abs(told - np.log(times)).max() <= 0.02 + 1e-12
