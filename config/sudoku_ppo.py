# StarPO-S with PPO on Sudoku: 4x4 cells, six of them empty. The tiny model (config/models/tiny.py)
# has never seen Sudoku, so it needs SFT before RL (docs/environments.md, "Rubik and Sudoku").
# Launch:  torchrun --standalone train.py config/sudoku_ppo.py

env = "sudoku:empty=6"
estimator = "gae"
