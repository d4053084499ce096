"""Figures of a document as one static picture, drawn with seaborn on matplotlib."""
