# Overlay: the laptop version of any experiment, on one CPU core and without a download.
# Launch:  torchrun --standalone train.py config/frozenlake_ppo.py config/tiny.py
# It starts from random weights, so it imitates demonstrations first (sft_*). Groups, filter, losses: of the experiment.

model = "tiny"
engine = "torch"  # in this process; --engine=vllm works as well
device = "cpu"
num_threads = 1  # one thread adds up numbers in one order: two runs with one seed agree to the last bit
observation = "relations"
max_response_tokens = 40
max_context_tokens = 768
micro_batch_tokens = 4096
eval_every = 20

# a small model takes larger steps; chosen on the held-out prompts (--eval_split=heldout)
learning_rate = 2e-4
critic_lr = 1e-3
adam_beta2 = 0.99
weight_decay = 0.0

sft_batch_size = 8
sft_steps = 360
sft_noisy_steps = 60
sft_lr = 1.2e-2
sft_muon_lr = 0.02
sft_demos = 2048
