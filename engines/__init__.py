"""The two engines that implement `Engine` of engine.py: vLLM, and plain PyTorch with a KV cache."""
