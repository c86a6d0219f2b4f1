# Extra settings for any experiment: LoRA adapters in policy and critic, on all linear layers of the
# transformer blocks. The StarPO paper uses the same rank.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/models/lora.py

lora_rank = 64  # alpha is 64, too
learning_rate = 1e-5  # ten times the default
critic_lr = 1e-4
