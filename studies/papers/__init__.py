"""Our results for figures and tables of the two papers that this project implements."""
