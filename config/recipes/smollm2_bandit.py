# Extra settings for smollm2.py with bandit_grpo.py or bandit_ppo.py: no filter, and one optimizer
# step per iteration (studies/real_model/README.md).
# Example:
#   python train.py config/bandit_grpo.py config/models/smollm2.py config/recipes/smollm2_bandit.py

num_groups = 4
group_size = 16
filter_keep = 1.0
clip_high = 0.2  # clip_low is 0.2, too, so the clip range is symmetric
batch_size = 64
num_iterations = 60
early_stop = True  # stop if rewards within groups hardly differ, or success stays near 0
eval_every = 5
eval_size = 64
save_every = 10
