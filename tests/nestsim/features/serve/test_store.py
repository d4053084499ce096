"""Answers in a folder and in an S3 of the test's own: whole, or not there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nestsim.features.serve.store import AnswerStore, answer_store
from nestsim.features.serve.worker import ANSWER
from topologies.errors import InputError

KEY = "0123abcd"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """Return the address of an empty bucket on a server of this process."""
    server_module = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    server: Any = server_module.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("NO_PROXY", "*")
        import s3fs

        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("answers")
        yield "s3://answers/of/nestsim"
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> AnswerStore:
    if request.param == "folder":
        return answer_store("", tmp_path / "answers")
    return answer_store(request.getfixturevalue("bucket"), tmp_path)


def made(folder: Path, text: str = "{}") -> Path:
    """Return an answer that is to be stored."""
    place = folder / "made"
    (place / "files").mkdir(parents=True)
    (place / ANSWER).write_text(text)
    (place / "files" / "page.html").write_text("<p>")
    return place


def test_an_answer_comes_back_and_goes(store: AnswerStore, tmp_path: Path) -> None:
    assert store.read(KEY, ANSWER) is None
    assert store.names(KEY) == []
    assert store.delete(KEY) is False
    store.put(KEY, made(tmp_path))
    assert store.read(KEY, ANSWER) == b"{}"
    assert store.read(KEY, "files/page.html") == b"<p>"
    assert store.names(KEY) == [ANSWER, "files/page.html"]
    assert store.delete(KEY) is True
    assert store.read(KEY, ANSWER) is None
    assert store.names(KEY) == []


def test_an_answer_stored_twice_is_there_once(
    store: AnswerStore, tmp_path: Path
) -> None:
    store.put(KEY, made(tmp_path))
    store.put(KEY, made(tmp_path / "again"))
    assert store.read(KEY, ANSWER) == b"{}"
    store.delete(KEY)


def test_names_lead_nowhere_else(store: AnswerStore, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    store.put(KEY, made(tmp_path))
    for name in ("../secret", "../../secret", str(tmp_path / "secret"), "files"):
        assert store.read(KEY, name) is None
    store.delete(KEY)


def test_links_are_not_followed(tmp_path: Path) -> None:
    store = answer_store("", tmp_path / "answers")
    place = made(tmp_path)
    (tmp_path / "secret").write_text("secret")
    (place / "link").symlink_to(tmp_path / "secret")
    store.put(KEY, place)
    assert "link" not in store.names(KEY)
    assert store.read(KEY, "link") is None


def test_what_is_half_there_is_no_answer(tmp_path: Path) -> None:
    store = answer_store("", tmp_path / "answers")
    (tmp_path / "answers" / KEY / "files").mkdir(parents=True)
    (tmp_path / "answers" / KEY / "files" / "page.html").write_text("<p>")
    assert store.names(KEY) == []
    assert store.read(KEY, ANSWER) is None


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    store = answer_store("", tmp_path / "answers")
    place = made(tmp_path)
    (tmp_path / "answers").rmdir()
    with pytest.raises(OSError, match="cannot be stored"):
        store.put(KEY, place)


def test_a_store_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--store: cannot be reached"):
        answer_store("nowhere://bucket", tmp_path)
    assert list(tmp_path.iterdir()) == []
