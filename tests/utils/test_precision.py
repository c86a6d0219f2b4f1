"""Tests of utils/precision.py: stochastic rounding, and products in float32."""

import pytest
import torch

from utils.precision import product_in_float32, round_at_random

TYPES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", TYPES)
def test_products_of_16_bit_factors_are_not_rounded_to_16_bits(dtype):
    """In both 16-bit formats, the entry 1 + 2^-11 of the product would be rounded to 1."""
    a = torch.tensor([[1.0, 2.0**-11]], dtype=dtype)
    b = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=dtype)
    assert product_in_float32(a, b).tolist() == [[1.0, 1.0 + 2.0**-11]]
    with torch.autocast("cpu", torch.bfloat16):
        assert product_in_float32(a, b).tolist() == [[1.0, 1.0 + 2.0**-11]]


def test_a_product_of_float32_is_the_usual_one():
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    assert torch.equal(product_in_float32(a, b), a @ b)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_quarter_of_a_step_moves_a_quarter_of_the_numbers(dtype, sign):
    step = torch.finfo(dtype).eps
    values = torch.full((100_000,), sign * (1 + step / 4))
    rounded = round_at_random(values, dtype, 3).float()
    assert rounded.unique().tolist() == sorted([sign, sign * (1 + step)])
    share = (rounded != sign).float().mean()
    assert share == pytest.approx(0.25, abs=0.01)  # 0.01 is 7 standard deviations
    assert torch.equal(values.to(dtype).float().abs(), torch.ones(100_000))


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_of_the_type_stay(dtype):
    numbers = torch.randn(1000).to(dtype)
    special = torch.tensor([0.0, -0.0, 1.0, torch.finfo(dtype).max, torch.inf, -torch.inf])
    for values in (numbers, special.to(dtype)):
        assert torch.equal(round_at_random(values.float(), dtype, 0), values)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_noise_depends_on_the_seed_only(dtype):
    values = torch.randn(50, 40)
    torch.manual_seed(0)
    first = round_at_random(values, dtype, 5)
    torch.manual_seed(1)
    assert torch.equal(first, round_at_random(values, dtype, 5))
    assert not torch.equal(first, round_at_random(values, dtype, 6))
    assert torch.equal(first.T, round_at_random(values, dtype, 5).T)


def test_a_number_that_grows_is_never_rounded_down_again():
    start = torch.rand(1000) + 1
    before = round_at_random(start, torch.bfloat16, 5)
    for _ in range(20):
        start += 1e-3
        after = round_at_random(start, torch.bfloat16, 5)
        assert (after >= before).all()
        before = after
