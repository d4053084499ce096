"""MaxText: its YAML files and scripts, and what its options mean here."""
