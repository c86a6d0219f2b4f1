# Extra settings for any experiment: the tiny model in base/, on one CPU core. The model
# needs no download (studies/base_model/README.md).
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/models/tiny.py

model = "tiny"
engine = "torch"  # plain PyTorch instead of vLLM
device = "cpu"
num_threads = 1  # makes runs repeatable to the last bit
max_response_tokens = 64
max_context_tokens = 1024
micro_batch_tokens = 4096
eval_every = 20
save_every = 10

# A small model can take larger optimizer steps.
learning_rate = 1e-4
critic_lr = 1e-3
adam_beta2 = 0.99
weight_decay = 0.0
sft_lr = 1e-3
sft_muon_lr = 2e-3
