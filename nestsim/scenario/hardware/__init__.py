"""The tables [cluster] and [cluster.network]: devices, links, networks."""
