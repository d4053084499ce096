"""Plan distributed training, replay it link by link, and report it."""
