"""Every folder of diskgnn/ imports only those before it in the flow, and no two modules need each other."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "diskgnn"
ROOMS = ("progress", "specs", "batches", "stores", "files", "formats", "work", "system", "engines", "graph",
         "importers", "sampling", "packing", "preparing", "propagation", "loading", "fresh", "embeddings", "nn",
         "training", "inference", "pyg", "relbench", "baselines", "compare", "cli")  # fmt: skip
# Public names beside those of `diskgnn` itself; nothing inside imports them.
FACES = {"diskgnn.comparing", "diskgnn.lightning", "diskgnn.models", "diskgnn.progress", "diskgnn.sources",
         "diskgnn.tasks"}  # fmt: skip
MODULES = {
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for file in PACKAGE.rglob("*.py")
}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All below `node`, also within functions and where only type checkers look, but for docstrings."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
            yield child
            yield from statements(child)


def imports(file: Path) -> Iterator[str]:
    """What of diskgnn a file needs, anywhere in it: modules, and 'diskgnn' for a public name, the native module, or an
    import that does not say from where it is.
    """
    for statement in statements(ast.parse(file.read_text())):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names if alias.name.split(".")[0] == "diskgnn")
        elif isinstance(statement, ast.ImportFrom) and statement.level:
            yield "diskgnn"
        elif isinstance(statement, ast.ImportFrom) and str(statement.module).split(".")[0] == "diskgnn":
            for name in (f"{statement.module}.{alias.name}" for alias in statement.names):
                yield name if name in MODULES else str(statement.module)
        elif isinstance(statement, ast.Constant) and isinstance(statement.value, str):
            yield from modules_in(statement.value)


def modules_in(text: str) -> Iterator[str]:
    """The modules within rooms that a string names, by themselves or with something in them; a room, where the name of
    its module is put together later.
    """
    if (begun := re.search(r"\bdiskgnn\.\w+(?=\.$)", text)) and begun[0] in MODULES:
        yield begun[0]
    for path in re.findall(r"\bdiskgnn(?:\.\w+)+", text):
        parts = path.split(".")
        prefixes = (".".join(parts[:length]) for length in range(len(parts), 2, -1))
        yield from (prefix for prefix in prefixes if prefix in MODULES)


@cache
def all_imports() -> dict[str, set[str]]:
    """What each module needs; not read where these tests are only collected."""
    return {module: set(imports(file)) for module, file in MODULES.items()}


def room(module: str) -> str:
    """The folder that a module lies in; '' for the top, which belongs to everybody."""
    folder = module.split(".")[1] if module.count(".") else ""
    return folder if folder in ROOMS else ""


def goes_against_the_flow(here: str, there: str) -> bool:
    if not here or not there:
        return bool(there)
    back = ROOMS.index(there) > ROOMS.index(here)
    return back or (here, there) in {("loading", "sampling"), ("loading", "packing")} or (
        there == "compare" and here not in ("compare", "cli"))  # fmt: skip


def test_every_folder_is_a_room():
    assert {file.parent.name for file in PACKAGE.glob("*/__init__.py")} == set(ROOMS)


def test_imports_follow_the_flow():
    against = [
        f"{module} imports {target}"
        for module, targets in all_imports().items() if module not in {"diskgnn", "diskgnn.__main__", *FACES}
        for target in targets if goes_against_the_flow(room(module), room(target))
    ]  # fmt: skip
    assert sorted(against) == []


def test_one_file_name_means_one_thing():
    names = Counter(module.rpartition(".")[2] for module, file in MODULES.items() if file.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_no_two_modules_need_each_other():
    try:
        TopologicalSorter(all_imports()).prepare()
    except CycleError as error:
        raise AssertionError("a circle: " + " needs ".join(reversed(error.args[1]))) from None


def test_names_are_imported_from_where_they_are():
    """`from diskgnn._native import Name`, and neither a public name through the face nor a relative import, which would
    hide an arrow.
    """
    through = [module for module, targets in all_imports().items() if targets & {"diskgnn", *FACES}]
    assert through == []
