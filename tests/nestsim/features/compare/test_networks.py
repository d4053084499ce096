"""Networks side by side: one job on each, whoever writes them and in which order."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nestsim.cli import main
from nestsim.cli.app import repeated
from nestsim.document.sheet import draw_document
from nestsim.features.compare import job as task
from nestsim.features.compare.networks_document import networks_document
from nestsim.features.compare.networks_job import (
    networks_facts,
    networks_job,
    on_network,
    read_network_file,
    read_network_files,
)
from nestsim.features.compare.networks_record import (
    are_equal,
    decisions,
    equality_sentence,
    fairness,
    network_rate,
    networks_json,
    networks_rows,
    networks_title,
    tokens_per_money,
    tokens_per_port,
)
from nestsim.features.compare.results import (
    ComparedNetwork,
    NetworkComparison,
    PlannerEntry,
    spread,
    step_parts,
)
from nestsim.running.store import Store
from nestsim.scenario import Scenario, load_scenario
from nestsim.scenario.one_line import scenario_of
from tests import failures
from tests.nestsim.features.compare.small import TEXT, load, write
from topologies.errors import InputError

ROOT = Path(__file__).parents[4]

TREE = """
[cluster.network]
kind = "fat-tree"
nic = "device"

[[cluster.network.levels]]
name = "node"
fan_out = 4
bandwidth = "200 GB/s"
latency = "1 us"

[[cluster.network.levels]]
name = "leaf"
fan_out = 1
bandwidth = "10 GB/s"
latency = "2 us"

[[cluster.network.levels]]
name = "spine"
fan_out = 2
latency = "500 ns"
"""

LEAVES = """
name = "leaves"
kind = "spine-leaf"
devices_per_node = 4
node_bandwidth = "1600 Gbit/s"
node_latency = "0.001 ms"
nodes_per_leaf = 1
num_leaves = 2
nic = "device"
nic_bandwidth = "80 Gbit/s"
nic_latency = "2000 ns"
spine_latency = "0.5 us"
"""

TORUS = """
[cluster.network]
kind = "torus"
dimensions = [2, 4]
bandwidth = "10 GB/s"
latency = "1 us"
"""

PRICES = """
[cost]
device_hour = "2 USD/h"
years = 1

[[cost.links]]
bandwidth = "80 Gbit/s"
nic = "100 USD"
switch_port = "50 USD"
cable = "10 USD"
"""


def put(folder: Path, **texts: str) -> list[Path]:
    """Write files of networks, each under its name."""
    paths = []
    for name, text in texts.items():
        paths.append(folder / f"{name}.toml")
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def compared(base: Scenario, paths: list[Path], **more: Any) -> NetworkComparison:
    return networks_job(base, read_network_files(paths, base), **more)


def draw_networks(found: NetworkComparison, path: Path) -> None:
    draw_document(networks_document(networks_json(found)), path)


def said(entry: PlannerEntry) -> dict[str, Any]:
    """Return what is kept of an entry, but for how long its search took."""
    return {**entry.to_row(), "search_time": None}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return load(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def comparison(
    job: Scenario, tmp_path_factory: pytest.TempPathFactory
) -> NetworkComparison:
    """Return a tree in two spellings and a torus."""
    folder = tmp_path_factory.mktemp("networks")
    return compared(job, put(folder, tree=TREE, leaves=LEAVES, torus=TORUS))


def test_a_network_that_is_written_otherwise_gives_the_same(
    comparison: NetworkComparison,
) -> None:
    tree, leaves, _ = comparison.networks
    assert (tree.label, leaves.label) == ("tree", "leaves")
    assert (tree.kind, leaves.kind) == ("fat-tree", "spine-leaf")
    assert tree.inventory.fabric == leaves.inventory.fabric
    assert said(tree.best) == said(leaves.best)
    assert are_equal(replace(comparison, networks=(tree, leaves)), "ports")


def test_a_scenario_stands_for_its_network(job: Scenario, tmp_path: Path) -> None:
    text = TEXT.format(devices=8, nodes=2, reserve="1 GiB")
    bare = text[text.index("kind = ") : text.index("[search]")]
    bare = bare.replace("cluster.network.", "")
    first, second = compared(job, put(tmp_path, whole=text, bare=bare)).networks
    assert (first.label, second.label) == ("whole", "bare")
    assert said(first.best) == said(second.best)


def test_the_order_of_files_changes_no_row(
    job: Scenario, comparison: NetworkComparison, tmp_path: Path
) -> None:
    turned = compared(job, put(tmp_path, torus=TORUS, tree=TREE, leaves=LEAVES))
    before = {one.label: [said(x) for x in one.entries] for one in comparison.networks}
    after = {one.label: [said(x) for x in one.entries] for one in turned.networks}
    assert before == after
    assert turned.base.label == "torus"
    assert turned.speed(turned.base.best.tokens_per_second) == 1.0
    ratio = comparison.speed(comparison.networks[2].best.tokens_per_second)
    assert turned.speed(turned.networks[1].best.tokens_per_second) == pytest.approx(
        1 / ratio, rel=1e-12
    )


def test_the_parts_of_a_step_add_up_and_devices_work_alike(
    comparison: NetworkComparison, job: Scenario, tmp_path: Path
) -> None:
    for network in comparison.networks:
        parts = step_parts(network)
        assert parts is not None
        assert sum(parts) == pytest.approx(network.best.simulated_time)
    fast = TREE.replace("10 GB/s", "10 TB/s").replace("200 GB/s", "20 TB/s")
    fast = fast.replace("1 us", "0 s").replace("2 us", "0 s").replace("500 ns", "0 s")
    (nothing,) = compared(job, put(tmp_path, fast=fast, tree=TREE)).networks[:1]
    assert nothing.best.load is not None
    assert comparison.base.best.load is not None
    # With next to no time for communication next to none is exposed.
    assert nothing.best.load.exposed < 0.01 * nothing.best.simulated_time
    assert comparison.base.best.load.exposed > nothing.best.load.exposed


def test_rows_read_back_as_they_were(comparison: NetworkComparison) -> None:
    for network in comparison.networks:
        for one in network.entries:
            read = PlannerEntry.from_row(json.loads(json.dumps(one.to_row())))
            assert read.to_row() == one.to_row()
            assert read.tokens_per_second == one.tokens_per_second


def test_the_report_says_what_was_equal_and_what_is_proven(
    comparison: NetworkComparison,
) -> None:
    lines = " ".join(fairness(comparison))
    assert "8 devices (a100-80gb)" in lines
    assert "proven" in lines
    assert "NOT the same: links inside of nodes" in lines
    assert "smallest cut by a plane (torus)" in lines
    sentence = equality_sentence(comparison, "ports")
    # Of 8 NICs there are 8 + 8 + 16 ports; a torus of 2 x 4 has 3 for each device.
    assert sentence.startswith("Ports not equal: ports 24 on torus to 32 on tree")
    fastest = comparison.fastest
    assert fastest is not None
    (slower,) = {"tree", "torus"} - {fastest.label}
    assert any(line.startswith(f"{slower} takes") for line in decisions(comparison))


def test_throughput_is_divided_by_all_ports_and_the_whole_cost(
    tmp_path: Path, job: Scenario
) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text(encoding="utf-8") + PRICES, encoding="utf-8")
    priced = load_scenario(path)
    found = compared(priced, put(tmp_path, tree=TREE, torus=TORUS), equal="cost")
    tree, torus = found.networks
    hours = 365 * 24
    # 8 NICs, 24 ports of switches and 16 cables; 24 NICs and 12 cables.
    assert network_rate(tree) == pytest.approx((800 + 1200 + 160) / hours)
    assert network_rate(torus) == pytest.approx((2400 + 120) / hours)
    tokens = tree.best.tokens_per_second
    assert tokens_per_port(tree, tokens) == tokens / 32
    per_hour = 16 + network_rate(tree)
    assert tokens_per_money(tree, tree.best) == pytest.approx(tokens * 3600 / per_hour)
    assert not are_equal(found, "cost")
    assert networks_json(found)["equal"]["cost"]["is_equal"] is False
    assert "Cost not equal" in equality_sentence(found, "cost")
    rows = networks_rows(found)
    assert [row["currency"] for row in rows] == ["USD", "USD"]
    # Prices change nothing of what is searched and replayed.
    (plain, _) = compared(job, put(tmp_path, tree=TREE, torus=TORUS)).networks
    assert said(plain.best) == said(tree.best)


def test_prices_of_a_level_hold_where_there_is_such_a_level(tmp_path: Path) -> None:
    path = write(tmp_path)
    text = path.read_text(encoding="utf-8") + PRICES
    path.write_text(
        text.replace('nic = "100', 'levels = ["spine"]\nnic = "100'), encoding="utf-8"
    )
    paths = put(tmp_path, tree=TREE, torus=TORUS)
    found = compared(load_scenario(path), paths)
    tree, torus = found.networks
    assert tree.cost is not None
    assert tree.cost.unpriced_levels == ("leaf",)
    assert tree.cost.network_capital == 8 * (2 * 50.0 + 10.0)
    assert math.isnan(network_rate(torus))
    assert any(line.startswith("NOT priced on torus") for line in fairness(found))
    path.write_text(
        text.replace('nic = "100', 'levels = ["core"]\nnic = "100'), encoding="utf-8"
    )
    with pytest.raises(InputError, match="no level of any of the networks"):
        compared(load_scenario(path), paths)


def test_spreads_are_of_the_smallest() -> None:
    assert spread([4.0, 5.0, 4.5]) == 0.25
    assert spread([0.0, 0.0]) == 0.0
    assert spread([0.0, 1.0]) == math.inf
    assert math.isnan(spread([1.0, math.nan]))


def test_every_planner_that_is_named_has_a_row(job: Scenario, tmp_path: Path) -> None:
    paths = put(tmp_path, tree=TREE, torus=TORUS)
    found = compared(job, paths, planners=("nest", "manual"))
    rows = [(row["network"], row["planner"]) for row in networks_rows(found)]
    assert rows == [
        *(("tree", "nest"), ("tree", "manual")),
        *(("torus", "nest"), ("torus", "manual")),
    ]
    for network in found.networks:
        nest, manual = network.entries
        assert nest.simulated_time <= manual.simulated_time * (1 + 1e-9)
        assert network.best.simulated_time == nest.simulated_time


def test_a_system_stands_for_its_network(tmp_path: Path) -> None:
    base = scenario_of("llama3-8b", 64, "hgx-h100-400gbe")
    by_name = read_network_files([Path("dgx-h100"), Path("hgx-h100-1x100gbe")], base)
    assert [file.label for file in by_name] == ["dgx-h100", "hgx-h100-1x100gbe"]
    for file in by_name:
        whole = scenario_of("llama3-8b", 64, file.label)
        assert on_network(base, file).network_spec == whole.network_spec
    # What is written into the folder of results says the same.
    written = tmp_path / "dgx.toml"
    written.write_bytes(by_name[0].text)
    assert read_network_file(written, base).network == by_name[0].network


def test_a_system_of_other_devices_is_no_network_of_the_job() -> None:
    base = scenario_of("llama3-8b", 64, "dgx-h100")
    with pytest.raises(InputError, match=r"(?s)--networks dgx-b200.*b200.*h100-sxm"):
        read_network_files([Path("dgx-h100"), Path("dgx-b200")], base)


def test_the_shipped_networks_join_the_devices_of_the_main_scenario() -> None:
    base = load_scenario(ROOT / "scenarios" / "llama2_7b_64_h100.toml")
    folder = ROOT / "scenarios"
    described = folder / "described" / "slurm.toml"
    shipped = sorted((folder / "networks").glob("*.toml"))
    files = read_network_files([*shipped, described], base)
    from nestsim.evaluate.cluster import cluster_network
    from topologies.fabrics.inventory import count_parts

    ports = {
        file.label: count_parts(cluster_network(on_network(base, file))).num_ports
        for file in files
    }
    assert ports == {
        "dragonfly": 256,
        "dragonfly+": 256,
        "fat-tree": 256,
        "hyperx 2x4": 256,
        "multi-plane": 256,
        "ring of nodes": 64,
        # Ports of NICs and leaves; of second NICs, two pods and a core.
        "two sites": 64 + 64 + 8 + 12 + 4,
        "rail": 256,
        "spine-leaf 2:1": 192,
        "torus 8x8": 256,
        # Described by a file beside it, which is found from there.
        "slurm": 192,
    }


def test_the_picture_says_who_is_fastest(
    comparison: NetworkComparison, tmp_path: Path
) -> None:
    assert networks_title(comparison).startswith("Fastest network in the replay: ")
    draw_networks(comparison, tmp_path / "a.png")
    draw_networks(comparison, tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def slower(network: ComparedNetwork, seconds: float) -> ComparedNetwork:
    """Return a network whose plans take longer."""
    entries = []
    for one in network.entries:
        found = one.found
        assert found is not None
        longer = found.simulated.iteration_time + seconds
        simulated = replace(found.simulated, iteration_time=longer)
        entries.append(replace(one, found=replace(found, simulated=simulated)))
    return replace(network, entries=tuple(entries))


def test_a_lead_below_half_a_percent_is_a_tie_everywhere_and_has_no_cause(
    comparison: NetworkComparison,
) -> None:
    first, second, torus = comparison.networks
    time = first.best.simulated_time
    for lead, is_tie in ((0.0, True), (2.5e-6, True), (0.004, True), (0.006, False)):
        behind = slower(second, lead if lead < 1e-3 else lead * time)
        last = slower(torus, max(0.0, 1.5 * time - torus.best.simulated_time))
        found = replace(comparison, networks=(behind, first, last))
        both = "leaves and tree"
        title, (line, *others) = networks_title(found), decisions(found)
        headline = networks_document(networks_json(found)).headline
        (figure, *_) = headline.key_figures
        assert (f"a tie of {both}, up to" in title) == is_tie
        assert line.startswith(f"{both} tie" if is_tie else "tree is fastest")
        assert (figure.value == "leaves, tree") == is_tie
        assert [one.split()[0] for one in others if "the term that differs" in one] == (
            ["torus"] if is_tie else ["leaves", "torus"]
        )


def test_ideal_trunks_are_said_where_they_are(comparison: NetworkComparison) -> None:
    tree, leaves, torus = comparison.networks
    flags = (True, False, False)
    networks = tuple(
        replace(one, has_ideal_trunks=flag)
        for one, flag in zip((tree, leaves, torus), flags, strict=True)
    )
    for named in (networks, networks[1:]):
        lines = fairness(replace(comparison, networks=named))
        told = [line for line in lines if "flows never collide" in line]
        assert [line.split(" parallel")[0] for line in told] == (
            ["On tree"] if len(named) == 3 else []
        )


def test_without_any_plan_there_is_still_a_report(tmp_path: Path) -> None:
    job = load(tmp_path, reserve="79 GiB")
    found = compared(job, put(tmp_path, tree=TREE, torus=TORUS))
    assert found.fastest is None
    assert decisions(found) == [
        "On no network is there a plan that the replay finds room for."
    ]
    assert networks_title(found).startswith("On no network")
    draw_networks(found, tmp_path / "empty.png")
    data = networks_json(found)
    assert [one["best"] for one in data["networks"]] == [None, None]


def test_the_first_network_with_a_plan_is_what_others_are_measured_by(
    comparison: NetworkComparison, tmp_path: Path
) -> None:
    tree, _, torus = comparison.networks
    lost = replace(
        tree,
        entries=tuple(
            PlannerEntry(planner="nest", why_not="No.") for _ in tree.entries
        ),
    )
    left = replace(comparison, networks=(lost, torus))
    assert left.base.label == "torus"
    assert [row["relative_speed"] for row in networks_rows(left)][1] == 1.0
    assert f"{lost.label}: No." in decisions(left)
    draw_networks(left, tmp_path / "left.png")


WRONG: list[tuple[dict[str, str], str]] = [
    ({"a": TREE}, "there is nothing to compare"),
    ({"a": 'name = "x"\n' + TREE, "b": 'name = "x"\n' + TREE}, "told apart"),
    ({"a": TREE, "b": "kind = [\n"}, "b.toml"),
    ({"a": TREE, "b": 'name = "b"'}, "holds no network"),
    ({"a": TREE, "b": TREE + "\n[training]\n"}, "training: is no part of a network"),
    ({"a": TREE, "b": "name = 3\n" + TREE}, "name: is no name"),
    (
        {"a": TREE, "b": TORUS.replace("[2, 4]", "[4, 4]")},
        "b.toml: cluster.network: does not join as many devices",
    ),
    ({"a": TREE, "b": LEAVES.replace("80 Gbit/s", "80 Gbit")}, "b.toml: nic_bandwidth"),
    ({"a": TREE, "b": TREE.replace('"10 GB/s"', "10")}, "b.toml: cluster.network.lev"),
    ({"a": TREE, "b": TREE + "\n[cluster.degraded]\n"}, "compared as they were built"),
]


@failures.over(("texts", "message"), WRONG)
def test_a_wrong_network_is_refused_in_a_sentence(
    texts: dict[str, str], message: str, job: Scenario, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        compared(job, put(tmp_path, **texts))
    assert message in str(caught.value).replace("\n", " ")


def test_a_job_that_is_degraded_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    slow = "\n[cluster.degraded]\nslow_devices = [{device = 1, factor = 2.0}]\n"
    path.write_text(path.read_text(encoding="utf-8") + slow, encoding="utf-8")
    with pytest.raises(InputError, match="compared as they were built"):
        compared(load_scenario(path), put(tmp_path, tree=TREE, torus=TORUS))


def test_a_list_of_links_is_found_beside_the_file_that_names_it(
    job: Scenario, tmp_path: Path
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    links = "".join(
        f'[[links]]\nsource = {i}\ntarget = "switch"\nbandwidth = "10 GB/s"\n'
        'latency = "1 us"\n'
        for i in range(8)
    )
    (folder / "links.toml").write_text(f"devices = 8\n{links}", encoding="utf-8")
    star = 'kind = "custom"\npath = "links.toml"\n'
    paths = [*put(folder, star=star), *put(tmp_path, tree=TREE)]
    first = compared(job, paths).networks[0]
    assert first.inventory.num_switches == 1
    assert (first.inventory.num_nic_ports, first.inventory.num_cables) == (8, 8)


def test_an_option_takes_all_words_up_to_the_next_one() -> None:
    words = ["compare", "job", "--networks", "a", "b", "--equal", "ports", "-q"]
    assert list(repeated(words, ["--networks"])) == [
        *("compare", "job", "--networks", "a", "--networks", "b"),
        *("--equal", "ports", "-q"),
    ]
    assert list(repeated(["--networks"], ["--networks"])) == ["--networks"]
    assert list(repeated(["a", "b"], ["--networks"])) == ["a", "b"]


def test_finished_points_are_taken_from_the_store(
    job: Scenario,
    comparison: NetworkComparison,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = put(tmp_path, tree=TREE, leaves=LEAVES, torus=TORUS)
    files = read_network_files(paths, job)
    facts = networks_facts(job, files, ("nest",))
    with Store(tmp_path / "points.sqlite", facts) as store:
        networks_job(job, files, store=store)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("is searched again")

    monkeypatch.setattr(task, "measure", never)
    with Store(tmp_path / "points.sqlite", facts) as store:
        again = networks_job(job, files, store=store)
    assert [said(one.best) for one in again.networks] == [
        said(one.best) for one in comparison.networks
    ]
    other = networks_facts(job, files[:2], ("nest",))
    assert other["networks"] != facts["networks"]


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Return what runs the command in a folder with a job and three networks."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    put(tmp_path, tree=TREE, leaves=LEAVES, torus=TORUS)

    def command(*words: str) -> tuple[int, str]:
        status = main(["compare", "job.toml", *words])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return command


def test_results_are_the_same_bytes_for_any_number_of_workers(
    run: Run, tmp_path: Path
) -> None:
    networks = ("--networks", "tree.toml", "leaves.toml", "torus.toml")
    status, out = run(*networks, "-q")
    assert status == 0
    assert out.startswith("Fastest network in the replay: a tie of tree and leaves")
    run(*networks, "-q", "--workers", "2", "-o", "two", "--no-figures")
    first = tmp_path / "results" / "job_networks"
    names = {str(one.relative_to(first)) for one in first.rglob("*") if one.is_file()}
    assert names == {
        *("comparison.csv", "comparison.json", "comparison.png", "job.toml"),
        *("manifest.json", "networks/leaves.toml", "networks/torus.toml"),
        *("networks/tree.toml", "report.txt", "search_times.csv"),
    }
    for name in names - {"search_times.csv", "comparison.png", "manifest.json"}:
        assert (first / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_unequal_networks_fail_if_they_have_to_be_equal(run: Run) -> None:
    alike = ("--networks", "tree.toml", "leaves.toml", "--json", "-q")
    status, out = run(*alike, "--equal", "ports")
    report = json.loads(out)
    assert (status, report["equal"]["ports"]["is_equal"]) == (0, True)
    status, out = run("--networks", "tree.toml", "torus.toml", "--equal", "ports", "-q")
    assert status == 1
    assert "Ports not equal" in out.splitlines()[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--networks", "tree.toml"), "there is nothing to compare"),
        (("--networks", "tree.toml", "nothing.toml"), "nothing.toml"),
        (("--networks", "tree.toml", "torus.toml", "--base", "nest"), "--base"),
        (("--networks", "tree.toml", "torus.toml", "--equal", "cost"), "has a price"),
        (("--networks", "tree.toml", "torus.toml", "--planners", "best"), "a planner"),
        (("--equal", "ports"), "--equal: is about networks"),
        (("job.toml", "--networks", "tree.toml", "torus.toml"), "by one job"),
    ],
)
def test_what_does_not_go_together_is_refused(
    run: Run, words: tuple[str, ...], message: str
) -> None:
    status, out = run(*words, "-q")
    assert status == 2
    assert message in out
    assert "Traceback" not in out
