# StarPO-S with PPO on Sudoku: 4x4 cells, six of them empty. Start from SFT (docs/environments.md).
# Launch:  torchrun --standalone train.py config/sudoku_ppo.py

env = "sudoku:empty=6"
estimator = "gae"
