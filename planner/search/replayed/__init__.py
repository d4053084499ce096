"""The plan that replays fastest among those that can be launched, with proof."""
