"""Networks by kind: trees, tori, custom ones; their routes, and detours."""
