# Overlay behind tiny.py: text worlds, whose words the base has never seen: SFT first (docs/results/practitioner.md).

think = False  # the reply is the command, as in arXiv 2510.01132
max_response_tokens = 32
max_context_tokens = 2048
max_turns = actions_per_traj = 8  # twice the shortest quest
eval_size = 100
eval_every = 0
sft_lr = 3e-3
sft_muon_lr = 1e-2

num_iterations = 40
group_size = 8
filter_keep = 0.5
batch_size = 16
num_epochs = 2  # four optimizer steps on 32 of 64 trajectories
learning_rate = 3e-4
turn_lam = 0.9
