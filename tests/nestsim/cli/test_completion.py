"""Bash completes commands, options and choices, by the script that nestsim prints."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import failures

ROOT = Path(__file__).parents[3]

ASK = """
{script}
COMP_WORDS=({words}) COMP_CWORD={place}
{function} nestsim
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which ``nestsim`` is the one that is tested."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "nestsim"
    # The script names the program; click reads its variable by that name.
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.argv[0] = 'nestsim'\n"
        "from nestsim.cli import main\nsys.exit(main())\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def script(environment: dict[str, str]) -> str:
    # Which shell it is for, typer asks the process that calls; here that is no shell.
    asked = {**environment, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        ["nestsim", "--show-completion", "bash"],
        env=asked,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@failures.over(
    ("words", "offered"),
    [
        (["nestsim", "sim"], ["simulate"]),
        (["nestsim", "schema", "--o"], ["--of"]),
        (["nestsim", "schema", "--of", "ma"], ["manifest"]),
        (["nestsim", "check", "--trust"], ["--trust-code"]),
    ],
)
def test_bash_completes(
    words: list[str], offered: list[str], script: str, environment: dict[str, str]
) -> None:
    function = script.partition("()")[0].split()[-1]
    asked = ASK.format(
        script=script, words=" ".join(words), place=len(words) - 1, function=function
    )
    done = subprocess.run(
        ["bash", "-c", asked],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == offered, done.stderr
