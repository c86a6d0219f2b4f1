"""Environments beyond the Bandit and the grids: one file each, imported only when a run names it."""
