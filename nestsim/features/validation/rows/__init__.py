"""Published measurements as rows: reading them, and the job that a row ran."""
