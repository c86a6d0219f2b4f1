"""Environments, and planners for FrozenLake and Sokoban."""
