# Overlay behind any experiment: LoRA on all linear layers of policy and critic, with the rank of the paper.

lora_rank = 64  # alpha is the same
learning_rate = 1e-5  # few weights that start at zero take larger steps
critic_lr = 1e-4
