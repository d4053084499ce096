"""MLCommons Chakra execution traces: what each rank does, as a graph for simulators."""
