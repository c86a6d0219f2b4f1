"""Environments that are imported when a run names them, and planners of the grid worlds."""
