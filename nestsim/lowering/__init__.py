"""A priced plan into what each stage works, sends and holds in the replay."""
