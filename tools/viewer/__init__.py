"""The parts of tools/view.py, and screenshots of its page."""
