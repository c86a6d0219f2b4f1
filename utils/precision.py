"""Arithmetic with 16-bit numbers: bfloat16 and float16."""

import math

import torch
from torch import Tensor


def product_in_float32(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product a @ b in float32, for float32 or 16-bit factors.

    Logits are such a product. A bfloat16 result would round logits near 16 to multiples of 1/8, and
    a float16 result would round them to multiples of 1/64.

    Args:
        a: (N, K).
        b: (K, M), of the same type as a. On a CPU, b may also be float32.
    Returns: (N, M) float32.
    """
    if a.dtype == torch.float32:
        return a @ b
    if a.device.type == "cuda":  # torch.mm takes 16-bit factors and sums in float32
        return torch.mm(a, b, out_dtype=torch.float32)
    with torch.autocast(a.device.type, enabled=False):  # torch.mm has no out_dtype on a CPU
        return a.float() @ b.float()


def round_at_random(values: Tensor, dtype: torch.dtype, seed: int) -> Tensor:
    """Round to a 16-bit type, up or down at random, so that the expected value is exact.

    With rounding to the nearest, a weight would lose every change that is smaller than half the gap
    between neighbouring 16-bit numbers. In bfloat16, this gap is 1.2e-4 for a weight near 0.03.
    Values that the 16-bit type represents exactly do not change.

    Args:
        values: float32.
        dtype: bfloat16 or float16. In float16, the expected value is not exact for numbers within
            6e-5 of 0, because the conversion rounds them to the nearest float16 number.
        seed: gives each element of `values` a random threshold. The bits of an element that do not
            fit into `dtype` are read as an integer. If this integer reaches the threshold, the
            element is rounded away from 0, else towards 0. Calls with the same seed have the same
            thresholds, so when an element grows, its rounded value never falls.
    """
    num_dropped = 23 + round(math.log2(torch.finfo(dtype).eps))  # bits: 16 (bfloat16), 13 (float16)
    generator = torch.Generator(values.device).manual_seed(seed)
    noise = torch.randint(
        2**num_dropped,
        values.shape,
        generator=generator,
        device=values.device,
        dtype=torch.int32,
    )
    # The bits of a float32 number form an integer that grows with the absolute value of the number.
    # So adding noise to this integer moves the number away from 0, and clearing the low bits of the
    # integer moves the number towards 0.
    bits = values.contiguous().view(torch.int32) + noise
    return (bits >> num_dropped << num_dropped).view(torch.float32).to(dtype)
