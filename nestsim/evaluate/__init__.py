"""One plan on one cluster: priced, replayed, judged, and what it costs."""
