"""The wheel holds one name, `nestsim`, and computes what the repository computes."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import nestsim
from tests import failures
from tests.nestsim.features.compare.small import write

ROOT = Path(__file__).parents[2]
BESIDE = ("planner", "estimators", "topologies")

ONE = """
[search]
tensor_model_parallel_sizes = [4]
pipeline_model_parallel_sizes = [2]
context_parallel_sizes = [1]
micro_batch_sizes = [1]
zero_stages = [0]
recompute = ["none"]
"""

RUN = """
import importlib.util, sys
sys.path[:0] = [sys.argv[1]]
sys.path += sys.argv[2].split(":")
for name in ("planner", "estimators", "topologies"):
    assert importlib.util.find_spec(name) is None, name
import nestsim
assert nestsim.__file__.startswith(sys.argv[1])
report = nestsim.run(sys.argv[3])
assert type(report.best.priced.plan).__module__ == "nestsim.planner.step.plan"
sys.stdout.write(report.to_json())
"""


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "hatch_build", ROOT / "hatch_build.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(kind: str, folder: Path) -> Path:
    """Build a distribution and return its file."""
    command = (sys.executable, "-m", "hatchling", "build", "-t", kind, "-d")
    subprocess.run([*command, str(folder)], cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that an unpacked wheel is in."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(build("wheel", tmp_path_factory.mktemp("wheel"))) as file:
        file.extractall(folder)
    return folder


def test_the_wheel_occupies_no_other_name(wheel: Path) -> None:
    tops = {one.name for one in wheel.iterdir() if one.suffix != ".dist-info"}
    assert tops == {"nestsim"}
    assert {*BESIDE} <= {one.name for one in (wheel / "nestsim").iterdir()}


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    for name in ("nestsim", *BESIDE):
        home = wheel / "nestsim" if name == "nestsim" else wheel / "nestsim" / name
        for file in (ROOT / name).rglob("*.*"):
            if "__pycache__" not in file.parts and file.is_file():
                assert (home / file.relative_to(ROOT / name)).is_file(), file


def test_the_wheel_computes_what_the_repository_computes(
    wheel: Path, tmp_path: Path
) -> None:
    scenario = write(tmp_path)
    # One configuration: kernels run as Python, since compiling the wheel's takes long.
    text = scenario.read_text(encoding="utf-8").partition("[search]")[0]
    scenario.write_text(text + ONE, encoding="utf-8")
    paths = ":".join({sysconfig.get_path(name) for name in ("purelib", "platlib")})
    # Without site: an editable install does not put the repository on the path.
    options = ("-I", "-S", "-c", RUN, str(wheel), paths, str(scenario))
    done = subprocess.run(
        [sys.executable, *options],
        capture_output=True,
        text=True,
        cwd=wheel,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == nestsim.run(scenario).to_json()


def test_the_source_distribution_can_be_built_from(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    packages = ("nestsim", *BESIDE)
    assert {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE"} <= names
    assert {f"{name}/__init__.py" for name in packages} <= names


@failures.over(
    ("source", "moved"),
    [
        ("from planner import plan", "from nestsim.planner import plan"),
        (
            "    from planner.step.plan import A",
            "    from nestsim.planner.step.plan import A",
        ),
        ("import estimators", "from nestsim import estimators"),
        ("import planner.step.plan as p", "import nestsim.planner.step.plan as p"),
        ('at = "planner.step.plan"', 'at = "nestsim.planner.step.plan"'),
        ('row["planner"]', 'row["planner"]'),
        ("from planners import x", "from planners import x"),
        ('files("topologies") / "catalog"', 'files("nestsim.topologies") / "catalog"'),
    ],
)
def test_sources_are_rewritten_where_they_name_a_module(
    hook: ModuleType, source: str, moved: str
) -> None:
    assert hook.rewritten(source) == moved


def test_an_import_that_cannot_be_moved_stops_the_build(hook: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"import planner\.step\.plan"):
        hook.rewritten("import planner.step.plan")
