"""A plan put into the launch file that somebody has: only what differs is changed."""
