# Pretraining of the model in base/ on generated text.
# Launch:  torchrun --nproc_per_node=2 -m studies.base_model.pretrain \
#              studies/base_model/config/pretraining.py
# The same command continues an interrupted run.

model = "4x96"  # layers x width of a new model with random weights
device = "cpu"
num_threads = 1
max_context_tokens = 1024  # a dialogue ends when its next prompt does not fit into this limit
micro_batch_tokens = 1024  # a pack (one forward pass) is full when it has this many tokens
sft_batch_size = 2  # packs per training step, summed over all processes
sft_steps = 24_800
sft_lr = 2.5e-3
sft_muon_lr = 0.005
weight_decay = 0.0
save_every = 300
eval_every = 6200  # steps between probes; each probed model is saved as out/pretraining/model-STEP
