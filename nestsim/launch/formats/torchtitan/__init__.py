"""torchtitan: its TOML files, its command line, and what its options mean here."""
