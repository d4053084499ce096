"""Certificates of searches: what closed what, written down and checked again."""
