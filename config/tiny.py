# Overlay behind any experiment: its laptop version, on one CPU core, without a download, from the project's own base
# model (docs/base.md). Groups, filter, losses: those of the experiment.

model = "base"
engine = "torch"  # in this process; --engine=vllm works as well
device = "cpu"
num_threads = (
    1  # one thread adds up numbers in one order: two runs with one seed agree to the last bit
)
max_response_tokens = 64
max_context_tokens = 1024
micro_batch_tokens = 4096
eval_every = 20

# a small model takes larger steps; chosen on the held-out prompts (--eval_split=heldout)
learning_rate = 1e-4  # thoughts stay true; with 2e-4 a quarter of them does not
critic_lr = 1e-3
adam_beta2 = 0.99
weight_decay = 0.0
sft_lr = 1e-3
sft_muon_lr = 2e-3
