# StarPO-S with PPO on Sudoku: 4x4 cells, six of them empty. RL needs a model that SFT has trained
# (docs/environments.md, "Rubik and Sudoku").
# Launch:  torchrun --standalone train.py config/sudoku_ppo.py

env = "sudoku:empty=6"
estimator = "gae"
