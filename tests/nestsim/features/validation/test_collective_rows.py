"""Rows about collectives: what they become, what is refused, how far off it is."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from estimators.collectives.transports import collective_time, transports
from nestsim.cli import main
from nestsim.document.sheet import draw_document
from nestsim.document.terminal import print_document
from nestsim.features.calibration.__main__ import main as refit
from nestsim.features.calibration.document import transports_document
from nestsim.features.calibration.transports import fit_transports
from nestsim.features.validation.collective_rows import (
    ARRIVAL_TIMES,
    HOST_TIMES,
    predicted_time,
    read_collective,
)
from nestsim.features.validation.columns import (
    Measurements,
    Row,
    RowRefusedError,
    read_measurements,
)
from nestsim.features.validation.document import validation_document
from nestsim.features.validation.record import predictions_csv, validation_json
from nestsim.features.validation.runner import validate
from tests import failures
from tests.nestsim.document.pictures import draw
from topologies.errors import InputError

PUBLISHED = Path(__file__).parents[5] / "shared/data/measurements/collectives.csv"
WRONG_INPUT = 2

BASE = {
    "row_id": "one",
    "source_key": "own",
    "accelerator": "A100-SXM",
    "num_nodes": "1",
    "num_ranks": "8",
    "link": "NVLink3/NVSwitch",
    "collective": "all_reduce",
    "message_bytes": "67108864",
    "time_us": "600",
    "busbw_GBps": "",
    "software": "nccl-tests",
    "notes": "",
}


def row(**cells):
    values = {**BASE, **{key: str(value) for key, value in cells.items()}}
    return Row(row_id=values["row_id"], source=values["source_key"], values=values)


def write(path, *rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(BASE))
        writer.writeheader()
        writer.writerows({**BASE, **one} for one in rows)
    return path


def test_a_row_inside_a_node_is_predicted_by_the_law_alone():
    case = read_collective(row())
    a100 = transports()["nvswitch-a100"]
    expected = collective_time(a100, "all_reduce", 8, 67108864.0, 300e9)
    assert predicted_time(case) == pytest.approx(expected)
    assert (case.measured, case.basis) == (pytest.approx(600e-6), "time_us")


def test_a_time_follows_from_the_bus_bandwidth_that_is_defined_by_it():
    case = read_collective(row(time_us="", busbw_GBps="200"))
    assert case.measured == pytest.approx(2 * 7 / 8 * 67108864 / 200e9)
    assert case.basis == "busbw_GBps"


def test_programs_in_torch_add_the_host():
    plain = predicted_time(read_collective(row()))
    torch = predicted_time(read_collective(row(software="torch 2.9 nccl 2.27")))
    assert torch - plain == pytest.approx(HOST_TIMES["torch"])


def test_a_kernel_that_reduces_waits_for_the_last_rank():
    profile = {"software": "Vidur collectives profiler", "num_ranks": 2}
    small = read_collective(row(**profile, message_bytes=2048))
    assert predicted_time(small) == ARRIVAL_TIMES["a100"]
    sent = read_collective(row(**profile, message_bytes=2048, collective="send_recv"))
    assert predicted_time(sent) < ARRIVAL_TIMES["a100"]


def test_a_ring_that_the_row_names_does_not_use_the_switch():
    cells = {"accelerator": "B200-SXM", "message_bytes": 2**33}
    free = predicted_time(read_collective(row(**cells)))
    ring = predicted_time(read_collective(row(**cells, notes="algo Ring")))
    assert ring > 1.1 * free


def test_bytes_and_bits_of_adapters_are_told_apart():
    cells = {"num_nodes": 2, "num_ranks": 16, "accelerator": "H100-SXM"}
    big = read_collective(row(**cells, link="EFA 8x50 GB/s per node"))
    small = read_collective(row(**cells, link="EFA 8x50 Gb/s per node"))
    assert big.across_bandwidth == pytest.approx(400e9)
    assert small.across_bandwidth == pytest.approx(50e9)
    assert big.across.name == "efa"


def test_faster_adapters_do_not_outrun_the_links_inside_a_node():
    cells = {"num_nodes": 2, "num_ranks": 16, "accelerator": "H100-SXM"}
    cells["message_bytes"] = 2**34
    times = [
        predicted_time(read_collective(row(**cells, link=f"IB 8x{rate} GB/s")))
        for rate in (5, 25, 500, 5000)
    ]
    assert times[0] > times[1] > times[2] == times[3]


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all"])
def test_faster_adapters_are_never_slower(collective):
    cells = {"num_nodes": 2, "num_ranks": 16, "accelerator": "H100-SXM"}
    cells |= {"collective": collective}
    for size in (2**10, 2**24, 2**34):
        times = [
            predicted_time(
                read_collective(
                    row(**cells, message_bytes=size, link=f"IB 1x{rate} GB/s")
                )
            )
            for rate in np.geomspace(100, 1000, 60).round(3).tolist()
        ]
        assert times == sorted(times, reverse=True)


def test_an_all_to_all_sends_only_what_is_for_other_nodes_through_adapters():
    cells = {"num_nodes": 2, "num_ranks": 16, "accelerator": "H100-SXM"}
    cells |= {
        "collective": "all_to_all",
        "message_bytes": 2**34,
        "link": "IB 8x25 GB/s",
    }
    case = read_collective(row(**cells))
    bytes_out = 8 / 16 * 2**34
    rate = 25e9 * transports()["default-fabric"].send_efficiency
    assert predicted_time(case) == pytest.approx(bytes_out / rate, rel=1e-3)


def test_a_rack_of_72_is_one_node():
    cells = {"accelerator": "GB200", "link": "NVLink5 and IB"}
    assert read_collective(row(**cells, num_nodes=16, num_ranks=64)).across is None
    two = read_collective(row(**cells, num_nodes=32, num_ranks=128))
    assert two.num_nodes == 2


@failures.over(
    ("link", "bandwidth"),
    [
        ("NVLink5, 4x400 Gb/s per node", 64 * 50e9),
        ("NVLink5, 800 Gb/s per GPU", 64 * 100e9),
        ("NVLink5 and IB", 64 * 50e9),
        ("IB 200 GB/s", 64 * 50e9),
        ("IB 3200 GB/s per rack", 64 * 50e9),
    ],
)
def test_a_rack_has_the_adapters_of_all_its_trays(link, bandwidth):
    cells = {"accelerator": "GB200", "num_nodes": 32, "num_ranks": 128, "link": link}
    case = read_collective(row(**cells, devices_per_node=4))
    assert case.across_bandwidth == pytest.approx(bandwidth)


def test_a_rack_that_is_a_node_has_what_is_said_of_the_node():
    cells = {"accelerator": "GB200", "num_nodes": 2, "num_ranks": 128}
    cells |= {"devices_per_node": 64}
    whole = read_collective(row(**cells, link="NVL72, IB 3200 GB/s per node"))
    trays = read_collective(row(**cells, link="NVL72, 4x400 Gb/s per tray"))
    assert whole.across_bandwidth == pytest.approx(3200e9)
    assert trays.across_bandwidth == pytest.approx(3200e9)


@failures.over(
    ("link", "name", "bandwidth"),
    [
        ("GPUDirect-TCPXO 8x200 Gb/s", "gpudirect-tcpxo", 200e9),
        ("A3 Mega", "gpudirect-tcpxo", 200e9),
        ("GPUDirect-TCPX 4x200 Gbps", "gpudirect-tcpx", 100e9),
        ("NVLink4 + TCPX", "gpudirect-tcpx", 100e9),
    ],
)
def test_transports_in_software_are_known_by_their_names(link, name, bandwidth):
    cells = {"accelerator": "H100-SXM", "num_nodes": 2, "num_ranks": 16, "link": link}
    case = read_collective(row(**cells))
    assert case.across.name == name
    assert case.across_bandwidth == pytest.approx(bandwidth)


def test_switches_that_add_up_are_known_by_their_name():
    cells = {"accelerator": "H100-SXM", "num_nodes": 4, "num_ranks": 32}
    cells |= {"message_bytes": 2**34}
    sharp = read_collective(row(**cells, link="IB 8x400 Gb/s, SHARP"))
    plain = read_collective(row(**cells, link="IB 8x400 Gb/s"))
    nvls = read_collective(row(**cells, link="IB 8x400 Gb/s", notes="NVLink SHARP"))
    assert nvls == plain
    assert predicted_time(sharp) < predicted_time(plain)


def test_bridges_join_pairs_and_pcie_the_rest():
    cells = {"accelerator": "A100 (pairwise NVLink, PCIe host)", "link": "intra-node"}
    pair = read_collective(row(**cells, num_ranks=2))
    four = read_collective(row(**cells, num_ranks=4))
    assert (pair.inside.name, four.inside.name) == ("nvlink-pair", "pcie-peer")
    assert pair.inside_bandwidth > 9 * four.inside_bandwidth


@failures.over(
    ("cells", "code"),
    [
        ({"time_us": "", "bw_efficiency_ratio": "0.9"}, "undocumented-ratio"),
        ({"notes": "treat as a badly configured cluster"}, "broken-cluster"),
        ({"time_us": "", "notes": "bandwidth, not NCCL busbw"}, "other-bandwidth"),
        ({"time_us": "", "busbw_GBps": "0.04"}, "imprecise-measurement"),
        ({"time_us": "", "busbw_GBps": "0.0"}, "missing-measurement"),
        ({"time_us": ""}, "missing-measurement"),
        ({"message_bytes": ""}, "missing-column"),
        ({"num_ranks": ""}, "missing-column"),
        ({"num_ranks": 9, "num_nodes": 2}, "contradiction"),
        ({"collective": "p2p unidirectional"}, "other-collective"),
        ({"accelerator": "unspecified"}, "unknown-network"),
    ],
)
def test_what_cannot_be_predicted_is_refused_with_its_reason(cells, code):
    with pytest.raises(RowRefusedError) as caught:
        read_collective(row(**cells))
    assert caught.value.code == code


def test_the_headline_weighs_curves_alike_whatever_their_points():
    exact = predicted_time(read_collective(row())) * 1e6
    rows = [row(row_id=f"a{i}", time_us=exact / 1.5) for i in range(9)]
    rows += [row(row_id="b", source_key="b", time_us=exact)]
    rows += [row(row_id="c", source_key="c", time_us=exact)]
    rows += [row(row_id="d", accelerator="unspecified")]
    file = Measurements(name="own.csv", kind="collectives", rows=tuple(rows))
    report = validation_json(validate(file))["collectives"]
    assert (report["rows"], report["scored"], report["refused"]) == (12, 11, 1)
    assert report["median_of_curves"] == pytest.approx(0, abs=1e-9)
    assert report["median_ape"] == pytest.approx(0.5)
    lines = list(csv.DictReader(io.StringIO(predictions_csv(validate(file)))))
    assert [line["status"] for line in lines] == ["scored"] * 11 + ["refused"]


def test_the_command_writes_table_json_and_picture(tmp_path, capsys):
    rows = [
        {"row_id": str(size), "message_bytes": str(size), "busbw_GBps": "0.0"}
        for size in (10**6, 10**7, 10**8)
    ]
    file = write(tmp_path / "own.csv", *rows)
    folder = tmp_path / "out"
    assert main(["validate", str(file), "-o", str(folder)]) == 0
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        *("manifest.json", "predictions.csv"),
        *("validation.json", "validation.png"),
    ]
    assert "in the median of 1 curve" in capsys.readouterr().out
    written = json.loads((folder / "validation.json").read_text(encoding="utf-8"))
    assert written["collectives"]["scored"] == 3
    assert main(["validate", str(file), "--markdown"]) == 0
    assert "| own: all\\_reduce, 8 ranks |" in capsys.readouterr().out


def test_a_file_without_the_columns_of_collectives_names_them(tmp_path):
    file = tmp_path / "own.csv"
    file.write_text("row_id,collective\n", encoding="utf-8")
    with pytest.raises(InputError, match="columns are missing"):
        read_measurements(file)


def test_a_fit_finds_the_constants_that_made_the_times():
    truth = replace(transports()["nvswitch-a100"], curves=None)
    rows = [
        row(
            row_id=f"{n} {size}",
            num_ranks=n,
            message_bytes=size,
            time_us=1e6 * collective_time(truth, "all_reduce", n, size, 300e9),
        )
        for n in (2, 4, 8)
        for size in np.geomspace(1e4, 1e10, 10).round().tolist()
    ]
    fit = fit_transports(rows)
    found = fit.transports["nvswitch-a100"]
    for name in ("launch", "per_rank", "ramp", "efficiency"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=0.03)
    assert fit.in_sample.errors().mape < 0.01
    assert fit.folds.errors().mape < 0.02
    (ramp,) = (
        one
        for one in fit.constants
        if (one.transport, one.constant) == ("nvswitch-a100", "ramp")
    )
    assert ramp.low <= ramp.high
    printed = io.StringIO()
    print_document(transports_document(fit), Console(file=printed, width=100))
    assert f"{ramp.value:.4g}" in printed.getvalue()
    assert "all other sources" in printed.getvalue()


def test_a_refit_to_rows_of_collectives_fits_interconnects(
    tmp_path, capsys, monkeypatch
):
    rows = [
        {"row_id": str(size), "message_bytes": str(size), "time_us": str(time)}
        for size, time in ((10**6, 60), (10**7, 120), (10**8, 800), (10**9, 7600))
    ]
    file = write(tmp_path / "own.csv", *rows)
    monkeypatch.setattr("sys.argv", ["nestsim.features.calibration", str(file)])
    refit()
    printed = capsys.readouterr().out
    assert "nvswitch-a100" in printed
    assert "all other sources" in printed


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="no ../shared measurements here")
def test_published_curves_are_within_the_stated_errors():
    result = validate(read_measurements(PUBLISHED))
    assert result.median_of_curves() <= 0.07
    assert result.errors_by_family()["h100"].median_ape <= 0.12
    codes = {one.code for one in result.refused}
    assert "missing-measurement" not in codes
    assert len(result.scored) == 536


def test_the_picture_has_a_colour_for_each_number_of_ranks_beside_each_other(tmp_path):
    curves = [("all_reduce", (4, 8)), ("all_gather", (8, 16))]
    rows = tuple(
        row(
            row_id=f"{name} {ranks} {size}",
            collective=name,
            num_ranks=ranks,
            message_bytes=size,
        )
        for name, members in curves
        for ranks in members
        for size in (2**10, 2**20, 2**30)
    )
    file = Measurements(name="own.csv", kind="collectives", rows=rows)
    result = validate(file)
    drawn = draw(
        lambda path: draw_document(validation_document(result), path), tmp_path
    )
    assert not drawn.cut_off
    assert not drawn.overlapping
    lines = [[line.get_color() for line in axes.lines] for axes in drawn.figure.axes]
    assert [len(set(colours)) for colours in lines] == [2, 2]
    assert {"4 ranks", "8 ranks", "16 ranks"} <= set(drawn.words)
