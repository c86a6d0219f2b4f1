"""Environments, imported when --env names them, and planners for FrozenLake and Sokoban."""
