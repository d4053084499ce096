"""Answers about memory alone: what a plan holds, and what would fit; no network."""
