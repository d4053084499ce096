"""What nestsim answers, a folder each: its job, its record, what it says."""
