"""Scripts around training, and modules that the scripts import.

Run a script from the root of the repository with `python -m tools.NAME`.
"""
