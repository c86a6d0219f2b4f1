"""A pretrained language model, SmolLM2-135M, trained on a CPU."""
