"""The parts of tools/view.py."""
