"""A family that nobody has described: what can be inferred is marked, the rest is listed."""

import torch
from torch import nn

from drillcore.weights import assign
from drillcore.weights.layout import read_weight
from tests.weights.tiny import StateSource


class Odd(nn.Module):
    """A decoder with words of its own: transposed storage, a fused matrix, a convolution, experts."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_emb = nn.Embedding(20, 16)
        self.stages = nn.ModuleList(self._stage() for _ in range(3))
        self.head = nn.Linear(16, 20, bias=False)

    @staticmethod
    def _stage() -> nn.ModuleDict:
        mix = nn.ModuleDict({"wq": nn.Linear(16, 24), "wk": nn.Linear(16, 12), "wv": nn.Linear(16, 12)})
        mix["wo"] = nn.Linear(24, 16)
        cross = nn.ModuleDict({"wq": nn.Linear(16, 24), "wo": nn.Linear(24, 16)})
        experts = nn.ModuleList(
            nn.ModuleDict({"w_up": nn.Linear(16, 40), "w_down": nn.Linear(40, 16)}) for _ in range(2)
        )
        odd = nn.ModuleDict({"wqkv": nn.Linear(16, 48), "smear": nn.Conv1d(16, 16, 3)})
        return nn.ModuleDict({"mix": mix, "cross_mix": cross, "experts": experts, "odd": odd})


def _state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    state = {name: t.detach() for name, t in Odd().state_dict().items()}
    for layer in range(3):  # as a Conv1D would store it
        state[f"stages.{layer}.mix.wk.weight"] = state[f"stages.{layer}.mix.wk.weight"].T.contiguous()
    return state


def test_roles_are_inferred_and_marked() -> None:
    found = assign(StateSource(_state()))
    assert (found.census.family, found.census.decided_by) == ("unknown", "inferred")
    kinds = {kind for _, kind in found.kinds}
    assert kinds == {"embed", "unembed", "q", "k", "v", "o", "cross_q", "cross_o", "up", "down"}
    assert [w.role.layer for w in found.of("q")] == [0, 1, 2]
    assert [(w.role.layer, w.role.expert) for w in found.of("up")] == [(n, e) for n in range(3) for e in range(2)]
    used = [e for e in found.census.entries if e.state == "used"]
    assert used
    assert all("inferred" in e.detail for e in used)


def test_each_inferred_matrix_is_out_by_in() -> None:
    state = _state()
    source = StateSource(state)
    shapes = {"embed": (16, 20), "unembed": (20, 16), "q": (24, 16), "k": (12, 16), "o": (16, 24), "down": (16, 40)}
    for w in assign(source).weights:
        assert read_weight(source, w).shape == w.shape
        assert w.shape == shapes.get(w.role.kind, w.shape)
    (k, *_) = assign(source).of("k")
    assert torch.equal(read_weight(source, k), state[k.tensor].T)


def test_what_is_not_recognised_is_listed() -> None:
    found = assign(StateSource(_state()))
    unknown = {e.tensor for e in found.census.entries if e.state == "unknown"}
    for layer in range(3):
        assert f"stages.{layer}.odd.wqkv.weight" in unknown  # fused: its layout cannot be guessed
        assert f"stages.{layer}.odd.smear.weight" in unknown
        assert f"stages.{layer}.mix.wq.bias" in unknown
    assert all("--roles" in e.remedy for e in found.census.entries if e.state == "unknown")
    assert sorted(e.tensor for e in found.census.entries) == sorted(_state())


def test_two_towers_are_told_apart() -> None:
    state = {
        f"{tower}.net.{layer}.{word}.weight": torch.randn(16, 16)
        for tower in ("left", "right")
        for layer in range(2)
        for word in ("wq", "wk", "wv")
    }
    found = assign(StateSource(state))
    assert found.census.decided_by == "inferred"
    assert {w.role.stack for w in found.weights} == {"left", "right"}
    assert [w.role.layer for w in found.of("q", "left")] == [0, 1]


def test_nothing_recognised_leaves_everything_unknown() -> None:
    found = assign(
        StateSource({"a.b": torch.randn(4, 4), "c": torch.randn(3), "steps": torch.ones(1, dtype=torch.int64)})
    )
    assert found.weights == ()
    assert {e.tensor: e.state for e in found.census.entries} == {
        "a.b": "unknown",
        "c": "unknown",
        "steps": "recognised",
    }
