# Overlay: the bandit of table 4: learn which of two jobs pays, then choose between two others (Bandit-Rev).
# Launch:  torchrun --standalone train.py config/bandit_ppo.py config/bandit_transfer.py --out_dir=out/transfer
# In both pairs the job that sounds safe is the risky arm.

env = "bandit:pair=engineer"
eval_env = "bandit:pair=engineer + bandit:pair=trader"
