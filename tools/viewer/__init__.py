"""The parts of tools/view.py, and the code that takes screenshots of its page."""
