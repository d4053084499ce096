"""Grouped products, told apart from what a measured layer of experts does beside."""

import numpy as np
import pytest

pytest.importorskip("pandas")

from nestsim.features.calibration import experts
from nestsim.features.calibration.experts import ExpertShapes
from nestsim.features.calibration.operators import hat_matrix

GRID = ((1.0, 6.0, 12.0), (0.0, 9.0), (5.0, 13.0), (10.0, 15.0))


def test_a_fit_tells_products_from_what_is_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice the roofline, and eight passes over the tokens of all ranks.

    One time in twenty is four times too long, and moves nothing.
    """
    monkeypatch.setattr(experts, "GRIDS", {"experts": GRID})
    random = np.random.default_rng(1)
    count = 600
    rows, local, width = (2.0 ** random.uniform(a, b, count) for a, b in _RANGES)
    hidden = np.full(count, 4096.0)
    sizes = np.stack([rows, local, width, hidden], axis=1)
    roofline = 1e-6 + rows * local * width * hidden * 1e-15
    beside = random.uniform(0.2, 5.0, (5, count)) * np.array(
        [[1e-5], [1e-9], [1e-9], [1e-9], [1e-9]]
    )
    times = 2.0 * 2.0 * roofline + 8.0 * beside[0]
    broken = random.random(count) < 0.05
    shapes = ExpertShapes(
        sizes=(sizes, sizes),
        rooflines=(roofline, roofline),
        beside=beside.T,
        logs=np.log(np.where(broken, 4.0, 1.0) * times),
    )
    nodes, errors = shapes.fitted(np.ones(count, dtype=bool))
    assert np.mean(np.abs(errors[~broken])) < 0.03
    large = roofline > np.quantile(roofline, 0.8)
    slower = np.exp(hat_matrix(GRID, sizes[large]) @ nodes.ravel())
    assert np.median(slower) == pytest.approx(2.0, rel=0.05)


_RANGES = ((4, 12), (0, 8), (8, 12))
