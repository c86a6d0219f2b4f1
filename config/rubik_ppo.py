# StarPO-S with PPO on Rubik: a 2x2 cube, turned one to three times. Start from SFT
# (docs/environments.md).
# Launch:  torchrun --standalone train.py config/rubik_ppo.py

env = "rubik:scramble=3"
estimator = "gae"
