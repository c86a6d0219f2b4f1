"""Environments that are imported only when a run names them, and what the grid worlds build on."""
