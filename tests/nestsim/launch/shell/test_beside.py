# ruff: noqa: E501 - scripts are as they would be written
"""Files beside a script are read with it where Bash reads them, and no others."""

import shutil
import subprocess
from pathlib import Path

import pytest

from nestsim.launch.formats.megatron.reading import read_megatron
from nestsim.launch.read import LaunchSource
from nestsim.launch.shell.follow import follow_script
from nestsim.launch.training import find_training
from topologies.errors import InputError

MODEL = 'LAYERS=40\nMODEL_ARGS=(--num-layers $LAYERS --spec "a b")\n'

FOLDERS = {
    "of the source": 'D="$( cd -- "$( dirname -- "${BASH_SOURCE[0]}" )" &> /dev/null && pwd )"',
    "of the first word": 'D=$(dirname "$0")',
    "of the first word, whole": 'D=$(cd `dirname $0`; pwd)',
    "around": 'D=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/scripts',
    "around, by its name": 'H="$(cd "$(dirname "$0")" && pwd)"; D="$(dirname "$H")/scripts"',
    "that it works in": 'cd "$(dirname "$0")"; D=.',
    "that it works in, step by step": 'cd "$(dirname "$0")"; cd models; D=..',
    "that it goes to and asks for": 'cd -P -- "${BASH_SOURCE%/*}" && D=$PWD/../scripts; D=$(pwd)',
}  # fmt: skip
"""Ways in which a script says where it lies."""

READS = {
    "source": 'source "$D/models/m.sh"',
    "dot": ". $D/models/m.sh",
    "if it is there": 'if [ -f "$D/models/m.sh" ]; then source $D/models/m.sh; fi',
    "another if not": "[[ -e $D/m.sh ]] && . $D/m.sh || . $D/models/m.sh",
    "one that reads another": 'source "${D}/both.sh"',
}
"""Ways in which it reads another file."""

STUB = 'run() { printf \'%s\\0\' "$#" "$@"; }\n'
END = '\nrun "${MODEL_ARGS[@]}" ${LAYERS:-none} $(basename "$0" .sh)\n'


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A folder of scripts, in a project."""
    folder = tmp_path / "scripts"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "m.sh").write_text(MODEL)
    both = (
        'source "$(dirname "${BASH_SOURCE[0]}")/models/m.sh"\nLAYERS=$((LAYERS * 2))\n'
    )
    (folder / "both.sh").write_text(both)
    return folder


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no Bash")
def test_what_a_script_reads_is_what_bash_reads(scripts: Path, tmp_path: Path) -> None:
    """Bash itself is the oracle, started in a folder that says nothing."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    failures = []
    for place, folder in FOLDERS.items():
        for kind, reads in READS.items():
            path = scripts / "go.sh"
            path.write_text(f"{STUB}{folder}\n{reads}{END}")
            done = subprocess.run(
                ["bash", str(path)],
                capture_output=True,
                text=True,
                check=False,
                timeout=20,
                cwd=elsewhere,
            )
            _, *expected = done.stdout.split("\0")[:-1]
            text = f"{folder}\n{reads}{END}"
            run = follow_script(text, {}, path=path)
            given = [one.words[1:] for one in run.commands if one.words[0] == "run"]
            if given != [tuple(expected)] or "--num-layers" not in expected:
                failures.append((place, kind, given, expected))
    assert not failures


def test_what_lies_where_nobody_knows_is_looked_for_beside_the_script(
    scripts: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "here.sh").write_text("LAYERS=7\n")
    (tmp_path / "secret.sh").write_text("LAYERS=666\n")
    monkeypatch.chdir(work)
    layers = {
        "models/m.sh": "40",  # of the folder of the script
        "scripts/models/m.sh": "40",  # of the one around it
        "/home/somebody/slime/scripts/models/m.sh": "40",  # of another machine
        "$ROOT/scripts/models/m.sh": "40",
        "$PWD/models/m.sh": "40",
        "here.sh": "7",  # of the folder of today
        "/home/somebody/secret.sh": "none",  # a name alone is too little
        "models/$SIZE.sh": "none",
        "models": "none",
        "nowhere.sh": "none",
    }
    failures = []
    for name, expected in layers.items():
        run = follow_script(
            f"source {name}\nrun ${{LAYERS:-none}}", {}, path=scripts / "go.sh"
        )
        sentence = "is not read" if expected == "none" else "beside the script"
        if run.commands[-1].words[1] != expected or sentence not in run.assumptions[0]:
            failures.append((name, run.commands[-1].words, run.assumptions))
    assert not failures


def test_a_text_alone_reads_nothing(scripts: Path) -> None:
    run = follow_script(f"source {scripts}/models/m.sh\nrun ${{LAYERS:-none}}", {})
    assert run.commands[-1].words == ("run", "none")


def test_files_that_are_not_understood_are_named(scripts: Path) -> None:
    (scripts / "models" / "m.sh").write_text("if true; then\n")
    with pytest.raises(InputError, match=r"models/m\.sh: if is left open in line 1"):
        follow_script("source models/m.sh", {}, path=scripts / "go.sh")


SUBMITS = """
ARGS=(--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4
  --num-layers 8 --hidden-size 64 --num-attention-heads 2 --seq-length 64
  --micro-batch-size 1)
ray start --head --num-gpus 8
ENV="{\\"env_vars\\": {\\"CUDA_DEVICE_MAX_CONNECTIONS\\": \\"1\\"}}"
ray job submit --working-dir my.py --runtime-env-json="$ENV" -- \\
  python3 train.py ${ARGS[@]}
"""


def test_what_ray_submits_is_a_launch() -> None:
    source = LaunchSource(path=Path("go.sh"), text=SUBMITS, num_devices=8)
    start = find_training(source, lambda words: "--num-layers" in words)
    assert start is not None
    assert (start.program, start.options[:2]) == (
        "train.py",
        ("--tensor-model-parallel-size", "2"),
    )
    assert start.launcher[-2:] == ("--", "python3")
    assert start.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    plan = read_megatron(source).tables["plan"]
    assert plan["pipeline_model_parallel_size"] == 4


@pytest.mark.parametrize(
    ("asked", "note"),
    [
        ("-e /dev/null", ""),
        ("-d .", ""),
        ("-f here.txt", ""),
        ("-d folder", ""),
        ("-d here.txt", "here.txt is not there"),
        ("-f absent.txt", "absent.txt is not there"),
        ("-f /etc/absent.txt", "/etc/absent.txt is there"),
    ],
)
def test_what_is_asked_of_files_is_noted_unless_it_is_known(
    tmp_path: Path, asked: str, note: str
) -> None:
    (tmp_path / "here.txt").touch()
    (tmp_path / "folder").mkdir()
    text = f"cd $(dirname $0)\n[ {asked} ] && A=1\ntorchrun train.py"
    script = tmp_path / "train.sh"
    script.write_text(text)
    found = follow_script(text, {}, path=script)
    notes = [line for line in found.assumptions if "which the script asks" in line]
    assert [line.partition(",")[0] for line in notes] == ([note] if note else [])
