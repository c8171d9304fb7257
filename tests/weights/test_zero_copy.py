"""What is read from a mapped file costs no memory of the process: pages of the file are not anonymous memory."""

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from drillcore.weights import open_source

STATUS = Path("/proc/self/status")
MEGABYTES = 24
pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="the kernel does not tell anonymous from mapped memory")


def anonymous_megabytes() -> float:
    gc.collect()
    return int(STATUS.read_text().split("RssAnon:")[1].split()[0]) / 1024


def write_safetensors(path: Path, tensor: torch.Tensor) -> None:
    save_file({"w.weight": tensor}, path)


def write_torch(path: Path, tensor: torch.Tensor) -> None:
    torch.save({"w.weight": tensor}, path)


def write_gguf(path: Path, tensor: torch.Tensor) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "qwen2")
    kind = gguf.GGMLQuantizationType.BF16 if tensor.dtype == torch.bfloat16 else None
    data = tensor.view(torch.uint8).numpy() if kind else tensor.numpy()
    writer.add_tensor("w.weight", np.ascontiguousarray(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "write"), [("m.safetensors", write_safetensors), ("m.bin", write_torch), ("m.gguf", write_gguf)]
)
def test_read_does_not_copy(
    tmp_path: Path, name: str, write: Callable[[Path, torch.Tensor], None], dtype: torch.dtype
) -> None:
    rows = MEGABYTES * 2**20 // 1024 // dtype.itemsize
    write(tmp_path / name, torch.ones(rows, 1024, dtype=dtype))
    source = open_source(tmp_path / name)
    before = anonymous_megabytes()
    whole, part = source.read("w.weight"), source.read("w.weight", slice(rows // 4, rows // 2))
    assert whole.amin() == part.amax() == 1  # type: ignore[union-attr]  # every page was touched
    assert anonymous_megabytes() - before < MEGABYTES / 4
