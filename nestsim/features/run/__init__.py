"""What a run found, why not another plan, what differs, and what it costs."""
