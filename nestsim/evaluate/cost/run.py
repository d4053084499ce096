"""What a training step and a whole run cost, from the replayed throughput alone."""

from dataclasses import dataclass

from nestsim.evaluate.cost.cluster import ClusterCost


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What training costs on a cluster; None for what has no price or no power."""

    cluster: ClusterCost
    """What the cluster costs and draws, whoever uses it."""

    iteration_time: float
    """Time of one training step [s]."""

    tokens_per_second: float
    """What the whole cluster trains on [token/s]."""

    @property
    def step_cost(self) -> float | None:
        """Cost of one training step [currency]."""
        return _product(self.cluster.rate, self.iteration_time)

    @property
    def step_energy(self) -> float | None:
        """Energy of one training step, of the whole site [J]."""
        return _product(self.cluster.power, self.iteration_time)

    @property
    def tokens_per_money(self) -> float | None:
        """Tokens for one unit of the currency [token/currency]."""
        rate = self.cluster.rate
        return self.tokens_per_second / rate if rate else None

    @property
    def tokens_per_joule(self) -> float | None:
        """Tokens for one joule of the site [token/J]."""
        power = self.cluster.power
        return self.tokens_per_second / power if power else None

    @property
    def network_share_of_cost(self) -> float | None:
        """What the network costs over the whole, as far as both are priced."""
        return _share(self.cluster.network_rate, self.cluster.rate)

    @property
    def network_share_of_capital(self) -> float | None:
        """Price of the network over that of everything that is bought."""
        return _share(self.cluster.network_capital, self.cluster.capital)

    @property
    def network_share_of_power(self) -> float | None:
        """Power of the network over that of the site."""
        return _share(self.cluster.network_power, self.cluster.power)

    @property
    def run_tokens(self) -> float | None:
        """Tokens of the whole run; None if nobody asks [token]."""
        return self.cluster.spec.tokens

    @property
    def run_time(self) -> float | None:
        """Time of the whole run, each step like the replayed one [s]."""
        return self._of_run(1.0)

    @property
    def run_cost(self) -> float | None:
        """Cost of the whole run [currency]."""
        return self._of_run(self.cluster.rate)

    @property
    def run_energy(self) -> float | None:
        """Energy of the whole run, of the whole site [J]."""
        return self._of_run(self.cluster.power)

    def _of_run(self, rate: float | None) -> float | None:
        if self.run_tokens is None or rate is None:
            return None
        return rate * (self.run_tokens / self.tokens_per_second)


def _product(rate: float | None, time: float) -> float | None:
    return None if rate is None else rate * time


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
