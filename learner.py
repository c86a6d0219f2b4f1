"""The learner: policy, critic, their optimizers, and the frozen reference model of the KL term."""

from configurator import CRITIC_ESTIMATORS, Config, UserError

import copy

import torch
from torch import Tensor
from tqdm import tqdm

import parallel
from dialogue import Chat
from engine import Engine, make_engine
from model import (
    Critic,
    Policy,
    add_lora,
    compile_blocks,
    describe_trained,
    load_model,
    pick_dtype,
    trainable_parameters,
)

# The first loss scale for float16, as in torch.amp.GradScaler. Gradients are small because the loss
# is divided by the number of response tokens in a mini-batch, about 1e5. Without the scale, float16
# would round gradients below 3e-8 to 0.
FIRST_LOSS_SCALE = 2.0**16


class Learner:
    """Holds policy, critic, their optimizers, and the frozen reference model (if kl_coef > 0)."""

    def __init__(self, config: Config, model, tokenizer, ref_model=None):
        self.config = config
        self.tokenizer = tokenizer
        self.device = model.device
        self.dtype = pick_dtype(config.dtype, model.device)
        self.step = 0  # finished iterations
        # The number of optimizer steps skipped since the last step that was taken. A skipped step
        # that only lowers the loss scale of float16 does not count.
        self.bad_steps = 0
        # what an estimator keeps between iterations: numbers, texts, lists, dicts (saved as JSON)
        self.estimator_state: dict = {}
        # multiplies the loss, and divides the gradients after backward()
        self.loss_scale = FIRST_LOSS_SCALE if self.dtype == torch.float16 else 1.0
        self.mesh = parallel.make_mesh(self.device)
        if config.lora_rank:
            # Add LoRA before the critic copies the model, so that the critic has adapters, too.
            add_lora(model, config.lora_rank, config.seed)
        critic = None
        if config.estimator in CRITIC_ESTIMATORS:
            critic = Critic(copy.deepcopy(model.model)).to(self.device)
        self.policy = self._shard(Policy(model), model.model)
        self.critic = self._shard(critic, critic.backbone) if critic else None
        self.ref = None
        if ref_model:
            self.ref = self._shard(Policy(ref_model).requires_grad_(False), ref_model.model)

        self.modules = {"policy": self.policy}
        self.optimizers = {"policy": self._adamw(self.policy, config.learning_rate)}
        if self.critic:
            self.modules["critic"] = self.critic
            self.optimizers["critic"] = self._adamw(self.critic, config.critic_lr)

    def _shard(self, module, backbone):
        if self.config.compile:
            compile_blocks(backbone.layers)
        return parallel.shard(module, backbone.layers, self.mesh, self.dtype)

    def _adamw(self, module, learning_rate: float) -> torch.optim.AdamW:
        return torch.optim.AdamW(
            trainable_parameters(module).values(),
            lr=learning_rate,
            betas=(self.config.adam_beta1, self.config.adam_beta2),
            eps=self.config.adam_eps,
            weight_decay=self.config.weight_decay,
            fused=self.device.type == "cuda",
        )

    def schedule_learning_rates(self) -> dict[str, float]:
        """Set the learning rates of the current iteration.

        Each rate falls linearly from its first value towards `final_lr` times its first value.
        Returns: a dict that maps learning_rate and, with a critic, critic_lr to their rates."""
        progress = self.step / self.config.num_iterations
        factor = 1 - (1 - self.config.final_lr) * progress
        settings = {"policy": "learning_rate", "critic": "critic_lr"}
        rates = {}
        for name, optimizer in self.optimizers.items():
            optimizer.param_groups[0]["lr"] = factor * optimizer.defaults["lr"]
            rates[settings[name]] = optimizer.param_groups[0]["lr"]
        return rates

    def clip_gradients(self) -> dict[str, Tensor]:
        """Divide the gradients by the loss scale, and clip their norms.

        Returns: a dict that maps the name of a module to its gradient norm before clipping."""
        norms = {}
        for name, module in self.modules.items():
            if self.loss_scale != 1:
                for parameter in trainable_parameters(module).values():
                    parameter.grad.div_(self.loss_scale)
            norm = torch.nn.utils.clip_grad_norm_(module.parameters(), self.config.grad_clip)
            norms[name] = parallel.full_tensor(norm)
        return norms

    def handle_skipped_step(self, metrics_are_finite: bool) -> None:
        """Handle an optimizer step that is skipped because a metric or the gradient is not finite.

        If the metrics are finite and the loss scale is above 1, the scaled gradient was too large
        for float16, so the scale is halved. Any other skipped step counts as bad.

        Raises: UserError after max_bad_steps bad steps in a row."""
        iteration = self.step + 1
        if metrics_are_finite and self.loss_scale > 1:
            self.loss_scale /= 2
            tqdm.write(
                f"iteration {iteration}: the gradient is too large for float16; optimizer step "
                f"skipped and loss scale lowered to {self.loss_scale:g}"
            )
            return
        self.bad_steps += 1
        tqdm.write(
            f"iteration {iteration}: a loss, a metric or the gradient is not finite; optimizer "
            "step skipped"
        )
        if self.bad_steps >= self.config.max_bad_steps:
            raise UserError(
                f"a loss, a metric or the gradient was not finite in {self.bad_steps} optimizer "
                f"steps in a row (iteration {iteration}); lower learning_rate or critic_lr, and "
                "start with another --out_dir"
            )


def build_learner(config: Config, device: torch.device) -> tuple[Learner, Engine, Chat]:
    """Build the learner, the engine that samples for it, and the `Chat` of its tokenizer."""
    model, tokenizer = load_model(config.model, device=device)
    ref_model = None
    if config.kl_coef:
        ref_model, _ = load_model(config.model, device=device)
    chat = Chat(tokenizer)
    # The torch engine copies the whole model, so make the engine before FSDP2 shards the model.
    engine = make_engine(config, model, chat)
    learner = Learner(config, model, tokenizer, ref_model)
    if parallel.world_size() > 1:
        sizes = zip(learner.mesh.mesh_dim_names, learner.mesh.shape, strict=True)
        mesh = ", ".join(f"{name}={size}" for name, size in sizes)
        print(f"{parallel.world_size()} ranks as {mesh}", flush=True)
    for name, module in learner.modules.items():
        print(f"{name}: {describe_trained(module)}", flush=True)
    return learner, engine, chat
