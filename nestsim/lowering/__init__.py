"""From a priced plan to what each stage works, sends and holds, layer by layer."""
