"""Operators of a layer on the engines of one device, side by side where they can be."""
