"""Plans that are given: read, checked, built, written."""
