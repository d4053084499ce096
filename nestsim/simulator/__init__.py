"""The SimPy replay of a plan over the network's links."""
