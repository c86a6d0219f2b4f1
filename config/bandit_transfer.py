# Overlay behind bandit_ppo.py, as in table 4 of the paper: learn which of two jobs pays, then choose between two others
# (Bandit-Rev). In both pairs the job that sounds safe is the risky arm.

env = "bandit:pair=engineer"
eval_env = "bandit:pair=engineer + bandit:pair=trader"
