"""Dask's workers behind TLS, with certificates of an authority of the test's own."""

import os
from collections.abc import Iterator
from pathlib import Path

import dask.config
import pytest
import trustme
from distributed import Security

from nestsim.features.sweep.executors.dask import DaskWorkers
from nestsim.features.sweep.executors.processes import Processes
from nestsim.features.sweep.runner import run_sweep
from tests.nestsim.features.sweep.dask_cluster import DaskCluster
from tests.nestsim.features.sweep.tasks import Square
from topologies.errors import InputError

pytestmark = pytest.mark.timeout(240)

POINTS = [{"x": x} for x in range(6)]


def settings(authority: trustme.CA, folder: Path) -> dict[str, str]:
    """Return Dask's settings of a machine that has a certificate, as variables."""
    folder.mkdir()
    ca, own = folder / "ca.pem", folder / "node.pem"
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(own)
    tls = "DASK_DISTRIBUTED__COMM__TLS"
    return {
        "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true",
        f"{tls}__CA_FILE": str(ca),
        **{
            f"{tls}__{role}__CERT": str(own)
            for role in ("SCHEDULER", "WORKER", "CLIENT")
        },
    }


def use(patch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Have this process and those that it starts use settings."""
    for name, value in variables.items():
        patch.setenv(name, value)
    dask.config.refresh(env=dict(os.environ))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    folder = tmp_path_factory.mktemp("tls")
    with pytest.MonkeyPatch.context() as patch:
        use(patch, settings(trustme.CA(), folder / "ours"))
        with DaskCluster(folder / "cluster", protocol="tls") as cluster:
            cluster.start_workers(2)
            yield cluster
    dask.config.refresh(env=dict(os.environ))


def test_a_sweep_goes_over_tls(cluster: DaskCluster) -> None:
    assert cluster.address.startswith("tls://")
    with DaskWorkers(cluster.address) as workers:
        there = run_sweep(POINTS, Square(), executor=workers)
    assert there == run_sweep(POINTS, Square(), executor=Processes(1))


def test_nobody_without_a_certificate_of_the_authority_is_let_in(
    cluster: DaskCluster, tmp_path: Path
) -> None:
    assert Security().require_encryption is True
    plain = cluster.address.replace("tls://", "tcp://")
    with pytest.MonkeyPatch.context() as patch:
        use(patch, settings(trustme.CA(), tmp_path / "others"))
        with pytest.raises(InputError, match="scheduler"):
            DaskWorkers(cluster.address)
    dask.config.refresh(env=dict(os.environ))
    with pytest.raises(InputError, match="scheduler"):
        DaskWorkers(plain)
    with DaskWorkers(cluster.address):
        pass
