"""Figures of a document as Vega-Lite, which the page draws in the browser."""
