"""How a matrix lies in its tensor: fused rows, transposed storage, stacked experts."""

from dataclasses import replace
from math import prod

from torch import Tensor

from drillcore.linalg.factored import Matrix, Product
from drillcore.weights.role import Norm, Role, Split, Weight
from drillcore.weights.source import Config, InputError, Source

# The same number under the names that families give it; the first found wins.
_ALIASES = {
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "kv_n_heads", "n_head_kv"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim", "n_embed"),
    "head_dim": ("head_dim", "d_kv", "attention_head_size", "kv_channels"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
}


class NeedsConfig(Exception):  # noqa: N818 - a signal to the census, not an error of the user
    """A fused matrix cannot be split without this number from the configuration."""


def number(config: Config, key: str) -> int | None:
    """A positive number of the configuration by our word or by its own name; None where it is not given or null."""
    for name in _ALIASES.get(key, (key,)):
        value = config.get(name)
        if isinstance(value, int) and value > 0 and not isinstance(value, bool):
            return value
    attention = config.get("attn_config")
    return number(attention, key) if isinstance(attention, dict) else None


def require(config: Config, key: str) -> int:
    """Like `number`, but the number is needed.

    Raises:
        NeedsConfig: it is not in the configuration.
    """
    value = number(config, key)
    if value is None:
        raise NeedsConfig(_ALIASES.get(key, (key,))[0])
    return value


def head_dim(config: Config) -> int:
    """Width of one attention head, given or hidden // heads."""
    given = number(config, "head_dim")
    return given if given is not None else require(config, "hidden") // require(config, "heads")


def splits(layout: str, sizes: list[int], out: int, *, groups: int = 1) -> list[Split]:
    """Splits of a fused out axis: parts of `sizes` rows inside each of `groups` periods.

    Layouts "contiguous" and "equal" have one group; "per_head", "grouped" and "interleaved" repeat.

    Raises:
        InputError: the sizes do not add up to the rows of the tensor (a wrong configuration or layout).
    """
    period = sum(sizes)
    if groups * period != out:
        parts = " + ".join(map(str, sizes))
        raise InputError(
            f"the {layout} layout gives {groups} × ({parts}) = {groups * period} rows, the tensor has {out}",
            remedy="check config.json against the weights, or describe the layout with --roles FILE.toml",
        )
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [Split(groups, period, a, a + size) for a, size in zip(starts, sizes, strict=True)]


def as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor that is not stacked.

    A leading dimension of one (the position embeddings of ViT) is dropped; the kernel of a convolution that reads
    patches is flattened.
    """
    if len(shape) == 3 and shape[0] == 1:
        return shape[1], shape[2]
    return shape[0], prod(shape[1:])


def take(matrix: Matrix, role: Role) -> Matrix:
    """Cut the matrix of `role` (out × in) out of its whole tensor."""
    if isinstance(matrix, Product):
        turned: Matrix = matrix if role.orientation == "out_in" else matrix.T
        return turned if role.split is None else Product(_rows(turned.left, role.split), turned.right)  # type: ignore[union-attr]
    if role.stacked and role.expert is not None:
        matrix = matrix[role.expert]
    if matrix.ndim > 2:
        matrix = matrix.reshape(as_matrix(tuple(matrix.shape)))
    if role.orientation == "in_out":
        matrix = matrix.T
    return matrix if role.split is None else _rows(matrix, role.split)


def read_weight(source: Source, weight: Weight) -> Matrix:
    """Read one matrix (out × in) in its stored dtype."""
    role = weight.role
    if role.stacked and role.expert is not None:
        whole = source.read(weight.tensor, slice(role.expert, role.expert + 1))
        return take(whole[0], replace(role, stacked=False))  # type: ignore[index]
    return take(source.read(weight.tensor), role)


def read_bias(source: Source, weight: Weight) -> Tensor | None:
    """The bias (out) that is added to the product with a matrix; None where it has none.

    Only of matrices that stand alone in their tensor or are split from it: experts that are stacked have none here.
    """
    name = f"{weight.tensor.removesuffix('.weight')}.bias"
    if weight.role.stacked or not weight.tensor.endswith(".weight") or name not in source.specs:
        return None
    bias = source.read(name)
    assert isinstance(bias, Tensor)
    split = weight.role.split
    return bias if split is None else _rows(bias[:, None], split)[:, 0]


def read_norm(source: Source, norm: Norm) -> tuple[Tensor, Tensor | None]:
    """Gain (as it acts: 1 + w where zero-centred) and shift of a norm, in float64."""
    gain = source.read(norm.tensor)
    shift = source.read(norm.bias) if norm.bias else None
    assert isinstance(gain, Tensor)
    assert shift is None or isinstance(shift, Tensor)
    return gain.double() + float(norm.zero_centered), None if shift is None else shift.double()


def _rows(matrix, split: Split):  # type: ignore[no-untyped-def]
    if split.groups == 1:
        return matrix[split.start : split.stop]
    grouped = matrix.unflatten(0, (split.groups, split.period))
    return grouped[:, split.start : split.stop].flatten(0, 1)
