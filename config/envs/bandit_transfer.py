# Extra settings for bandit_ppo.py: training on one pair of jobs. Evaluation uses this pair and
# another pair (Bandit-Rev), as in table 4 of the StarPO paper.
# Example:  torchrun --standalone train.py config/bandit_ppo.py config/envs/bandit_transfer.py

env = "bandit:pair=engineer"
eval_env = "bandit:pair=engineer + bandit:pair=trader"
