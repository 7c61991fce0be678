import torch
from torch.nn import functional

from backend.compute.cpu.grouped_attention import attend


def test_attends_with_shared_keys_as_if_each_had_its_own():
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (
        torch.randn(2, heads, 5, 8, generator=generator, dtype=torch.float64) for heads in (4, 2, 2)
    )
    own = [one.repeat_interleave(2, dim=1) for one in (keys, values)]
    causal = torch.full((5, 5), float("-inf"), dtype=torch.float64).triu(1)
    expected = functional.scaled_dot_product_attention(queries, *own, attn_mask=causal, scale=0.3)
    for mask in (None, causal):
        found = attend(queries, keys, values, scale=0.3, mask=mask)
        torch.testing.assert_close(found, expected)
