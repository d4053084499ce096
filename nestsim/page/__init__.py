"""Results as one HTML file: parts, figures, and what each kind of result shows."""
