"""The engine that runs vLLM in this process."""

from configurator import Config, UserError

import logging
import math
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from engines.sample import Sample, Seed, failure_reason

VLLM_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


class VLLMEngine:
    """Runs vLLM 0.32 in this process. Each rank has an independent engine.

    `Engine` in engine.py describes the methods. On a GPU the environment variable
    VLLM_BATCH_INVARIANT=1 selects slower kernels whose rounding does not depend on the batch. The
    variable acts on the whole process, so the trainer uses these kernels, too.
    """

    def __init__(self, model: PreTrainedModel, config: Config, *, eos_id: int, dtype: torch.dtype):
        self.version: int | None = None
        self.dtype = dtype
        self.num_steps = 0
        self.eos_id = eos_id
        self.gives_logprobs = config.engine_gives_logprobs()
        is_cpu = model.device.type == "cpu"
        if is_cpu and os.environ.get("VLLM_BATCH_INVARIANT") == "1":
            raise UserError("VLLM_BATCH_INVARIANT=1 needs a GPU; unset it")
        if is_cpu:
            # The prefix cache holds only whole blocks of tokens. Most shared prefixes are shorter
            # than the default block of 128 tokens, so blocks are made smaller. On a CPU, a chunked
            # prefill of a request with a seed crashes vLLM, so chunks are switched off.
            device_options = dict(block_size=32, enforce_eager=True, enable_chunked_prefill=False)
        else:
            # gpu_memory_utilization is a share of the GPU memory. vLLM starts only if this share is
            # free. The size of the KV cache comes from kv_cache_memory_bytes, not from this share.
            device_options = dict(gpu_memory_utilization=0.1)
        for name, value in {**VLLM_ENVIRONMENT, "RANK": "0", "LOCAL_RANK": "0"}.items():
            os.environ.setdefault(name, value)
        _give_vllm_its_own_class(model)
        with _process_state_kept():
            from vllm import LLM
            from vllm.platforms import current_platform

            if current_platform.is_cpu() != is_cpu:
                raise ImportError(f"the installed vLLM is not for device {model.device.type!r}")
            if is_cpu:
                # The backend "eager" compiles nothing, so vLLM starts in seconds.
                current_platform.simple_compile_backend = "eager"
            self.llm = LLM(
                model=model.name_or_path,
                load_format="dummy",
                generation_config="vllm",
                dtype=str(dtype).removeprefix("torch."),
                hf_overrides={"head_dtype": "float32"},  # float32 logits, as in the trainer
                seed=config.seed + int(os.environ["RANK"]),
                distributed_executor_backend="external_launcher",
                max_model_len=config.max_context_tokens,
                max_num_seqs=config.max_running,
                max_num_batched_tokens=max(8192, config.max_context_tokens, config.max_running),
                kv_cache_memory_bytes=_cache_bytes(model, config, dtype),
                enable_prefix_caching=True,
                logprobs_mode="processed_logprobs",
                **device_options,
            )
        self.engine = self.llm.llm_engine
        logger = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
        logger.setLevel(logging.WARNING)
        logger.addFilter(_raise_if_not_loaded)

    @property
    def busy(self) -> bool:
        return self.engine.has_unfinished_requests()

    def add(
        self, key: int, ids: Sequence[int], *, max_tokens: int, temperature: float, seed: Seed
    ) -> None:
        """Request one response."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        random_bits = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
        # top_p, top_k and penalties are not set, so the log-probs are those of softmax(logits / T),
        # where T is the temperature.
        params = SamplingParams(
            temperature=temperature,
            max_tokens=max_tokens,
            seed=int(random_bits >> 1),  # the seed of a request must be below 2**63
            logprobs=0 if self.gives_logprobs else None,  # 0: only the sampled token's log-prob
            ignore_eos=True,
            flat_logprobs=True,
            detokenize=False,
            stop_token_ids=[self.eos_id],
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self.engine.add_request(str(key), tokens_input(list(ids)), params)

    def step(self) -> list[Sample]:
        """Make one forward for all running requests.

        Returns: the finished responses. Raises: UserError if vLLM fails."""
        self.num_steps += 1
        try:
            outputs = self.engine.step()
            finished = [(int(output.request_id), output.outputs[0]) for output in outputs]
        except Exception as error:  # any error of vLLM or CUDA, or a failed assertion
            raise UserError(f"vLLM failed while sampling {failure_reason(error)}") from error
        samples = []
        for key, response in finished:
            ids = list(response.token_ids)
            logprobs = [math.nan] * len(ids)
            if self.gives_logprobs:
                logprobs = list(response.logprobs.logprobs)
            samples.append(Sample(key, ids, logprobs))
        return samples

    def release(self, key: int) -> None:
        """Do nothing: other requests can already reuse the memory of a finished request."""

    def load(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Load new weights and reset the prefix cache.

        Raises: RuntimeError if a layer gets no weights, or if vLLM does not reset the cache."""
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        has_reset = self.llm.reset_prefix_cache()
        if not has_reset:  # without a reset, vLLM would use the old weights' keys and values
            raise RuntimeError(
                "vLLM did not reset its prefix cache: a trajectory is still under way"
            )
        self.version = version

    def close(self) -> None:
        """Shut vLLM down. This also destroys the process group of torch.distributed."""
        self.engine.engine_core.shutdown()


def _give_vllm_its_own_class(model: PreTrainedModel) -> None:
    """Register a subclass of the backbone's class in AutoModel, so vLLM changes only the subclass.

    vLLM has no code of its own for SmolLM3, so it takes the registered class from AutoModel and
    changes this class in place. The trainer would fail if vLLM changed the backbone's class.
    """
    backbone_class = type(model.model)
    name = backbone_class.__name__
    own_class = type(name, (backbone_class,), {"__module__": backbone_class.__module__})
    AutoModel.register(type(model.config), own_class, exist_ok=True)


def _cache_bytes(model: PreTrainedModel, config: Config, dtype: torch.dtype) -> int:
    """Bytes of a KV cache for max_running requests. A margin covers partly filled cache blocks."""
    num_tokens = (config.max_running + 1) * (config.max_context_tokens + 64)
    num_heads = model.config.num_hidden_layers * model.config.num_key_value_heads
    head_dim = model.model.layers[0].self_attn.head_dim
    return 2 * num_heads * head_dim * dtype.itemsize * num_tokens


@contextmanager
def _process_state_kept() -> Iterator[None]:
    """Restore what vLLM changes: random states, thread settings and the values of environment
    variables. Variables that vLLM adds are not removed.

    On a GPU vLLM sets torch to one CPU thread, unless OMP_NUM_THREADS is set. On a CPU vLLM
    replaces torch.set_num_threads.
    """
    set_num_threads = torch.set_num_threads
    num_threads = torch.get_num_threads()
    numpy_state = np.random.get_state()
    python_state = random.getstate()
    environment = dict(os.environ)
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        yield
    np.random.set_state(numpy_state)
    random.setstate(python_state)
    torch.set_num_threads = set_num_threads
    torch.set_num_threads(num_threads)
    os.environ.update(environment)  # on a CPU vLLM overwrites torchrun's LOCAL_WORLD_SIZE


def _raise_if_not_loaded(record: logging.LogRecord) -> bool:
    """A log filter that raises RuntimeError if a layer gets no weights.

    vLLM itself only logs a warning about this layer. The filter drops all other messages.
    """
    message = record.getMessage()
    has_failed = "Failed to load weights" in message
    if has_failed and "RotaryEmbedding" not in message:  # a rotary embedding has no weights
        raise RuntimeError(f"vLLM did not take all weights ({message})")
    return False
