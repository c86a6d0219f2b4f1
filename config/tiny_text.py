# Overlay behind tiny.py: text worlds for the tiny base model, which has never seen their words and needs SFT first.
# Launch:  python sft.py config/quest_ppo.py config/tiny.py config/tiny_text.py --sft_steps=120 --out_dir=out/quest_sft
#          then train.py with the same files, --model=out/quest_sft/model --out_dir=out/quest

think = False  # the reply is the command, as in arXiv 2510.01132
max_response_tokens = 32
max_context_tokens = 2048
max_turns = actions_per_traj = 8  # twice the shortest quest
eval_size = 100
eval_every = 0
num_iterations = 30
sft_lr = 3e-3
sft_muon_lr = 1e-2
