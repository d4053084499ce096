"""The command line: exit status, streams, and one clear error for each mistake."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nestsim.cli import main
from nestsim.features.run.command import run_folders
from nestsim.registry import COMMANDS
from tests import failures
from topologies.errors import InputError

SCENARIOS = Path(__file__).parents[3] / "scenarios"
MAIN = (SCENARIOS / "llama2_7b_64_h100.toml").read_text(encoding="utf-8")
TREE = (SCENARIOS / "gpt3_175b_512_tpuv4.toml").read_text(encoding="utf-8")
TORUS = (SCENARIOS / "llama3_70b_256_tpu_torus.toml").read_text(encoding="utf-8")
CUSTOM = (SCENARIOS / "custom_network.toml").read_text(encoding="utf-8")

WRONG_INPUT = 2

Case = tuple[str, str, str, str, tuple[str, ...]]
"""Text, what is replaced, by what, the setting, and words of the message."""

UNITS = 'expected: a number with a unit, e.g. "450 GB/s" or "400 Gbit/s"'
BATCH = "global_batch_size = 512"
LATENCY = 'node_latency = "500 ns"'
NODE = '"450 GB/s"'
NETWORK = "cluster.network"
SIZES = "micro_batch_sizes = [1, 2, 4]"
KEEP = "keep_best = 5"

CASES: dict[str, Case] = {
    # Names.
    "unknown key": (
        *(MAIN, BATCH, "global_batch_sise = 512", "training.global_batch_sise"),
        ("unknown setting (and 1 other problem", 'did you mean "global_batch_size"?'),
    ),
    "unknown key of a level": (
        *(TREE, "fan_out = 4", "fanout = 4", f"{NETWORK}.levels[1].fanout"),
        ("unknown setting", 'did you mean "fan_out"?'),
    ),
    "unknown table": (
        *(MAIN, "\n[search]", "\n[serach]", "serach"),
        ("unknown setting", 'did you mean "search"?'),
    ),
    "unknown key that is not printable": (
        *(MAIN, BATCH, f'{BATCH}\n"\\u001b[2J" = 1', r"training.'\x1b[2J'"),
        (r"'\x1b[2J'",),
    ),
    "unknown key of the model": (
        *(MAIN, 'name = "llama2-7b"', 'nmae = "llama2-7b"', "model.nmae"),
        ('did you mean "name"?',),
    ),
    "unknown model": (
        *(MAIN, '"llama2-7b"', '"lama2-7b"', "model.name"),
        ("got:      'lama2-7b'", "expected: one of bert-large", '"llama2-7b"?'),
    ),
    "unknown accelerator": (
        *(MAIN, '"h100-sxm"', '"h100"', "cluster.accelerator"),
        ("got:      'h100'", 'did you mean "h100-sxm"?'),
    ),
    "unknown kind of network": (
        *(MAIN, '"spine-leaf"', '"spineleaf"', f"{NETWORK}.kind"),
        ('expected: one of "fat-tree", "spine-leaf"', 'did you mean "spine-leaf"?'),
    ),
    "unknown choice": (
        *(MAIN, '"bf16"', '"bf61"', "training.precision"),
        ('expected: one of "bf16", "fp16", "fp32"', 'did you mean "bf16"?'),
    ),
    "unknown number format": (
        *(TREE, "bf16 =", "bf61 =", "cluster.accelerator.peak_flops.bf61"),
        ('did you mean "bf16"?',),
    ),
    "schedule that is not searched": (
        *(MAIN, KEEP, 'schedules = ["scanned"]', "search.schedules[0]"),
        ("is not searched", 'expected: "1f1b" or', "nestsim simulate replays it"),
    ),
    # Missing.
    "missing key": (
        *(MAIN, BATCH, "", "training.global_batch_size"),
        (
            "setting is missing",
            "expected: a whole number from 1 to 1,000,000, e.g. 512",
        ),
    ),
    "missing kind": (
        *(MAIN, 'kind = "spine-leaf"', "", f"{NETWORK}.kind"),
        ("setting is missing", 'expected: one of "fat-tree"'),
    ),
    "missing model": (
        *(MAIN, "[model]\n", "[training.model]\n", "training.model"),
        ("unknown setting",),
    ),
    "missing name": (
        *(MAIN, 'name = "llama2-7b"', "", "model.name"),
        ("setting is missing", "expected: a name such as"),
    ),
    "missing bandwidth of the innermost level": (
        *(TREE, 'bandwidth = "900 GB/s" # of', "# of", f"{NETWORK}.levels[0]"),
        ("is missing",),
    ),
    "missing file of links": (
        *(CUSTOM, '_links.toml" #', '_lines.toml" #', f"{NETWORK}.path"),
        ("no such file", "got:      'custom_network_lines.toml'"),
    ),
    "missing config.json": (
        *(MAIN, 'name = "llama2-7b"', 'config = "c.json"', "model.config"),
        ("no such file", "got:      'c.json'", "Hugging Face"),
    ),
    # Quantities.
    "bare number": (
        *(MAIN, NODE, "450", f"{NETWORK}.node_bandwidth"),
        ("quantity has no unit", "got:      450", UNITS),
    ),
    "number in quotes": (
        *(MAIN, NODE, '"450"', f"{NETWORK}.node_bandwidth"),
        ("quantity has no unit", "got:      '450'", UNITS),
    ),
    "bandwidth in seconds": (
        *(MAIN, NODE, '"450 s"', f"{NETWORK}.node_bandwidth"),
        ("unit is not one of bandwidth", UNITS),
    ),
    "latency in bytes": (
        *(MAIN, LATENCY, 'node_latency = "500 B"', f"{NETWORK}.node_latency"),
        ("unit is not one of duration", 'e.g. "2 us"'),
    ),
    "small b": (
        *(MAIN, NODE, '"450 Gb/s"', f"{NETWORK}.node_bandwidth"),
        ("write Gbit for bits or GB for bytes",),
    ),
    "unknown unit": (
        *(MAIN, NODE, '"450 Gx/s"', f"{NETWORK}.node_bandwidth"),
        ("unknown unit", UNITS),
    ),
    "formula": (
        *(MAIN, NODE, '"9**9**9 GB/s"', f"{NETWORK}.node_bandwidth"),
        ("not a quantity", UNITS),
    ),
    "negative quantity": (
        *(MAIN, NODE, '"-450 GB/s"', f"{NETWORK}.node_bandwidth"),
        ("must be finite and not negative",),
    ),
    "no bandwidth at all": (
        *(MAIN, NODE, '"0 GB/s"', f"{NETWORK}.node_bandwidth"),
        ("must be more than 0",),
    ),
    "infinite quantity": (
        *(MAIN, NODE, '"1e400 GB/s"', f"{NETWORK}.node_bandwidth"),
        ("must be finite",),
    ),
    "NaN quantity": (
        *(MAIN, NODE, '"nan GB/s"', f"{NETWORK}.node_bandwidth"),
        ("not a quantity",),
    ),
    "absurd quantity": (
        *(MAIN, NODE, '"450e15 GB/s"', f"{NETWORK}.node_bandwidth"),
        ("absurdly large", "from 1 B/s to 1000 PB/s"),
    ),
    "rate without time": (
        *(TREE, '"275 TFLOP/s"', '"275 TFLOPS"', "cluster.accelerator.peak_flops.bf16"),
        ("write FLOP/s",),
    ),
    "reserve of the whole memory": (
        *(MAIN, "num_devices = 64", 'memory_reserve = "80 GiB"'),
        "cluster.memory_reserve",
        ("leaves no memory to train in", "less than the 80 GiB of h100-sxm"),
    ),
    # Numbers.
    "text for a number": (
        *(MAIN, BATCH, 'global_batch_size = "512"', "training.global_batch_size"),
        ("must be a whole number", "got:      '512'"),
    ),
    "fraction": (
        *(MAIN, BATCH, "global_batch_size = 512.0", "training.global_batch_size"),
        ("must be a whole number", "got:      512.0"),
    ),
    "true for a number": (
        *(MAIN, SIZES, "micro_batch_sizes = [1, true]", "search.micro_batch_sizes[1]"),
        ("must be a whole number", "got:      True"),
    ),
    "true for a ZeRO stage": (
        *(MAIN, KEEP, "zero_stages = [true]", "search.zero_stages[0]"),
        ("must be a whole number",),
    ),
    "ZeRO stage 4": (
        *(MAIN, KEEP, "zero_stages = [4]", "search.zero_stages[0]"),
        ("must be at most 3",),
    ),
    "zero": (
        *(MAIN, BATCH, "global_batch_size = 0", "training.global_batch_size"),
        ("must be at least 1",),
    ),
    "negative": (
        *(MAIN, "num_leaves = 4", "num_leaves = -4", f"{NETWORK}.num_leaves"),
        ("must be at least 1",),
    ),
    "absurd batch": (
        *(MAIN, BATCH, "global_batch_size = 1_000_001", "training.global_batch"),
        ("must be at most 1000000",),
    ),
    "absurd sequence": (
        *(MAIN, "length = 4096", "length = 100_000_001", "model.sequence_length"),
        ("must be at most 100000000",),
    ),
    "absurd number": (
        *(MAIN, BATCH, f"global_batch_size = 0x{'f' * 5000}", "training.global_batch"),
        ("got:      a number of about 6021 digits",),
    ),
    "absurd cluster": (
        *(MAIN, "num_leaves = 4", "num_leaves = 100_000", f"{NETWORK}.num_leaves"),
        ("too many devices",),
    ),
    "NaN": (
        *(MAIN, "tolerance = 0.05", "tolerance = nan", "simulation.tolerance"),
        ("must be a finite number", "got:      nan"),
    ),
    "infinity": (
        *(MAIN, "tolerance = 0.05", "tolerance = inf", "simulation.tolerance"),
        ("must be a finite number",),
    ),
    "tolerance of a plan that is twice as slow": (
        *(MAIN, "tolerance = 0.05", "tolerance = 1.0", "simulation.tolerance"),
        ("must be less than 1",),
    ),
    # Forms.
    "number for a list": (
        *(MAIN, SIZES, "micro_batch_sizes = 4", "search.micro_batch_sizes"),
        ("must be a list in brackets", "e.g. [1, 2, 4]"),
    ),
    "empty list": (
        *(MAIN, SIZES, "micro_batch_sizes = []", "search.micro_batch_sizes"),
        ("must not be empty",),
    ),
    "list with a value twice": (
        *(MAIN, SIZES, "micro_batch_sizes = [1, 2, 1]", "search.micro_batch_sizes[2]"),
        ("stands in the list twice", "got:      1"),
    ),
    "text for true": (
        *(MAIN, KEEP, 'sequence_parallel = "on"', "search.sequence_parallel"),
        ("must be true or false",),
    ),
    "number for a name": (
        *(MAIN, '"h100-sxm"', "100", "cluster.accelerator"),
        ("has the wrong type", "or a table with name, peak_flops"),
    ),
    "date for a number": (
        *(MAIN, BATCH, "global_batch_size = 1979-05-27", "training.global_batch_size"),
        ("got:      1979-05-27",),
    ),
    "list of tables for a table": (
        *(MAIN, "[model]", "[[model]]", "model"),
        ("has the wrong type",),
    ),
    "four dimensions": (
        *(TORUS, "[4, 8, 8]", "[4, 8, 8, 2]", f"{NETWORK}.dimensions"),
        ("at most 3",),
    ),
    # What does not go together.
    "name and architecture": (
        *(MAIN, "[model]", "[model]\nhidden_size = 4096", "model: "),
        ("more than one way", "got:      ['name', 'hidden_size']"),
    ),
    "number of devices": (
        *(MAIN, "num_devices = 64", "num_devices = 32", "cluster.num_devices"),
        ("does not agree with the network", "got:      32", "expected: 64"),
    ),
    "number of listed devices": (
        *(CUSTOM, "num_devices = 8", "num_devices = 9", "cluster.num_devices"),
        ("expected: 8",),
    ),
    "mesh that wraps around": (
        *(TORUS, '"torus"', '"mesh"\nwrap = [true, true, true]', f"{NETWORK}.wrap"),
        ('write kind = "torus"',),
    ),
    "wrap of two dimensions of three": (
        *(TORUS, '"torus"', '"torus"\nwrap = [true, false]', f"{NETWORK}.wrap"),
        ("must have one entry per dimension",),
    ),
    "bandwidth and oversubscription": (
        TREE,
        "fan_out = 4",
        "fan_out = 4\noversubscription = 2.0",
        f"{NETWORK}.levels[1].oversubscription",
        ("contradicts levels[2].bandwidth",),
    ),
    "precision that the device lacks": (
        *(TREE, 'precision = "bf16"', 'precision = "fp16"', "training.precision"),
        ("tpuv4-like has no matrix rate", 'expected: "bf16"'),
    ),
    "optimizer of 16-bit weights": (
        MAIN,
        'precision = "bf16"\noptimizer = "adam"',
        'precision = "fp32"\noptimizer = "adam-bf16"',
        "training.optimizer",
        ("does not go with precision fp32",),
    ),
    "heads that do not divide the width": (
        *(CUSTOM, "num_attention_heads = 32", "num_attention_heads = 33", "model."),
        ("num_attention_heads: does not divide hidden_size",),
    ),
    # TOML.
    "open bracket": (
        *(MAIN, "[model]", "[model", "not TOML"),
        ("at line 12, column 7",),
    ),
    "key twice": (
        *(MAIN, BATCH, f"{BATCH}\n{BATCH}", "not TOML"),
        ("at line 18",),
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty current folder, with the file of links in it."""
    monkeypatch.chdir(tmp_path)
    links = SCENARIOS / "custom_network_links.toml"
    (tmp_path / links.name).write_bytes(links.read_bytes())
    return tmp_path


@pytest.fixture
def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a call that expects a mistake and returns its message."""

    def call(*arguments: str) -> str:
        assert main(arguments) == WRONG_INPUT
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "Traceback" not in captured.err
        return captured.err

    return call


@failures.over("case", CASES.values(), ids=CASES.keys())
def test_a_mistake_is_told_with_file_setting_found_and_expected(
    case: Case, folder: Path, refused: Callable[..., str]
) -> None:
    text, old, new, setting, words = case
    assert old in text, "the case must change the scenario"
    (folder / "bad.toml").write_text(text.replace(old, new, 1), encoding="utf-8")
    message = refused("run", "bad.toml")
    assert message.startswith(f"bad.toml: {setting}")
    for word in words:
        assert word in message
    # A misspelt name leaves another one missing: that is told beside it.
    first = message.rstrip("\n").partition("\n  others:   ")[0]
    lines = first.split("\n")
    assert len(lines) <= 5
    labels = [line[:12] for line in lines[1:]]
    assert labels == [
        label
        for label in ("  got:      ", "  expected: ", "  hint:     ")
        if label in labels
    ]


@failures.over("command", ["run", "plan", "simulate", "topology"])
@failures.over(
    ("content", "words"),
    [
        (None, "bad.toml: no such file"),
        (b"", "bad.toml: name: setting is missing (and 3 others"),
        (b"name = '\xe9'", "bad.toml: is not UTF-8 text (line 1)"),
        ("name = 'é'".encode("utf-16"), "bad.toml: is encoded in UTF-16"),
        ("name = 'é'".encode("utf-32"), "bad.toml: is encoded in UTF-32"),
        (b"\x00\x01\x02", "bad.toml: not TOML"),
    ],
)
def test_files_that_are_not_scenarios_are_refused_by_every_command(
    command: str,
    content: bytes | None,
    words: str,
    folder: Path,
    refused: Callable[..., str],
) -> None:
    (folder / "bad.toml").unlink(missing_ok=True)
    if content is not None:
        (folder / "bad.toml").write_bytes(content)
    assert refused(command, "bad.toml").startswith(words)


def test_a_folder_is_not_a_scenario(refused: Callable[..., str]) -> None:
    assert refused("run", ".").startswith(".: is a folder, not a file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_refused(
    folder: Path, refused: Callable[..., str]
) -> None:
    (folder / "bad.toml").write_text(MAIN, encoding="utf-8")
    (folder / "bad.toml").chmod(0)
    assert "Permission denied" in refused("run", "bad.toml")


def test_an_endless_file_is_refused(refused: Callable[..., str]) -> None:
    assert "is a device, not a file" in refused("run", "/dev/zero")


def test_all_scenarios_are_checked_before_the_first_one_runs(
    folder: Path, refused: Callable[..., str]
) -> None:
    (folder / "good.toml").write_text(MAIN, encoding="utf-8")
    (folder / "bad.toml").write_text(MAIN.replace("512", "0"), encoding="utf-8")
    message = refused("run", "good.toml", "bad.toml")
    assert message.startswith("bad.toml: training.global_batch_size")
    assert not (folder / "results").exists()


def test_a_folder_with_files_of_other_origin_is_not_written_into(
    folder: Path, refused: Callable[..., str]
) -> None:
    (folder / "good.toml").write_text(MAIN, encoding="utf-8")
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.tex").touch()
    message = refused("run", "good.toml", "--output", "mine")
    assert message.startswith("--output: holds files that nestsim did not write")
    assert "--force" in message
    assert [path.name for path in (folder / "mine").iterdir()] == ["thesis.tex"]


def test_a_file_cannot_be_the_folder_of_results(
    folder: Path, refused: Callable[..., str]
) -> None:
    (folder / "good.toml").write_text(MAIN, encoding="utf-8")
    message = refused("run", "good.toml", "--output", "good.toml")
    assert message.startswith("--output: is not a folder")


def test_each_of_several_scenarios_has_a_folder_of_its_own() -> None:
    several = [Path("a/x.toml"), Path("b/y.toml")]
    assert run_folders(several, None) == [Path("results/x"), Path("results/y")]
    assert run_folders(several, Path("out")) == [Path("out/x"), Path("out/y")]
    assert run_folders(several[:1], Path("out")) == [Path("out")]
    assert run_folders(several[:1], None) == [Path("results/x")]
    with pytest.raises(InputError, match="into the same folder"):
        run_folders([Path("a/x.toml"), Path("b/x.toml")], None)


@failures.over(
    ("arguments", "words"),
    [
        ((), "Usage: nestsim"),
        (("rnu",), "No such command"),
        (("run",), "nothing says what to look at"),
        (("run", "--nope", "x.toml"), "No such option"),
        (("plan", "a.toml", "b.toml"), "unexpected extra argument"),
        (("topology", "x.toml", "-o", "x.txt"), "--output: not a picture"),
    ],
)
def test_wrong_use_of_the_command_line_is_status_2(
    arguments: tuple[str, ...],
    words: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(arguments) == WRONG_INPUT
    captured = capsys.readouterr()
    assert words in " ".join((captured.err + captured.out).split())
    assert "Traceback" not in captured.err


NAMES = tuple(command.name for command in COMMANDS)


@failures.over("command", NAMES)
def test_the_help_of_every_command_has_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"Example: nestsim {command}" in text
    # No names of Python's types: words of users stand for values.
    assert re.findall(r"<(bool|path|str|int|list)", text) == []


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in NAMES)
    assert "<bool>" not in text


def test_the_version_goes_to_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from importlib.metadata import version

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"nestsim {version('nestsim')}\n"


def test_every_model_is_listed_once(capsys: pytest.CaptureFixture[str]) -> None:
    from estimators.models.library import model_names

    assert main(["models"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == list(model_names())
    assert main(["models", "--json"]) == 0
    library = json.loads(capsys.readouterr().out)
    assert tuple(library) == model_names()
    assert library["llama3-8b"]["num_query_groups"] == 8
    assert all(model["source"] for model in library.values())


def test_every_accelerator_is_listed_with_its_sources(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from topologies.accelerators import accelerator_names

    assert main(["accelerators"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == list(accelerator_names())
    assert main(["accelerators", "--json"]) == 0
    catalogue = json.loads(capsys.readouterr().out)
    assert tuple(catalogue) == accelerator_names()
    assert catalogue["h100-sxm"]["memory_bytes"] == 80 * 2**30
    assert all(device["sources"] for device in catalogue.values())


def test_the_schema_is_json_on_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_an_interrupted_command_has_the_status_of_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import nestsim.scenario.load

    def interrupt() -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(nestsim.scenario.schema, "scenario_schema", interrupt)
    assert main(["schema"]) == 130


# As real processes, from another folder.

SCRIPT = Path(sys.executable).with_name("nestsim")
ENTRY_POINTS = {
    "module": [sys.executable, "-m", "nestsim"],
    "script": [str(SCRIPT)],
}


def nestsim(entry: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    if entry == "script" and not SCRIPT.exists():
        pytest.skip("the nestsim command is not installed beside this Python")
    command = [*ENTRY_POINTS[entry], *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_both_entry_points_work_from_any_folder(entry: str, tmp_path: Path) -> None:
    listed = nestsim(entry, "accelerators", cwd=tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "h100-sxm" in listed.stdout
    wrong = nestsim(entry, "plan", "missing.toml", "-q", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (WRONG_INPUT, "")
    assert wrong.stderr == (
        "missing.toml: no such file\n  expected: a scenario file in TOML\n"
    )


def test_a_reader_that_leaves_early_causes_no_noise(tmp_path: Path) -> None:
    command = [*ENTRY_POINTS["module"], "schema"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


HEAVY = ("torch", "numba", "pandas", "matplotlib", "seaborn", "pint", "numpy")


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from nestsim.cli import main\n"
        "status = main(['--help'])\n"
        f"sys.exit(','.join(sorted(set({HEAVY}) & set(sys.modules))) or status)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


DRAWING = ("matplotlib", "seaborn")
NEEDED_LATE = (
    *("torch", "scipy.linalg", "pandas", "pyarrow", "pint", "dask", "jinja2"),
    "nestsim.launch.readers",
    "nestsim.launch.formats.deepspeed.writing",
)
"""What the first trace, some rivals, sweeps, rare units, and launches that are read or
are another framework's need."""
SEARCHED = (
    "planner.rivals.nest",
    "nestsim.launch.registry",
    "nestsim.features.advise.job",
)
"""What searches, writes launches and tries changes."""


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        ("memory", (*NEEDED_LATE, *DRAWING, *SEARCHED, "numba", "simpy")),
        ("plan -q", (*NEEDED_LATE, *DRAWING)),
        ("run -q --no-figures --output out", (*NEEDED_LATE, *DRAWING)),
        ("run -q --output out", NEEDED_LATE),
    ],
)
def test_a_command_imports_what_it_uses_alone(
    command: str, heavy: tuple[str, ...], tmp_path: Path
) -> None:
    scenario = str(SCENARIOS / "bert_large_16_v100.toml")
    program = (
        "import sys\n"
        "from nestsim.cli import main\n"
        "status = main(sys.argv[1:])\n"
        f"sys.exit(','.join(sorted(set({heavy}) & set(sys.modules))) or status)\n"
    )
    command_line = [sys.executable, "-c", program, *command.split(), scenario]
    for number in range(2):  # the first traces the model and compiles kernels
        cwd = tmp_path / str(number)
        cwd.mkdir()
        done = subprocess.run(
            command_line, cwd=cwd, capture_output=True, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")


MOST_KERNELS = 46
"""Kernels that the main scenario may call: a first run compiles all of them, for a
minute, and every other one loads them."""


def test_the_main_scenario_compiles_no_more_kernels_than_it_did(tmp_path: Path) -> None:
    scenario = str(SCENARIOS / "glm4_32b_64_h100.toml")
    program = (
        "import sys\n"
        "from nestsim.cli import main\n"
        "from topologies.compiling import Kernel\n"
        "status = main(['run', sys.argv[1], '-q', '--no-figures'])\n"
        "names = [v for m in list(sys.modules.values()) for v in vars(m).values()]\n"
        "kernels = {v for v in names if type(v) is Kernel}\n"
        "called = {k for k in kernels if 'dispatcher' in vars(k)}\n"
        "forms = [len(k.dispatcher.overloads) for k in called]\n"
        "print(status, sum(forms), max(forms), file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", program, scenario]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    status, count, most = map(int, done.stderr.split()[-3:])
    assert (status, most) == (0, 1)
    assert 0 < count <= MOST_KERNELS


def test_showing_a_network_imports_no_torch(tmp_path: Path) -> None:
    scenario = str(SCENARIOS / "llama2_7b_64_h100.toml")
    program = (
        "import sys\n"
        "from nestsim.cli import main\n"
        f"status = main(['topology', {scenario!r}, '--json', '-q'])\n"
        "sys.exit('torch' if 'torch' in sys.modules else status)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["num_devices"] == 64


def test_a_picture_of_the_network_is_drawn_unasked_and_left_out_with_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = str(SCENARIOS / "llama2_7b_64_h100.toml")
    monkeypatch.chdir(tmp_path)
    assert main(["topology", scenario, "--json"]) == 0
    assert list(tmp_path.iterdir()) == []
    assert main(["topology", scenario]) == 0
    (picture,) = (tmp_path / "results").iterdir()
    assert picture.name == "llama2_7b_64_h100_topology.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.name in capsys.readouterr().err
