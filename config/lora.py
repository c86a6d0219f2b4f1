# Overlay: LoRA on all linear layers of policy and critic, with the rank of the paper (arXiv 2504.20073).
# Launch:  torchrun --standalone train.py config/frozenlake_ppo.py config/lora.py --out_dir=out/lora

lora_rank = 64  # alpha is the same

# few weights that start at zero take larger steps
learning_rate = 1e-5
critic_lr = 1e-4
