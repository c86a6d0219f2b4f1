"""Scripts around training. Run one from the root of the repository with `python -m tools.NAME`."""
