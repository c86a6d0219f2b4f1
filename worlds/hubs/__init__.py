"""Adapters to collections of environments: GEM, reasoning-gym and gymnasium."""
