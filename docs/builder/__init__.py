"""What the site of the documentation is made of beside its pages.

References are made from the code whenever the site is built, so that they cannot go
stale: `settings` from the models of a scenario, `commands` from the command line.
"""
