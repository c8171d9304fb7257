"""Rounding of stored types against what the formats do to Gaussian numbers."""

from math import inf

import numpy as np
import pytest
import torch

from drillcore.linalg import leading_triplets
from drillcore.weights.rounding import rounding


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_blocks_of_integers_are_off_by_about_what_is_said(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType[name]
    x = np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)
    back = gguf.dequantize(gguf.quantize(x, kind), kind)
    error = float(np.sqrt(np.square(back - x).mean()))  # the numbers have the size 1
    assert rounding(name.lower()) / 4 < error <= rounding(name.lower())


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"])
def test_floats_are_off_by_at_most_what_is_said(name: str) -> None:
    x = torch.rand(100_000, generator=torch.Generator().manual_seed(0)) + 0.5
    error = ((x.to(getattr(torch, name)).float() - x).abs() / x).max()
    assert 0.8 * rounding(name) < float(error) <= rounding(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("q4_k", 2**-3), ("q5_k", 2**-4), ("q6_k", 2**-5), ("q8_0", 2**-7), ("iq3_xxs", 2**-2), ("q2_k", 0.5),
     ("mxfp4", 0.25), ("uint8", inf), ("something", inf)],
)  # fmt: skip
def test_other_types(name: str, expected: float) -> None:
    assert rounding(name) == expected


def test_with_unknown_rounding_nothing_is_identifiable() -> None:
    W = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    assert bool(leading_triplets(W, 1, key="known").identifiable[0])
    found = leading_triplets(W, 2, key="unknown", rounding=inf)
    assert found.bound.tolist() == [1.0, 1.0]
    assert not found.identifiable.any()
    assert found.subspace_bound == pytest.approx(2**0.5)
