# Overlay for frozenlake_grpo.py and smollm2.py: a small lake without slip, two turns of up to five
# moves, and no thoughts (studies/real_model/README.md).
# Example:
#   python train.py config/frozenlake_grpo.py config/models/smollm2.py config/models/smollm2_lake.py

env = "frozenlake:size=3,frozen_prob=0.9,success_rate=1.0"
max_turns = 2
think = False
max_response_tokens = 40
num_groups = 8
group_size = 8
filter_keep = 0.5  # StarPO-S: 32 of 64 trajectories, one optimizer step an iteration
batch_size = 32
num_iterations = 20
eval_every = 10
eval_size = 64
save_every = 10
