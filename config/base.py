# Pretraining of the tiny base model on generated text; the folder base/ came from this.
# Launch:  torchrun --nproc_per_node=2 sft.py config/base.py        (interrupted, it continues from out/base)

model = "tiny"
tiny_shape = "4x96"
device = "cpu"
num_threads = 1
max_context_tokens = 1024  # of a document
micro_batch_tokens = 1024  # of a pack: documents of one environment under one system prompt
sft_batch_size = 2  # packs per step, one for each process
sft_steps = 24_800
sft_lr = 2.5e-3
sft_muon_lr = 0.005
save_every = 300
eval_every = 3100  # steps between probes; the model of each is kept as out/base/model-STEP
