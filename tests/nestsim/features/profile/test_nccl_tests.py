"""Logs of nccl-tests: what they say is read, and links are fitted from it."""

import json
import math

import pytest

from estimators.collectives.transports import WIRE_FRACTIONS
from estimators.user_files import read_user_links
from nestsim.cli import main
from nestsim.features.profile.links import Stated, fit_links
from nestsim.features.profile.nccl_tests import PROGRAMS, LogOptions, read_nccl_tests
from tests import failures
from topologies.errors import InputError

WRONG_INPUT = 2

HEAD = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""  # noqa: E501 - as nccl-tests print it

A100 = [
    (8, 34.84, 0.00, 0.00, 36.18, 0.00, 0.00),
    (1024, 36.57, 0.03, 0.05, 36.51, 0.03, 0.05),
    (65536, 37.48, 1.75, 3.06, 37.55, 1.75, 3.05),
    (262144, 46.38, 5.65, 9.89, 45.64, 5.74, 10.05),
    (1048576, 67.31, 15.58, 27.26, 65.27, 16.07, 28.11),
    (4194304, 106.56, 39.36, 68.88, 105.59, 39.72, 69.51),
    (16777216, 273.12, 61.43, 107.50, 271.67, 61.75, 108.07),
    (67108864, 671.74, 99.90, 174.83, 672.56, 99.78, 174.62),
    (134217728, 1295.41, 103.61, 181.32, 1284.21, 104.51, 182.90),
]
"""All-reduce among 8 A100-SXM4-80GB, nccl-tests 2.19.4 on NCCL 2.19.3, as published."""

A100_NODES = [
    (1073741824, 10776, 99.64, 186.83, 10781, 99.60, 186.75),
    (2147483648, 21287, 100.88, 189.15, 21299, 100.82, 189.05),
    (4294967296, 42381, 101.34, 190.02, 42364, 101.38, 190.09),
]
"""All-reduce among 16 A100-SXM4-40GB of two nodes of Oracle's cloud, as published."""

V100 = """\
root@9a417caaf03b:~/nccl-tests# ./build/all_reduce_perf -b 8 -e 128M -f 2 -g 8
# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid    746 on 9a417caaf03b device  0 [0x4f] Tesla V100-SXM2-16GB
#   Rank  1 Pid    746 on 9a417caaf03b device  1 [0x50] Tesla V100-SXM2-16GB
#   Rank  2 Pid    746 on 9a417caaf03b device  2 [0x5f] Tesla V100-SXM2-16GB
#   Rank  3 Pid    746 on 9a417caaf03b device  3 [0x60] Tesla V100-SXM2-16GB
#   Rank  4 Pid    746 on 9a417caaf03b device  4 [0xb1] Tesla V100-SXM2-16GB
#   Rank  5 Pid    746 on 9a417caaf03b device  5 [0xb2] Tesla V100-SXM2-16GB
#   Rank  6 Pid    746 on 9a417caaf03b device  6 [0xdb] Tesla V100-SXM2-16GB
#   Rank  7 Pid    746 on 9a417caaf03b device  7 [0xdc] Tesla V100-SXM2-16GB
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
      131072         32768   float     sum    56.56    2.32    4.06  2e-07    55.63    2.36    4.12  2e-07
   134217728      33554432   float     sum   1818.8   73.80  129.14  2e-07   1821.9   73.67  128.92  2e-07
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 25.9598
"""  # noqa: E501 - as published in 2019, of nccl-tests 2.0


def ranks_of(hosts, local, device="NVIDIA A100-SXM4-80GB"):
    return "".join(
        f"#  Rank {host * local + i:2d} Group  0 Pid {500 + i} on  node-{host} device "
        f"{i:2d} [0000:{i:02x}:00] {device}\n"
        for host in range(hosts)
        for i in range(local)
    )


def log_of(rows, hosts=1, local=8, *, program="all_reduce", redop="sum", **facts):
    """Return what a program prints."""
    lines = [
        "# nccl-tests version 2.19.4 nccl-headers=21903 nccl-library=21903\n",
        f"# Collective test starting: {program}_perf\n",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup "
        "iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n",
        ranks_of(hosts, local, **facts),
        "#\n",
        HEAD,
    ]
    for size, time, alg, bus, *again in rows:
        second = "  ".join(map(str, again)) if again else f"{time} {alg} {bus}"
        lines.append(
            f"{size:12d} {size // 4:12d} float {redop:>6} -1  {time}  {alg}  {bus}  0"
            f"  {second}  {'N/A' if redop == 'none' else 0}\n"
        )
    lines += [
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 34.9\n#\n",
        f"# Collective test concluded: {program}_perf\n",
    ]
    return "".join(lines)


def law_rows(program, ranks, law, sizes, bandwidth):
    """Return rows whose times follow the law of one node, printed with 2 decimals."""
    rows = []
    operation = PROGRAMS[program]
    for size in sizes:
        wire = WIRE_FRACTIONS[operation](ranks) * size
        if operation in {"send_recv", "all_to_all"}:
            seconds = law["send_launch"] + wire / (law["send_efficiency"] * bandwidth)
            if operation == "all_to_all":
                seconds += law["per_rank"] * (ranks - 1)
        else:
            tau = wire / (law["efficiency"] * bandwidth)
            chain = law["per_rank"] * (ranks - 1)
            chain /= 1 if operation == "all_reduce" else 2
            seconds = law["launch"] + chain + tau + math.sqrt(tau * law["ramp"])
        rows.append(
            (
                size,
                round(seconds * 1e6, 2),
                round(size / seconds / 1e9, 2),
                round(wire / seconds / 1e9, 2),
            )
        )
    return rows


def write(tmp_path, text, name="nccl.log"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def read(tmp_path, text, name="nccl.log", **options):
    return read_nccl_tests([write(tmp_path, text, name)], LogOptions(**options))


def test_a_published_log_is_read_as_it_was_printed(tmp_path):
    sweep = read(tmp_path, log_of(A100))
    assert (sweep.num_ranks, sweep.num_nodes) == (8, 1)
    assert sweep.device == "NVIDIA A100-SXM4-80GB"
    assert sweep.library == "nccl 2.19.3, nccl-tests 2.19.4"
    assert [one.num_bytes for one in sweep.points] == [row[0] for row in A100]
    for point, row in zip(sweep.points, A100, strict=True):
        assert point.operation == "all_reduce"
        middle = (row[1] + row[4]) / 2 * 1e-6
        assert point.timing.seconds == pytest.approx(middle, rel=1e-12)
        assert point.timing.samples == 2
        if row[3] >= 10:
            assert point.bus_bandwidth == pytest.approx(
                (row[3] + row[6]) / 2 * 1e9, rel=2e-3
            )


def test_links_fitted_to_a_published_log_are_those_of_its_machine(tmp_path):
    """DGX A100: 8 ranks reach some 230 GB/s of 300 GB/s with large messages [1]_.

    .. [1] NVIDIA, nccl-tests, ``doc/PERFORMANCE.md`` and published curves.
    """
    sweep = read(tmp_path, log_of(A100))
    fit = fit_links(
        sweep, Stated(accelerator="a100-80gb", node=300e9), name="l", date=""
    )
    link = fit.links.node
    assert 0.7 < link.transport.efficiency < 0.85
    assert fit.median_error("node") < 0.05


def test_the_old_columns_are_read(tmp_path):
    sweep = read(tmp_path, V100)
    assert (sweep.num_ranks, sweep.num_nodes, len(sweep.points)) == (8, 1, 2)
    large = sweep.points[-1]
    assert large.num_bytes == 134217728
    assert large.timing.seconds == pytest.approx(1820.35e-6)
    assert large.bus_bandwidth == pytest.approx(129.03e9, rel=1e-3)


def test_hosts_are_nodes_and_several_logs_are_fitted_together(tmp_path):
    inside = write(tmp_path, log_of(A100), "inside.log")
    between = write(tmp_path, log_of(A100_NODES, hosts=2), "between.log")
    sweep = read_nccl_tests([inside, between], LogOptions())
    assert (sweep.num_ranks, sweep.num_nodes) == (16, 2)
    stated = Stated(accelerator="a100-80gb", node=300e9, fabric=200e9)
    fit = fit_links(sweep, stated, name="links.toml", date="")
    fabric = fit.links.fabric
    # 190 of 200 GB/s and more with larger messages still.
    assert 0.92 < fabric.transport.efficiency <= 1.0
    assert fabric.transport.launch == fit.links.node.transport.launch
    assert fit.median_error("fabric") < 0.02


def test_constants_that_made_a_log_of_several_programs_are_found(tmp_path):
    law = {"launch": 12e-6, "per_rank": 2e-6, "ramp": 30e-6, "efficiency": 0.7}
    law |= {"send_launch": 14e-6, "send_efficiency": 0.9}
    sizes = [4**k for k in range(5, 16)]
    programs = {
        "all_reduce": "sum",
        "all_gather": "none",
        "reduce_scatter": "sum",
        "alltoall": "none",
        "sendrecv": "none",
    }
    text = "".join(
        log_of(
            law_rows(program, ranks, law, sizes, 100e9),
            local=ranks,
            program=program,
            redop=redop,
            device="a card",
        )
        for program, redop in programs.items()
        for ranks in (2, 4, 8)
    )
    sweep = read(tmp_path, text)
    assert {one.operation for one in sweep.points} == {
        PROGRAMS[name] for name in programs
    }
    assert len(sweep.points) == 3 * 5 * len(sizes)
    found = fit_links(sweep, Stated(node=100e9), name="l", date="").links.node.transport
    for name, value in law.items():
        assert getattr(found, name) == pytest.approx(value, rel=0.05), name


def test_tags_of_launchers_and_stamps_are_left_out(tmp_path):
    plain = read(tmp_path, log_of(A100))
    for tag in ("[1,0]<stdout>:", "0: "):
        tagged = "".join(f"{tag}{line}\n" for line in log_of(A100).splitlines())
        assert read(tmp_path, tagged).points == plain.points
    stamped = "".join(
        f"{line} 2026-01-31 10:11:12\n" if " float " in line else f"{line}\n"
        for line in log_of(A100).replace("#wrong\n", "#wrong timestamp\n").splitlines()
    )
    assert read(tmp_path, stamped).points == plain.points


def table_alone(rows, redop="sum"):
    return log_of(rows, redop=redop).split("# Using devices\n")[1].split("#\n", 1)[1]


def test_a_table_alone_needs_the_ranks_and_tells_the_program(tmp_path):
    table = table_alone(A100[-2:])
    sweep = read(tmp_path, table, num_ranks=8)
    assert {one.operation for one in sweep.points} == {"all_reduce"}
    assert (sweep.num_ranks, sweep.num_nodes) == (8, 1)
    nodes = read(tmp_path, table, num_ranks=8, num_nodes=4)
    assert nodes.points[0].scope == "fabric"


def test_devices_of_one_process_are_ranks(tmp_path):
    text = "# nThread 1 nGpus 8 minBytes 8\n" + table_alone(A100[-2:])
    assert read(tmp_path, text).num_ranks == 8


def test_the_name_of_the_file_tells_the_program(tmp_path):
    rows = [(2**30, 5000.0, 214.75, 187.9)]
    table = table_alone(rows, "none")
    for name in ("all_gather.log", "node3-all-gather-8g.txt"):
        sweep = read(tmp_path, table, name, num_ranks=8)
        assert sweep.points[0].operation == "all_gather"
    with pytest.raises(InputError, match="does not tell which program"):
        read(tmp_path, table, "nccl.log", num_ranks=8)


def test_a_rack_that_nvlink_joins_counts_as_one_node(tmp_path):
    text = log_of(A100_NODES, hosts=4, local=4, device="NVIDIA GB200")
    assert read(tmp_path, text).points[0].num_nodes == 4
    assert read(tmp_path, text, num_nodes=1).points[0].scope == "node"


def test_wrong_results_and_collectives_that_plans_have_not_are_left_out(tmp_path):
    broken = log_of(A100).replace("  181.32  0  ", "  181.32  7  ")
    other = log_of(A100[-1:], program="hypercube")
    sweep = read(tmp_path, broken + other)
    assert len(sweep.points) == len(A100) - 1
    assert sweep.num_skipped == 2


@failures.over(
    ("change", "options", "message"),
    [
        (("all_reduce_perf", "alltoall_perf"), {}, "is not measured by all_to_all"),
        ((" 181.32 ", " 90.66 "), {}, "is not measured by all_reduce among 8 ranks"),
        ((" 1284.21 ", " 12,84 "), {}, "is not a number"),
        (("Rank  1", "Rank  0"), {}, "says that it is a rank that there was already"),
        (("", ""), {"num_ranks": 4}, "does not agree with --ranks"),
        (("", ""), {"num_nodes": 3}, "ranks that share nodes evenly"),
        (("time", "cputime"), {}, "has no column of times"),
        (("182.9  0\n", "\n"), {}, "does not have the values"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path, change, options, message):
    text = log_of(A100).replace(*change)
    with pytest.raises(InputError, match=message) as told:
        read(tmp_path, text, **options)
    assert "nccl.log: line " in str(told.value)


@failures.over(
    ("text", "message"),
    [
        ("", "has no measurement"),
        (HEAD, "has no measurement"),
        (table_alone(A100), "does not tell the number of ranks"),
        ("\x00\x01", "has no measurement"),
    ],
)
def test_files_that_say_too_little_are_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as told:
        read(tmp_path, text)
    assert "nccl.log" in str(told.value)


def test_the_command_writes_links_that_scenarios_take(tmp_path, capsys):
    inside = write(tmp_path, log_of(A100), "inside.log")
    between = write(tmp_path, log_of(A100_NODES, hosts=2), "between.log")
    target = tmp_path / "links.toml"
    logs = [str(inside), str(between)]
    options = ["--nic-bandwidth", "200 GB/s", "-o", str(target)]
    assert main(["profile-logs", *logs, *options, "--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["links"]["node"]["bandwidth_bytes_per_s"] == 300e9
    assert found["links"]["fabric"]["bandwidth_is"] == "stated"
    first = target.read_bytes()
    links = read_user_links(target)
    assert links.backend == "nccl 2.19.3, nccl-tests 2.19.4"
    assert links.fabric.num_nodes == 2
    # The same logs, the same bytes: no date of today stands in the file.
    assert main(["profile-logs", *logs, *options, "--force"]) == 0
    assert target.read_bytes() == first
    assert "not measured: a usual value" in capsys.readouterr().out


def test_a_file_that_links_cannot_be_written_to_is_refused(tmp_path, capsys):
    log = write(tmp_path, log_of(A100))
    assert main(["profile-logs", str(log), "-o", "."]) == WRONG_INPUT
    assert "--output: is a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "now"),
    [("--links", "profile-links"), ("--nccl-tests", "profile-logs")],
)
def test_what_was_an_option_of_profile_says_which_command_it_is_now(
    option, now, tmp_path, capsys
):
    words = ["profile", "-o", str(tmp_path / "l.toml"), "--ranks", "2"]
    assert main([*words, f"{option}=x" if now == "profile-logs" else option]) == 2
    error = capsys.readouterr().err
    assert f"{option}: is a command of its own now" in error
    assert f"expected: nestsim {now}" in error
