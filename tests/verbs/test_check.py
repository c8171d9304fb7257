"""check from end to end: a user's file, a variant, a configuration; bugs found, bad input told."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch

import drillcore
from drillcore.measures.hamiltonian import Ascent
from drillcore.measures.stability_rules import LIMITS
from drillcore.models.blocks import VARIANTS
from drillcore.table import Table
from drillcore.verbs.check import Check, check
from drillcore.verbs.check_config import from_config
from drillcore.verbs.check_probes import outcome_row
from drillcore.verbs.check_target import load
from drillcore.weights import InputError

MINE = Path(__file__).parent / "blocks_of_mine.py"
EXAMPLE = Path(__file__).parents[2] / "docs" / "my_block.py"


@cache
def checked(name: str, width: int = 16, half_steps: int = 16) -> Check:
    target = f"{MINE}:{name}" if name[0].isupper() else name
    return check(target, width=width, half_steps=half_steps)


def values(found: Check, measure: str) -> list[float]:
    return found.rows.where(measure=measure).values()


def names(found: Check) -> list[str]:
    return [warning.name for warning in found.warnings]


def test_the_example_tells_the_norm_on_the_wrong_side() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 20
    right, wrong = (check(f"{EXAMPLE}:{name}", width=32) for name in ("Branch", "WrongSide"))
    assert (right.forward.name, right.backward_names) == ("bounded", ("scale-free",))
    assert (wrong.forward.name, wrong.backward_names) == ("threshold", ("explodes",))
    assert right.gain_budget == pytest.approx(48)
    assert wrong.gain_budget is None
    assert "grows exponentially" in names(wrong)
    assert {r.subset: r.kind for r in wrong.rows.where(measure="growth")}["as given"] == "polynomial"
    assert "grows exponentially" not in names(right)


def test_a_block_of_ones_own_is_read_without_its_names() -> None:
    found = checked("Sound")
    assert found.forward.name == "bounded"
    assert found.backward.name == "scale-free"
    assert not found.carried
    assert found.gain_budget == pytest.approx(16)  # two norms in each of 8 copies
    assert "gains are controls" in names(found)
    for row in found.rows:
        if row.measure.startswith("bound."):
            assert row.value <= row.high * (1 + 1e-6)


def test_a_multiplied_skip_path_explodes() -> None:
    found = checked("ExplodingSkip", half_steps=48)
    assert "carry-explodes" in found.backward_names
    assert values(found, "carry") == pytest.approx([1.4], abs=1e-3)
    assert found.unmet({"backward": "explodes"})


def test_a_gain_on_the_branch_makes_it_ill_posed() -> None:
    found = checked("ExplodingGain")
    assert found.forward.name == "ill-posed"
    assert found.as_json()["exponents"]["q_all"] == pytest.approx(3, abs=0.05)
    assert "LayerNorm" not in found.forward.reason
    assert "Llama" in found.same_class
    assert "decay" in found.practice


def test_the_zero_start_trap() -> None:
    """§2.8: at zero the norm's slope is γ/√ε ≈ 316, against 1/σ of the usual start."""
    found = checked("ZeroInit")
    assert "output norm starts on its ε" in names(found)
    assert "starts at zero" in names(found)
    assert values(found, "output_norm.variance") == [0]
    (ratio,) = values(found, "zero_start.gradient_ratio")
    assert 100 < ratio < 1000
    plain = checked("pre-gelu", 32)
    assert values(plain, "zero_start.gradient_ratio") == pytest.approx([1])


def test_one_linear_matrix_forms_continuity_and_drifts() -> None:
    """The linear residual net of arXiv 2605.04971: its gauge is exact, so nothing holds what has formed."""
    found = check(f"{MINE}:OneMatrix", width=16, dtype="float64")
    assert values(found, "symmetry.layer")[0] < 1e-12
    assert found.continuity.name == "forms, then drifts"
    assert checked("pre-gelu", 32).continuity.name == "forms and holds"


def test_inflation_is_what_tells_pre_from_peri() -> None:
    """Without it both look alike (§4.3): initialisation statistics alone do not separate them."""
    for name, inflated in (("pre-gelu", "exponential"), ("peri-gelu", "polynomial")):
        kinds = {r.subset: r.kind for r in checked(name, 32, 48).rows.where(measure="growth")}
        assert kinds == {"as given": "polynomial", "inflated": inflated, "weights × 3": "polynomial"}


def test_state_reset_and_vanishing() -> None:
    found = checked("post-gelu", 32)
    assert found.forward.name == "state-reset"
    assert "vanishing" in found.backward_names
    assert found.rows.where(measure="hamiltonian").rows[0].status == "not-applicable"
    assert not found.unmet({"forward": "state-reset"})
    assert found.unmet({"forward": "bounded"}) == ["forward is state-reset, not bounded"]


def test_a_branch_that_leaves_the_numbers_still_gets_its_verdict() -> None:
    """Un-normed SwiGLU grows as the square of the stream: finite-time blow-up (§2.8)."""
    found = checked("none-swiglu", 32)
    assert (found.forward.name, found.backward.name) == ("ill-posed", "explodes")
    assert "stream overflows" in names(found)
    assert "vanishing" not in found.backward_names
    assert {r.status for r in found.rows.where(measure="roll_out")} == {"overflow"}


def test_one_start_that_diverges_decides() -> None:
    def told(*ends: tuple[str, float]) -> tuple[str, float | None]:
        row = outcome_row([Ascent(kind, value, 1e-4, 5, 1.0) for kind, value in ends], 0, 0.1, None)
        return row.status, row.value

    assert told(("collapsed", 0.0), ("diverged", 1e9)) == ("diverged", None)
    assert told(("converged", 3.0), ("collapsed", 0.0), ("converged", 5.0)) == ("ok", 5.0)
    assert told(("collapsed", -1e-9), ("collapsed", 0.0)) == ("ok", 0.0)
    assert told(("not-converged", 2.0), ("collapsed", 0.0)) == ("not-converged", None)


def test_a_block_is_marked_by_an_option_or_by_itself() -> None:
    marked = load(f"{MINE}:Plain", width=16, block=True)
    assert (marked.adds, marked.copies) == (2, 24)
    assert load(f"{MINE}:Sound", width=16).adds == 2
    assert load(f"{MINE}:Plain", width=16).adds == 0


def test_requirements() -> None:
    bounded, threshold = checked("Sound"), checked("pre-gelu", 32)
    assert bounded.unmet({"forward": "bounded", "backward": "scale-free"}) == []
    assert bounded.unmet({"forward": "ill-posed"}) == []  # better than asked for
    assert threshold.unmet({"forward": "needs-decay", "backward": "grows"}) == [
        "forward is threshold, not needs-decay", "backward is explodes, not grows"]  # fmt: skip
    for wrong in ({"forward": "fine"}, {"sideways": "bounded"}):
        with pytest.raises(InputError, match="there is no class"):
            bounded.unmet(wrong)
        with pytest.raises(InputError, match="there is no class"):
            check("no such target either", require=wrong)


def test_it_is_saved_and_read_back(tmp_path: Path) -> None:
    found = checked("pre-gelu", 32)
    summary, rows = found.save(tmp_path)
    told = json.loads(summary.read_text())
    assert (told["forward"]["name"], told["backward"]["names"]) == ("threshold", ["explodes"])
    assert told["limits"]["bounded"] == LIMITS.bounded
    assert told["provenance"]["settings"]["width"] == 32
    back = Table.load(rows)
    assert back.rows == found.rows.rows
    assert {r.source for r in back} == {"pre-gelu"}
    for row in back:
        assert (row.value is None) == (row.status != "ok"), row


def test_it_is_the_same_again_and_leaves_the_module_and_the_random_state_as_they_were() -> None:
    module = load(f"{MINE}:Plain", width=16).module
    before = [p.detach().clone() for p in module.parameters()]
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    first, second = (check(module, width=16, half_steps=8) for _ in range(2))
    assert first.rows.rows == second.rows.rows
    assert all(torch.equal(p, b) for p, b in zip(module.parameters(), before, strict=True))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert drillcore.check is check


def test_progress_ends_at_its_total() -> None:
    seen = []
    check("pre-gelu", width=16, half_steps=4, progress=seen.append)
    assert (seen[-1].done, seen[-1].total) == (11, 11)
    assert [s.done for s in seen] == sorted(s.done for s in seen)


BAD = {
    "Wider": (16, r"changes the shape \(1, 8, 16\) to \(1, 8, 32\)", "gives back the width"),
    "Noisy": (16, "two answers to one input", "dropout off"),
    "Detached": (16, "no gradient by its input", "detach"),
    "NoGrad": (16, "no gradient", "no_grad"),
    "Overflows": (16, r"NaN or infinity when its input is multiplied by \d+", "overflows"),
    "NeedsMask": (16, "needs more than the stream: mask, positions", "wrap it"),
    "Tupled": (16, "returns a tuple", "wrap it"),
    "Raises": (16, r"KeyError at blocks_of_mine.py, line \d+: 'layer 7'", ""),
    "Empty": (16, "no matrix", "parameters"),
    "Nothing": (16, "has no 'Nothing'", "function or class"),
    "raises": (16, "OSError at blocks_of_mine.py, line .*: weights are not here", ""),
    "two": (16, "it needs width, heads", "of the width alone"),
    "no_module": (16, "returns a int", ""),
    "number": (16, "is a int, not a function", ""),
    "made": (24, "RuntimeError", "--width 16"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_modules_are_told(name: str) -> None:
    width, what, remedy = BAD[name]
    with pytest.raises(InputError, match=what) as told:
        check(f"{MINE}:{name}", width=width)
    assert remedy in told.value.remedy
    assert str(MINE) in str(told.value) or "float32" in told.value.where


def test_bad_targets_are_told(tmp_path: Path) -> None:
    broken, prose = tmp_path / "broken.py", tmp_path / "prose.py"
    broken.write_text("def make(:\n")
    prose.write_bytes(b"\xff\xfe\x00binary")
    for target, what in {
        f"{broken}:make": "SyntaxError", f"{prose}:make": "SyntaxError|UnicodeDecodeError",
        f"{tmp_path}/none.py:make": "there is no such file", str(MINE): "needs the name of its factory",
        "peri-gelo": "there is no target", str(tmp_path): "there is no config.json",
    }.items():  # fmt: skip
        with pytest.raises(InputError, match=what):
            check(target, width=16)
    with pytest.raises(InputError, match="did you mean"):
        check("peri-gelo", width=16)
    for options, what in (({"width": 1}, "at least 2"), ({"decay": -1.0}, "not negative"),
                          ({"residual_step": 0.1, "block": True}, "is for a branch")):  # fmt: skip
        with pytest.raises(InputError, match=what):
            check(f"{MINE}:Plain", **{"width": 16, **options})
    with pytest.raises(InputError, match="do not divide"):
        check("pre-attention", width=18)
    with pytest.raises(InputError, match="not dict"):
        check({})


def test_a_residual_step_reaches_the_stack() -> None:
    small = load("peri-gelu", width=16, residual_step=0.25)
    assert (small.residual_step, small.copies, small.adds) == (0.25, 48, 0)
    x = torch.randn(2, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(small.module(x), x + 0.25 * small.module.velocity(x))
    found = check(f"{MINE}:Plain", width=16, half_steps=8, residual_step=0.5)
    assert found.provenance["settings"]["residual_step"] == 0.5


CONFIGS = {
    "llama": ({"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 160,
               "num_hidden_layers": 3}, "pre", "swiglu"),
    "gemma2": ({"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128},
               "peri", "geglu"),
    "olmo2": ({"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}, "branch_out", "swiglu"),
    "bert": ({"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}, "post", "gelu"),
    "gpt2": ({"n_embd": 64, "n_head": 4, "n_layer": 5}, "pre", "gelu"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_configuration_becomes_its_block(kind: str, tmp_path: Path) -> None:
    config, placement, mlp = CONFIGS[kind]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **config}))
    variant, layers = from_config(tmp_path, 32)
    assert (variant.design.form.norm_placement, variant.design.mlp) == (placement, mlp)
    assert layers == config.get("num_hidden_layers", config.get("n_layer"))
    target = load(str(tmp_path), width=32)
    assert target.half_steps == 2 * layers
    assert target.module(torch.zeros(1, 3, 32)).shape == (1, 3, 32)
    if kind == "llama":
        assert (variant.design.heads, variant.design.kv_heads, variant.design.hidden) == (4, 1, 80)


def test_flags_of_configurations(tmp_path: Path) -> None:
    path = tmp_path / "config.json"

    def placement(**config: object) -> str:
        path.write_text(json.dumps({"hidden_size": 64, "num_attention_heads": 4, **config}))
        return from_config(path, 32)[0].design.form.norm_placement

    assert placement(model_type="opt") == "pre"
    assert placement(model_type="opt", do_layer_norm_before=False) == "post"
    path.write_text(json.dumps({"model_type": "gpt_neox", "hidden_size": 64, "num_attention_heads": 4}))
    assert from_config(path, 32)[0].design.parallel
    path.write_text(json.dumps({"model_type": "granite", "hidden_size": 64, "num_attention_heads": 4,
                                "residual_multiplier": 0.22}))  # fmt: skip
    assert from_config(path, 32)[0].design.form.residual_step == 0.22
    for text, what in (('{"model_type": "mamba"}', "no block is known"), ("{", "not JSON"), ("[]", "no configuration"),
                       ('{"model_type": "llama"}', "width of the model")):  # fmt: skip
        path.write_text(text)
        with pytest.raises(InputError, match=what):
            from_config(path, 32)


def test_the_readme_checks_the_example_in_three_lines() -> None:
    readme = (EXAMPLE.parents[1] / "README.md").read_text()
    assert "drillcore check docs/my_block.py:Branch" in readme
    assert f"{len(VARIANTS)} designs by name" in readme
