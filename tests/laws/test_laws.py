"""Laws against closed forms, a second optimiser, simulations with known truth, and the published values."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import curve_fit
from scipy.stats import linregress

from drillcore.laws import Law, LawError, Sizes, doubt, solve
from drillcore.verbs.fit import fit_example

OFFSET = Law(("m",), "shared")
WIDTHS = np.array([64.0, 96, 128, 192, 256, 384, 512, 768, 1024, 2048])


def points(noise: float = 0.0, seed: int = 0, alpha: float = 0.8) -> Sizes:
    y = 40 * WIDTHS**-alpha + 1.7 + noise * np.random.default_rng(seed).normal(size=len(WIDTHS))
    return Sizes.of(y.tolist(), {"m": WIDTHS.tolist()})


def test_a_law_without_noise_is_found() -> None:
    found = solve(OFFSET, points())
    assert found.values == pytest.approx({"alpha_m": 0.8, "c_m": 40, "L0": 1.7}, rel=1e-5)
    two = Law(("m", "d"), "shared", "shared", "log")
    m, d = (grid.ravel() for grid in np.meshgrid(WIDTHS, np.geomspace(1e6, 1e9, 6)))
    data = Sizes.of((30 / m**0.7 + 200 / d**0.35 + 1.5).tolist(), {"m": m.tolist(), "d": d.tolist()})
    assert solve(two, data).values == pytest.approx(
        {"alpha_m": 0.7, "alpha_d": 0.35, "c_m": 30, "c_d": 200, "L0": 1.5}, rel=1e-3
    )


def test_value_and_errors_are_those_of_a_second_optimiser() -> None:
    data = points(0.004)
    found, errors = solve(OFFSET, data), doubt.standard_errors(solve(OFFSET, data))
    values, covariance = curve_fit(lambda x, a, c, o: c * x**-a + o, data.x["m"], data.y, p0=[1, 50, 1], maxfev=20_000)
    assert list(found.values.values()) == pytest.approx(values.tolist(), rel=1e-4)
    assert list(errors.values()) == pytest.approx(np.sqrt(np.diag(covariance)).tolist(), rel=1e-3)


def test_a_power_is_ordinary_least_squares() -> None:
    y = 7 * WIDTHS**-0.9 * np.exp(0.1 * np.random.default_rng(0).normal(size=len(WIDTHS)))
    found = solve(Law(("m",), "none", residual="log"), Sizes.of(y.tolist(), {"m": WIDTHS.tolist()}))
    line = linregress(np.log(WIDTHS), np.log(y))
    assert found.values["alpha_m"] == pytest.approx(-line.slope, rel=1e-9)
    assert found.values["c_m"] == pytest.approx(np.exp(line.intercept), rel=1e-9)
    assert doubt.standard_errors(found)["alpha_m"] == pytest.approx(line.stderr, rel=1e-9)
    low = doubt.profile(found, "alpha_m").low
    assert low == pytest.approx(doubt.t_interval(found, "alpha_m").low, abs=2e-3)  # a parabola: both are exact


def test_robust_fits_shrug_off_an_outlier() -> None:
    data = points(0.002)
    data.y[3] += 0.5
    robust, squares = (abs(float(solve(OFFSET, data, robust=r).exponents[0]) - 0.8) for r in (True, False))
    assert robust < squares / 2


def test_fast_bootstrap_is_the_slow_one() -> None:
    data = points(0.01)
    counts = np.random.default_rng(3).multinomial(10, np.full(10, 0.1), size=40).astype(float)
    kept = [w for w in counts if (w > 0).sum() > 5]
    slow = [float(solve(OFFSET, data.take(w > 0), weight=np.sqrt(w[w > 0])).exponents[0]) for w in kept]
    np.testing.assert_allclose(doubt._many(OFFSET, data, np.array(kept)), slow, rtol=2e-3)


@pytest.mark.slow
def test_intervals_cover_the_truth() -> None:
    inside = 0
    for seed in range(200):
        p = doubt.profile(solve(OFFSET, points(0.004, seed)), "alpha_m", 41)
        inside += p.low <= 0.8 <= p.high
    assert 0.905 <= inside / 200 <= 0.985


def test_a_direction_that_the_data_do_not_see_is_named() -> None:
    m = WIDTHS.tolist()
    y = (30 / WIDTHS**0.7 + 1.5).tolist()
    law = Law(("m", "d"), "shared")
    found = solve(law, Sizes.of(y, {"m": m, "d": (3 * WIDTHS).tolist()}))  # depth grows with width
    assert any("alpha_" in told for told in doubt.flat_directions(found))


def test_groups_left_out_and_sizes_held_out() -> None:
    labels = ["a"] * 10 + ["b"] * 10
    y = np.concatenate([40 / WIDTHS**0.8 + 1.7, 20 / WIDTHS**0.4 + 1.2])
    law, x = Law(("m",), "group"), np.concatenate([WIDTHS, WIDTHS])
    data = Sizes.of(y.tolist(), {"m": x.tolist()}, labels)
    assert doubt.alone(law, data, labels) == pytest.approx({"a": 0.8, "b": 0.4}, rel=1e-4)
    assert doubt.left_out(law, data, labels) == pytest.approx({"a": 0.4, "b": 0.8}, rel=1e-4)
    held = doubt.hold_out(OFFSET, points())
    assert held is not None
    assert held.law < 1e-5 < held.constant
    assert held.constant == pytest.approx(
        np.sqrt(np.mean([(40 * (x**-0.8 - 768.0**-0.8)) ** 2 for x in (1024.0, 2048.0)])), rel=1e-6
    )


@pytest.mark.parametrize(("y", "x", "told"), [
    ([1, float("nan"), 2], [1, 2, 3], "row 2"), ([1, -1, 2], [1, 2, 3], "above 0"), ([1, 2, 3], [5, 5, 5], "one value"),
])  # fmt: skip
def test_bad_points_are_told(y: list[float], x: list[float], told: str) -> None:
    with pytest.raises(LawError, match=told):
        Sizes.of(y, {"m": x})
    with pytest.raises(LawError, match="cannot determine"):
        solve(OFFSET, Sizes.of([3, 2, 1.5], {"m": [1, 2, 3]}))


def test_losses_of_language_models_give_the_published_law_and_an_honest_interval() -> None:
    (one,) = fit_example("llm-losses").fits
    (alpha,) = one.exponents
    assert alpha.value == pytest.approx(0.910, abs=0.003)
    assert one.solution.values["c_m"] == pytest.approx(475, abs=3)
    assert one.mean_square_error == pytest.approx(0.00519, abs=1e-5)
    assert alpha.textbook == pytest.approx(0.036, abs=5e-4)
    assert alpha.jacobian == pytest.approx(0.060, abs=1e-3)
    assert alpha.bootstrap is not None
    assert 0.50 <= alpha.bootstrap.low <= 0.58
    assert 1.05 <= alpha.bootstrap.high <= 1.12  # 1.104 … 1.111 from 20,000 draws; ± 0.01 from 2,000
    assert alpha.status == "ok"
    by_family, by_corpus = one.alone["family"], one.alone["dataset"]
    assert by_family == pytest.approx({"opt": 0.68, "Qwen": 0.39, "gpt2": 2.39, "pythia": 1.07}, abs=0.01)
    assert by_corpus == pytest.approx({"wikitext": 0.83, "c4": 0.90, "pile": 0.91, "bookcorpus": 1.00}, abs=0.01)
    without = {"opt": 0.96, "Qwen": 0.96, "gpt2": 0.91, "pythia": 0.67}
    assert one.without["family"] == pytest.approx(without, abs=0.01)


def test_large_toy_models_give_the_published_exponents() -> None:
    found = {one.label: one.exponents[0].value for one in fit_example("toy-large").fits}
    assert found == pytest.approx({"exponential": 1.0055, "power": 0.9839, "linear": 0.8864}, abs=1e-4)


def chinchilla() -> list[dict[str, float]]:
    folder = os.environ.get("DRILLCORE_REFERENCE")
    path = Path(folder or ".") / "chinchilla_245_points_with_width_depth.csv"
    if folder is None or not path.exists():
        pytest.skip("DRILLCORE_REFERENCE names no folder with the Chinchilla table")
    return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(path.read_text().splitlines())]


def test_parameters_grow_as_width_to_the_power_of_two_and_a_half() -> None:
    shapes = {(row["d_model"], row["n_layers"]): row["model_size"] for row in chinchilla()}
    data = Sizes.of(list(shapes.values()), {"m": [m for m, _ in shapes]})
    found = solve(Law(("m",), "none", residual="log"), data)
    assert len(shapes) == 43
    assert -found.values["alpha_m"] == pytest.approx(2.50, abs=0.01)
    assert doubt.standard_errors(found)["alpha_m"] == pytest.approx(0.03, abs=0.005)


def test_width_depth_and_data_give_the_published_exponents_within_their_errors() -> None:
    best = sorted(chinchilla(), key=lambda row: row["loss"])[:205]  # the worst 40 are dropped there too
    names = ("d_model", "n_layers", "num_tokens")
    data = Sizes.of([row["loss"] for row in best], {n: [row[n] for row in best] for n in names})
    found = solve(Law(names, "shared", residual="log"), data).values
    told = {"alpha_d_model": (0.977, 0.083), "alpha_n_layers": (1.20, 0.27), "alpha_num_tokens": (0.299, 0.014)}
    for name, (value, error) in told.items():
        assert abs(found[name] - value) <= error
    assert found["L0"] == pytest.approx(1.750, abs=0.02)


def test_a_loss_that_rises_has_no_negative_coefficient() -> None:
    found = solve(OFFSET, Sizes.of((1 + WIDTHS / 5000).tolist(), {"m": WIDTHS.tolist()}))
    assert found.values["c_m"] == 0
