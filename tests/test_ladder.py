"""The ladder of CONTRIBUTING.md holds: a module imports only lower ranks, never sideways, never lazily."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "drillcore"


def ladder() -> dict[str, int]:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    lines = re.findall(r"^rank (\d) +(.+)$", text, flags=re.MULTILINE)
    assert lines
    return {module: int(rank) for rank, modules in lines for module in modules.split()}


def parts() -> list[Path]:
    return [p for p in PACKAGE.iterdir() if (p.suffix == ".py" or (p / "__init__.py").exists()) and p.stem != "__init__"]


def imported(module: str, names: list[str]) -> list[str]:
    """The modules that `from module import names` reaches: a name is a module of its own, or module's."""
    place = PACKAGE.parent.joinpath(*module.split("."))
    own = [n for n in names if (place / f"{n}.py").exists() or (place / n / "__init__.py").exists()]
    return [f"{module}.{n}" for n in own] + ([module] if len(own) < len(names) else [])


def imports(path: Path) -> list[tuple[str, bool]]:
    """(drillcore module imported, whether inside a function)."""
    found = []

    def visit(node: ast.AST, inside: bool, typing: bool) -> None:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "drillcore" and not typing:
            found.extend((name, inside) for name in imported(str(node.module), [a.name for a in node.names]))
        if isinstance(node, ast.Import) and not typing:
            found.extend((a.name, inside) for a in node.names if a.name.split(".")[0] == "drillcore")
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        only_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in ast.iter_child_nodes(node):
            visit(child, inside or is_function, typing or only_types)

    visit(ast.parse(path.read_text(encoding="utf-8")), False, False)
    return found


@pytest.mark.parametrize("part", parts(), ids=lambda p: p.stem)
def test_imports_go_down_only(part: Path) -> None:
    ranks = ladder()
    assert part.stem in ranks, f"{part.stem} has no rank in CONTRIBUTING.md"
    for path in [part] if part.is_file() else part.rglob("*.py"):
        for module, inside in imports(path):
            assert not inside, f"{path.name} imports {module} inside a function"
            words = module.split(".")
            if len(words) == 1 or words[1] == part.stem:
                continue  # the front door itself, or the part's own files
            if words[1] in ranks:
                assert ranks[words[1]] < ranks[part.stem], f"{path.name} (rank {ranks[part.stem]}) imports {module}"


def test_no_module_carries_the_name_of_a_public_function() -> None:
    import drillcore

    assert not {p.stem for p in parts()} & set(drillcore.__all__)


def test_files_of_a_part_do_not_form_a_ring() -> None:
    graph: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(("drillcore", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        graph[name] = {module for module, _ in imports(path)}
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join((*trail, name))
        if name not in done:
            for target in graph.get(name, ()):
                walk(target, (*trail, name))
            done.add(name)

    for name in graph:
        walk(name, ())


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_front_door_is_light() -> None:
    heavy = "{'torch', 'numpy', 'scipy', 'polars', 'plotly', 'transformers'} & set(sys.modules)"
    assert _python(f"import sys, drillcore, drillcore.cli; print({heavy})") == "set()"
    # and the check can fail
    assert "torch" in _python(f"import sys, torch; print({heavy})")


def test_public_functions_stay_callable_after_every_submodule_is_imported() -> None:
    code = (
        "import pkgutil, importlib, drillcore\n"
        "for m in pkgutil.walk_packages(drillcore.__path__, 'drillcore.'): importlib.import_module(m.name)\n"
        "print(all(callable(getattr(drillcore, n)) for n in drillcore.__all__), sorted(drillcore.__all__))"
    )
    assert _python(code).startswith("True")


def test_files_and_functions_stay_small() -> None:
    files = {p: p.read_text(encoding="utf-8") for p in PACKAGE.rglob("*.py")}
    lengths = sorted(len(text.splitlines()) for text in files.values())
    assert lengths[-1] <= 400
    assert lengths[len(lengths) // 2] <= 150
    bodies = sorted(
        node.end_lineno - node.body[0].lineno + 1
        for text in files.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None
    )
    assert bodies[int(0.9 * len(bodies))] <= 30
