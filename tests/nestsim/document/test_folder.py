"""Where results go: nothing of the user's is touched, nothing is left half-written."""

import hashlib
import json
import multiprocessing
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nestsim.document.folder import (
    MANIFEST,
    Writer,
    check_file,
    claimed_folder,
    replace_file,
    temporary_folder,
    writer_of,
)
from tests import failures
from topologies.errors import InputError

NAMES = ("report.txt", "figures/a.png")
OTHERS = ("thesis.tex", "figures/mine.png", "notes/deep/diary.txt")


def write(folder: Path, *, force: bool = False, **contents: str) -> None:
    """Write a folder of results: by default, one of every name."""
    writers = {
        name: writer_of(contents.get(Path(name).stem, "new"))
        for name in NAMES
        if contents.get(Path(name).stem) != ""
    }
    with claimed_folder(folder, NAMES, force=force) as claimed:
        claimed.write(writers, {"scenario": "test"})


def tree(folder: Path) -> dict[str, bytes | str]:
    """Return everything below a folder: content of files, kind of everything else."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        elif path.is_file():
            found[name] = path.read_bytes()
        else:
            found[name] = f"{stat.S_IFMT(path.stat().st_mode):o}"
    return found


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}


def test_a_folder_is_made_with_a_manifest_of_its_files(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b")
    assert files(tmp_path / "a" / "b") == {*NAMES, MANIFEST}
    manifest = json.loads((tmp_path / "a" / "b" / MANIFEST).read_text())
    digest = hashlib.sha256(b"new").hexdigest()
    assert manifest["files"] == dict.fromkeys(NAMES, digest)
    assert (manifest["scenario"], next(iter(manifest))) == ("test", "nestsim")


def test_files_have_the_rights_that_the_user_gives_new_files(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write(tmp_path / "run")
    for name in (*NAMES, MANIFEST):
        mode = (tmp_path / "run" / name).stat().st_mode
        assert mode == (tmp_path / "plain").stat().st_mode


def test_earlier_results_are_replaced_and_outdated_ones_removed(tmp_path: Path) -> None:
    write(tmp_path / "run")
    write(tmp_path / "run", report="newer", a="")
    assert files(tmp_path / "run") == {"report.txt", MANIFEST}
    assert (tmp_path / "run" / "report.txt").read_text() == "newer"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    """Give earlier results, and beside them what is the user's, of every kind."""
    folder = tmp_path / "run"
    write(folder, report="old")
    for name in OTHERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("years of work")
    (folder / "empty" / "folder").mkdir(parents=True)
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(folder / "socket"))
        yield folder


def test_all_that_is_the_users_stays_beside_new_results(own: Path) -> None:
    before = tree(own)
    write(own, a="")
    after = tree(own)
    ours = {*NAMES, MANIFEST}
    assert {k: v for k, v in before.items() if k not in ours} == {
        k: v for k, v in after.items() if k not in ours
    }
    assert after["report.txt"] == b"new"


@failures.over("name", ["thesis.tex", "report.txt", "deep/in/here", MANIFEST])
def test_a_folder_of_other_origin_is_refused_and_left_alone(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("{}")
    before = tree(tmp_path)
    with pytest.raises(InputError, match="did not write") as caught:
        write(tmp_path)
    assert name in caught.value.got  # type: ignore[operator]
    assert tree(tmp_path) == before


def test_a_foreign_file_of_one_of_our_names_is_refused_beside_earlier_results(
    tmp_path: Path,
) -> None:
    write(tmp_path / "run", a="")
    (tmp_path / "run" / "figures").mkdir()
    (tmp_path / "run" / "figures" / "a.png").write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(InputError, match="did not write"):
        write(tmp_path / "run")
    assert tree(tmp_path) == before
    write(tmp_path / "run", force=True)
    assert (tmp_path / "run" / "figures" / "a.png").read_text() == "new"


def test_force_replaces_files_of_our_names_only(tmp_path: Path) -> None:
    for name in (*OTHERS, "report.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    write(tmp_path, force=True)
    assert (tmp_path / "report.txt").read_text() == "new"
    assert all((tmp_path / name).read_text() == "mine" for name in OTHERS)
    write(tmp_path, a="")
    assert all((tmp_path / name).read_text() == "mine" for name in OTHERS)


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_in_the_place_of_a_file_is_never_removed(
    force: bool, tmp_path: Path
) -> None:
    write(tmp_path, a="")
    (tmp_path / "figures" / "a.png" / "mine").mkdir(parents=True)
    with pytest.raises(InputError, match="holds a folder where a file"):
        write(tmp_path, force=force)
    assert (tmp_path / "figures" / "a.png" / "mine").is_dir()


@pytest.mark.parametrize("force", [False, True])
def test_no_link_leads_out_of_the_folder(force: bool, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    write(tmp_path / "run", a="")
    (tmp_path / "run" / "figures").symlink_to(outside)
    with pytest.raises(InputError, match="holds a file or a link where a folder"):
        write(tmp_path / "run", force=force)
    (outside / "report.txt").write_text("mine")
    (tmp_path / "run" / "figures").unlink()
    (tmp_path / "run" / "report.txt").unlink()
    (tmp_path / "run" / "report.txt").symlink_to(outside / "report.txt")
    write(tmp_path / "run", force=force)
    assert not (tmp_path / "run" / "report.txt").is_symlink()
    assert tree(outside) == {"report.txt": b"mine"}


def test_a_manifest_that_is_no_file_is_no_manifest(tmp_path: Path) -> None:
    elsewhere = tmp_path / "other"
    write(elsewhere)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / MANIFEST).symlink_to(elsewhere / MANIFEST)
    with pytest.raises(InputError, match="did not write"):
        write(tmp_path / "run")
    (tmp_path / "run" / MANIFEST).unlink()
    os.mkfifo(tmp_path / "run" / MANIFEST)
    with pytest.raises(InputError, match="did not write"):
        write(tmp_path / "run")


@failures.over(
    ("make", "words"),
    [
        (lambda path: path.symlink_to(path), "symbolic links"),
        (lambda path: path.write_text("mine"), "is not a folder"),
        (os.mkfifo, "is not a folder"),
        (lambda path: path.symlink_to("/dev/null"), "is not a folder"),
    ],
)
@failures.over("force", [False, True])
def test_what_is_no_folder_is_refused(
    make: Callable[[Path], object], words: str, force: bool, tmp_path: Path
) -> None:
    make(tmp_path / "run")
    with pytest.raises(InputError, match=words):
        write(tmp_path / "run", force=force)
    with pytest.raises(InputError):
        write(tmp_path / "run" / "inside", force=force)


@failures.over("force", [False, True])
@failures.over(
    ("path", "words"),
    [
        ("/", "a folder of the system"),
        ("..", "a folder of the system"),
        (".", "your home folder"),
        ("/dev/null", "is not a folder"),
        ("/proc/results", "cannot be written"),
        ("n\0ull", "null character"),
        ("n" * 300, "name too long"),
    ],
)
def test_places_that_are_none_are_refused(
    path: str,
    words: str,
    force: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match=f"(?i){words}"):
        write(Path(path), force=force)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_holds_an_input_is_refused(force: bool, tmp_path: Path) -> None:
    write(tmp_path / "run")
    source = tmp_path / "run" / "deep" / "scenario.toml"
    source.parent.mkdir()
    source.touch()
    (tmp_path / "alias.toml").symlink_to(source)
    for one in (source, tmp_path / "alias.toml"):
        with (
            pytest.raises(InputError, match="holds an input of this command"),
            claimed_folder(tmp_path / "run", NAMES, inputs=[one], force=force),
        ):
            pass


def failing(_: Path) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failure_leaves_earlier_results_as_they_were(
    error: type[BaseException], tmp_path: Path
) -> None:
    write(tmp_path / "run")
    before = tree(tmp_path)

    def fail(path: Path) -> None:
        path.write_text("half")
        raise error(28, "No space left on device")

    for place in ("run", "new/one"):
        with (
            pytest.raises((InputError, KeyboardInterrupt)) as caught,
            claimed_folder(tmp_path / place, NAMES) as claimed,
        ):
            claimed.write({NAMES[0]: writer_of("newer"), NAMES[1]: fail}, {})
        if error is OSError:
            assert "cannot be written: No space left" in str(caught.value)
        assert tree(tmp_path) == before


def test_a_folder_without_results_goes_again(tmp_path: Path) -> None:
    with claimed_folder(tmp_path / "a" / "b", NAMES) as claimed:
        assert claimed.path.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_one_process_at_a_time_writes_into_a_folder(tmp_path: Path) -> None:
    with claimed_folder(tmp_path / "run", NAMES) as claimed:
        with pytest.raises(InputError, match="is being written by another process"):
            write(tmp_path / "run", force=True)
        claimed.write({NAMES[0]: writer_of("first")}, {})
    write(tmp_path / "run", report="second")
    assert (tmp_path / "run" / "report.txt").read_text() == "second"


def _write_often(folder: Path, number: int, told: "multiprocessing.Queue[int]") -> None:
    written = 0
    for _ in range(20):
        try:
            write(folder, report=f"{number}", a=f"{number}")
            written += 1
        except InputError as error:
            if error.problem != "is being written by another process":
                raise
    told.put(written)


def test_processes_that_write_into_one_folder_leave_one_result(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    several = [
        context.Process(target=_write_often, args=(tmp_path / "run", number, told))
        for number in range(3)
    ]
    for one in several:
        one.start()
    counts = [told.get(timeout=300) for _ in several]
    for one in several:
        one.join()
    assert [one.exitcode for one in several] == [0, 0, 0]
    assert max(counts) > 0
    texts = {(tmp_path / "run" / name).read_text() for name in NAMES}
    assert len(texts) == 1
    assert files(tmp_path / "run") == {*NAMES, MANIFEST}


KILLED = """
import sys, time
from pathlib import Path
from nestsim.document.folder import claimed_folder, writer_of

def slow(path):
    path.write_text("half")
    print("writing", flush=True)
    time.sleep(300)

with claimed_folder(Path(sys.argv[1]), ["report.txt", "figures/a.png"]) as folder:
    folder.write({"report.txt": writer_of("killed"), "figures/a.png": slow}, {})
"""


def test_what_a_killed_process_left_is_cleared_by_the_next_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(folder, report="old")
    command = [sys.executable, "-c", KILLED, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        with pytest.raises(InputError, match="is being written by another"):
            write(folder)
        process.send_signal(signal.SIGKILL)
    (left,) = folder.glob(".nestsim-*")
    assert (left / "figures" / "a.png").read_text() == "half"
    assert (folder / "report.txt").read_text() == "old"
    write(folder, report="next")
    assert files(folder) == {*NAMES, MANIFEST}
    assert (folder / "report.txt").read_text() == "next"


@failures.over("moves", range(4))
def test_a_process_killed_while_it_replaces_leaves_nothing_foreign(
    moves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    whole, done = os.replace, []

    def replace(*arguments: object, **others: object) -> None:
        if len(done) == moves:
            raise KilledError
        done.append(arguments)
        whole(*arguments, **others)  # type: ignore[arg-type]

    write(tmp_path / "run", a="")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(KilledError):
            write(tmp_path / "run", report="half")
    write(tmp_path / "run", report="next", a="")
    assert files(tmp_path / "run") == {"report.txt", MANIFEST}


def test_a_temporary_folder_has_an_unforeseen_name_and_is_private(
    tmp_path: Path,
) -> None:
    with temporary_folder(tmp_path) as one, temporary_folder(tmp_path) as two:
        assert one != two
        assert one.stat().st_mode & 0o077 == 0
        assert {one, two} == set(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_only_named_like_a_temporary_one_stays(tmp_path: Path) -> None:
    mine = tmp_path / "run" / ".nestsim-mine.partial"
    mine.mkdir(parents=True)
    (mine / "thesis.tex").write_text("years of work")
    (tmp_path / "run" / ".nestsim-link.partial").symlink_to(mine)
    write(tmp_path / "run", force=True)
    assert (mine / "thesis.tex").read_text() == "years of work"


def test_a_signal_waits_until_all_files_are_in_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.replace

    def interrupted(*arguments: object, **others: object) -> None:
        signal.raise_signal(signal.SIGINT)
        whole(*arguments, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "run")
    assert files(tmp_path / "run") == {*NAMES, MANIFEST}
    digest = hashlib.sha256(b"new").hexdigest()
    manifest = json.loads((tmp_path / "run" / MANIFEST).read_text())
    assert manifest["files"] == dict.fromkeys(NAMES, digest)


PARTS = st.sampled_from(["report.txt", "figures", "a.png", "x", ".hidden", MANIFEST])
THINGS = st.dictionaries(
    st.lists(PARTS, min_size=1, max_size=3).map("/".join),
    st.sampled_from(["file", "folder", "link", "pipe"]),
    max_size=5,
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(things=THINGS, force=st.booleans())
def test_whatever_a_folder_holds_nothing_foreign_is_changed_or_removed(
    things: dict[str, str], force: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    make: dict[str, Callable[[Path], object]] = {
        "file": lambda path: path.write_text("mine"),
        "folder": lambda path: path.mkdir(),
        "link": lambda path: path.symlink_to("mine"),
        "pipe": os.mkfifo,
    }
    for name, kind in things.items():
        try:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            make[kind](folder / name)
        except OSError:
            continue  # something else is there
    before = tree(folder)
    try:
        write(folder, force=force)
    except InputError:
        assert tree(folder) == before
        return
    after = tree(folder)
    ours = {*NAMES, MANIFEST, "figures"}
    kept = {k: v for k, v in before.items() if k not in ours}
    assert {k: v for k, v in after.items() if k not in ours} == kept
    assert force or not ({*NAMES, MANIFEST} & before.keys())
    assert all(after[name] == b"new" for name in NAMES)


# Single files.


def is_ours(ends: bytes) -> bool:
    return ends.startswith(b"ours")


def put(file: Path, *, force: bool = False, write: Writer | None = None) -> None:
    check_file(file, is_ours, force=force)
    replace_file(file, write or writer_of("ours: new"))


def test_a_file_is_written_and_replaced_with_nothing_left_beside_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a" / "b" / "plot.png"
    put(file)
    put(file, write=writer_of("ours: newer"))
    assert file.read_text() == "ours: newer"
    assert list(file.parent.iterdir()) == [file]


def test_a_file_of_other_origin_is_refused_without_force(tmp_path: Path) -> None:
    file = tmp_path / "plot.png"
    file.write_text("mine")
    with pytest.raises(InputError, match="is a file that nestsim did not write"):
        put(file)
    assert file.read_text() == "mine"
    put(file, force=True)
    assert file.read_text() == "ours: new"


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("ours, but elsewhere")
    for target in ("mine", "plot.png"):
        (tmp_path / "plot.png").unlink(missing_ok=True)
        (tmp_path / "plot.png").symlink_to(target)
        with pytest.raises(InputError, match="did not write"):
            put(tmp_path / "plot.png")
        put(tmp_path / "plot.png", force=True)
        assert (tmp_path / "plot.png").read_text() == "ours: new"
        assert (tmp_path / "mine").read_text() == "ours, but elsewhere"


@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_file_and_no_place_for_one_is_refused(
    force: bool, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    cases = {
        tmp_path: "is a folder",
        tmp_path / "pipe": "not a regular file",
        tmp_path / "file" / "inside": "is not a folder",
        tmp_path / "file" / "deep" / "inside": "Not a directory",
        tmp_path / ("n" * 300): "File name too long",
        tmp_path / "n\0ull": "null character",
        Path("/dev/null"): "not a regular file",
        Path("/proc/plot.png"): "cannot be written",
    }
    for file, words in cases.items():
        with pytest.raises(InputError, match=words):
            put(file, force=force)


def test_an_input_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "cpu.json"
    file.write_text("ours")
    (tmp_path / "alias").hardlink_to(file)
    for one in (file, tmp_path / "alias"):
        with pytest.raises(InputError, match="is an input"):
            check_file(file, is_ours, inputs=[one], force=True)


def test_a_file_that_fails_leaves_the_earlier_one_and_no_folder(tmp_path: Path) -> None:
    put(tmp_path / "plot.png")
    for file in (tmp_path / "plot.png", tmp_path / "new" / "plot.png"):
        with pytest.raises(InputError, match="cannot be written: No space left"):
            put(file, write=failing)
    assert tree(tmp_path) == {"plot.png": b"ours: new"}


def test_what_a_killed_process_left_beside_a_file_is_cleared(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from nestsim.document.folder import replace_file\n"
        "def slow(path):\n    print('writing', flush=True)\n    time.sleep(300)\n"
        "replace_file(Path(sys.argv[1]), slow)\n"
    )
    file = tmp_path / "plot.png"
    command = [sys.executable, "-c", program, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        put(file)
        assert len(list(tmp_path.iterdir())) == 2  # it is still being written
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while len(list(tmp_path.iterdir())) > 1 and time.monotonic() < deadline:
        put(file)
    assert list(tmp_path.iterdir()) == [file]
