"""Sweep from the command line, to be killed: ``driver STORE WORKERS [SECONDS]``."""

import sys
from pathlib import Path

from nestsim.features.sweep.runner import run_sweep
from nestsim.running.store import Store
from tests.nestsim.features.sweep.tasks import Square

POINTS = [
    {"x": x, "seconds": 0.01} | ({"mishap": "input"} if x % 10 == 3 else {})
    for x in range(60)
]

if __name__ == "__main__":
    slower = [
        point | {"seconds": float(word)} for word in sys.argv[3:] for point in POINTS
    ]
    with Store(Path(sys.argv[1]), {"of": "driver"}) as store:
        run_sweep(slower or POINTS, Square(), store, workers=int(sys.argv[2]))
