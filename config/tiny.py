# Overlay: the laptop version of any experiment, on one CPU core and without a download.
# Launch:  torchrun --standalone train.py config/frozenlake_ppo.py config/tiny.py
#
# The model starts from random weights, so it first imitates demonstrations (sft_*) until its replies have the right
# format, and is then trained by StarPO as usual. The groups, the filter and the losses are those of the experiment.

model = "tiny"
device = "cpu"
num_threads = 1  # one thread adds up numbers in one order: two runs with one seed agree to the last bit

# short observations and replies
observation = "relations"
max_response_tokens = 40
max_context_tokens = 768
micro_batch_tokens = 4096

# a small model takes larger steps
learning_rate = 3e-4
critic_lr = 1e-3
adam_beta2 = 0.99
weight_decay = 0.0

# supervised warm start
sft_steps = 300
sft_noisy_steps = 60
sft_lr = 4e-3
sft_muon_lr = 0.02
sft_demos = 2048
