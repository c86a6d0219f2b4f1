# Extra settings for any experiment: Qwen3-0.6B, which thinks at length before it answers.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/models/qwen3.py

model = "Qwen/Qwen3-0.6B"
max_response_tokens = 2048  # long, because a reply that is cut off in its thought has no answer
max_context_tokens = 8192  # the thoughts of all turns stay in the context
micro_batch_tokens = 8192  # a token has 2.1 MB of activations, so a micro-batch takes 17 GB
max_running = 32  # a token has 115 kB of keys and values, so vLLM's cache takes 31 GB
temperature = 0.6  # recommended by Qwen for thinking
eval_temperature = 0.6  # Qwen warns that greedy decoding can repeat text endlessly
