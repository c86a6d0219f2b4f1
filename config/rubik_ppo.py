# StarPO-S with PPO on Rubik: a 2x2x2 cube, scrambled by one to three turns of its faces. The
# tiny model (config/models/tiny.py) has never seen Rubik, so it needs SFT before RL
# (docs/environments.md, "Rubik and Sudoku").
# Launch:  torchrun --standalone train.py config/rubik_ppo.py

env = "rubik:scramble=3"
estimator = "gae"
