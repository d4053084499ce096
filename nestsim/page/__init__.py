"""What runs say: timeline, devices, links, memory and causes of a replayed plan."""
