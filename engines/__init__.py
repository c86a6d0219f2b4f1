"""The engines behind the interface of engine.py: vLLM, and plain PyTorch with a KV cache."""
