"""Models traced with torch.fx on fake tensors, as graphs of operators."""
