"""Train a pretrained language model, SmolLM2-135M."""
