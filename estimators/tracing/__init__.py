"""Models traced on shapes, your own with torch.fx, as graphs of operators."""
