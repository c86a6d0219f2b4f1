"""Arithmetic with 16-bit numbers: bfloat16 and float16."""

import torch
from torch import Tensor


def product_in_float32(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product a @ b in float32, also of 16-bit factors.

    A 16-bit result would round logits near 16 to multiples of 1/8 in bfloat16, of 1/64 in float16.

    Args: a (N, K) and b (K, M) of one type.
    Returns: (N, M) float32.
    """
    if a.dtype == torch.float32:
        return a @ b
    if a.device.type == "cuda":  # reads 16 bits and adds up in float32
        return torch.mm(a, b, out_dtype=torch.float32)
    with torch.autocast(a.device.type, enabled=False):  # torch.mm has no out_dtype on a CPU
        return a.float() @ b.float()
