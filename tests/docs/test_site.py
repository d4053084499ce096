"""The site builds with warnings as errors and needs no network; its links hold."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.builder.extension import MADE, complete
from tests import failures
from tests.docs.pages import DOCS, PAGES, README, ROOT, prose, read

MOST_LINES = 200
"""What README may have: it says where to read on, and not more."""

LINK = re.compile(r"\]\(([^)\s]+)\)")
FOLDERS = ("estimators", "nestsim", "planner", "scenarios", "tests", "topologies")
SOURCE = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`")


REPOSITORY = "https://example.org/team/nestsim"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a copy: the site's folder is beside its settings."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("mkdocs.yml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(DOCS, folder / "docs")
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        env={**os.environ, "NESTSIM_REPOSITORY": REPOSITORY},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "results" / "site"


def test_every_page_is_on_the_site(site: Path) -> None:
    pages = {page.stem for page in DOCS.glob("*.md")}
    assert pages == {page.stem for page in site.glob("*.html")} - {"404"}
    assert not (site / "builder").exists()


def test_every_page_has_its_place_in_the_navigation() -> None:
    # Zensical warns of links that lead nowhere, not of pages.
    _, _, navigation = read(ROOT / "mkdocs.yml").partition("\nnav:\n")
    listed = re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in DOCS.glob("*.md"))


def test_every_page_says_where_to_edit_it_and_where_to_report(site: Path) -> None:
    for page in DOCS.glob("*.md"):
        text = (site / page.with_suffix(".html").name).read_text(encoding="utf-8")
        assert f'href="{REPOSITORY}/edit/main/docs/{page.name}"' in text
        assert f'href="{REPOSITORY}/issues/new?title=Docs%3A%20' in text


def test_the_index_of_the_search_has_every_page(site: Path) -> None:
    index = json.loads((site / "search.json").read_text(encoding="utf-8"))
    found = {item["location"].partition("#")[0] for item in index["items"]}
    assert found == {page.with_suffix(".html").name for page in DOCS.glob("*.md")}


def test_reading_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    fetched = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//"
        r"|<link\b(?![^>]*rel=\"?canonical)[^>]*\bhref=\"?(?:https?:)?//"
    )
    for page in site.glob("*.html"):
        assert fetched.search(page.read_text(encoding="utf-8")) is None, page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\"?(?:https?:)?//", style.read_text("utf-8"))


def test_everything_that_is_made_is_on_the_site(site: Path) -> None:
    for mark, make in MADE.items():
        (page,) = (
            page for page in DOCS.glob("*.md") if f"<!-- {mark} -->" in read(page)
        )
        rendered = (site / page.with_suffix(".html").name).read_text(encoding="utf-8")
        assert f"<!-- {mark} -->" not in rendered
        headings = re.findall(r"^##+ .*\{ #(\S+) \}$", make(), re.MULTILINE)
        assert all(f'id="{anchor}"' in rendered for anchor in headings)


def test_the_readme_is_short() -> None:
    assert len(read(README).splitlines()) <= MOST_LINES


@failures.over("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    # Zensical looks after the links inside of docs; README is outside.
    for link in LINK.findall(prose(page)):
        file, _, anchor = link.partition("#")
        if link.startswith("https://"):
            continue
        target = page if not file else (page.parent / file).resolve()
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings."""
    text = complete(read(page))
    named = set(re.findall(r"\{ #(\S+) \}$", text, re.MULTILINE))
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", title).strip().lower() for title in titles)
    return named | {re.sub(r"[\s-]+", "-", title) for title in plain}


@failures.over("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    for name in SOURCE.findall(prose(page)):
        assert list(ROOT.glob(name.rstrip("/"))) or "*" in name, name


@failures.over("page", PAGES, ids=lambda page: page.name)
def test_lists_begin_after_an_empty_line(page: Path) -> None:
    """Else they are read as lines of the paragraph before, outside of GitHub."""
    lines = ["", *prose(page).split("\n")]
    for before, line in itertools.pairwise(lines):
        if re.match(r"[*-] ", line) and before:
            assert re.match(r"[*-] | {2,}", before), line


def test_the_readme_tells_the_errors_of_the_table_of_accuracy() -> None:
    table = read(DOCS / "accuracy.md")
    rows = re.findall(r"^\| all \| (.*) \|$", table, re.MULTILINE)
    count, _, _, median, tenth, worst, *_ = rows[0].split(" | ")
    plain = " ".join(read(README).split())
    assert f"Over {count} published step times" in plain
    near = f"off by {median} at the median, {float(tenth[:-2]):.0f} % at the 90th"
    assert near in plain
    assert f"{float(worst[:-2]):.0f} % at worst" in plain
