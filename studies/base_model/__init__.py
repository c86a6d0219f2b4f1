"""The tiny base model: its corpus, its pretraining and what it can do."""
