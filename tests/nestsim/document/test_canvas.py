"""The sheet of figures: seaborn's style and colours, and seaborn where it draws."""

import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import seaborn as sns
from matplotlib.colors import to_hex
from PIL import Image

from nestsim.document.canvas import (
    STYLE,
    figure_with_headline,
    heat_colours,
    save_figure,
)
from nestsim.document.paints import DISTINCT

FONTS = {"font.family", "font.sans-serif", "image.cmap"}
"""What seaborn sets, and we leave: every machine has another first font of its list."""


def test_the_style_is_that_of_seaborn() -> None:
    theirs = {**sns.axes_style("ticks"), **sns.plotting_context("notebook", 1.1)}
    for name in theirs.keys() - FONTS:
        ours = STYLE.get(name, mpl.rcParamsDefault[name])
        if isinstance(ours, float):
            assert ours == pytest.approx(theirs[name])
        else:
            assert ours == theirs[name]
    assert STYLE.keys() <= theirs.keys()


def test_the_colours_are_those_of_seaborn() -> None:
    palette = sns.color_palette("colorblind")
    assert [to_hex(colour) for colour in palette] == list(DISTINCT)
    shades = np.linspace(0, 1, 256)
    theirs = sns.color_palette("rocket_r", as_cmap=True)(shades)
    assert np.abs(heat_colours()(shades) - theirs).max() < 1.5 / 255


def test_the_style_is_ours_alone(tmp_path: Path) -> None:
    with mpl.rc_context({"axes.linewidth": 9.0}):
        with figure_with_headline("A headline", "what it shows") as (figure, colours):
            assert mpl.rcParams["axes.linewidth"] == STYLE["axes.linewidth"]
            assert len(colours.distinct) == len(DISTINCT)
            save_figure(figure, tmp_path / "figure.png")
        assert mpl.rcParams["axes.linewidth"] == 9.0
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("height", [3.3, 4.35, 9.0, 11.017])
def test_a_picture_holds_the_pixels_that_matplotlib_drew(
    height: float, tmp_path: Path
) -> None:
    # 4.35 inches are 435 dots, though 434.99.. as a product of two numbers.
    with figure_with_headline("A headline", "what it shows", height) as (figure, _):
        figure.text(0.3, 0.4, "words", color="red")
        save_figure(figure, tmp_path / "ours.png", metadata={"Software": "nestsim"})
        figure.savefig(tmp_path / "theirs.png")
    ours, theirs = (Image.open(tmp_path / f"{name}.png") for name in ("ours", "theirs"))
    assert np.array_equal(np.asarray(ours), np.asarray(theirs.convert("RGB")))
    assert ours.info["Software"] == "nestsim"
    assert ours.info["dpi"] == pytest.approx(theirs.info["dpi"])


def test_figures_of_runs_need_neither_seaborn_nor_pandas(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from nestsim.document.canvas import figure_with_headline, save_figure\n"
        "with figure_with_headline('a', 'b') as (figure, _):\n"
        "    save_figure(figure, Path('figure.png'))\n"
        "heavy = {'seaborn', 'pandas', 'scipy.stats', 'matplotlib.pyplot'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
