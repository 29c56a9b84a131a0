"""_C.pyi describes the extension: both have the same names, and every function has the same arguments in the same
order, with and without defaults.

mypy's stubtest would read the whole of torch to find less: stubtest cannot see the arguments of pybind11's functions,
which are only in docstrings.
"""

from __future__ import annotations

import ast
import inspect
import pathlib
import re

import shardwire
from shardwire import _C

STUB = ast.parse((pathlib.Path(shardwire.__file__).parent / "_C.pyi").read_text())
# Members of the stub missing in the extension of some torches.
OF_SOME_TORCHES = {"get_error"}
# "name(self: Type, a: Type, b: Optional[Type] = None) -> Type", the first line of pybind11's docstrings.
SIGNATURE = re.compile(r"\w+\((.*)\)(?: -> .*)?$")


def arguments_of_stub(function: ast.FunctionDef) -> list[tuple[str, bool]]:
    """(name, whether there is a default) of each argument but self."""
    given = function.args.args
    defaults = len(function.args.defaults)
    named = [(argument.arg, place >= len(given) - defaults) for place, argument in enumerate(given)]
    return [argument for argument in named if argument[0] != "self"]


def arguments_of_extension(function: object) -> list[tuple[str, bool]] | None:
    """The same pairs, read from the docstring; None for a function not made by pybind11, or with several forms."""
    first = (getattr(function, "__doc__", None) or "").split("\n")[0]
    found = SIGNATURE.match(first)
    if found is None or "(*args, **kwargs)" in first:
        return None
    parts, depth, part = [], 0, ""
    for letter in found[1] + ",":
        depth += (letter in "[(<{") - (letter in "])>}")
        if letter == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    return [(part.partition(":")[0].strip(), re.search(r" = ", part) is not None) for part in parts
            if part and part.partition(":")[0] != "self"]


def public(names: object) -> set[str]:
    return {name for name in names if not name.startswith("_")}  # type: ignore[attr-defined]


def members(node: ast.ClassDef | ast.Module) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for each in node.body:
        if isinstance(each, (ast.FunctionDef, ast.ClassDef)):
            found[each.name] = each
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found[each.target.id] = each
    return found


def test_each_has_the_names_of_the_other() -> None:
    stub = members(STUB)
    assert public(stub) ^ public(name for name in vars(_C) if not inspect.ismodule(getattr(_C, name))) == set()
    for name, node in stub.items():
        if isinstance(node, ast.ClassDef):
            own = {each for each in vars(getattr(_C, name)) if not isinstance(vars(getattr(_C, name))[each], type)}
            assert public(members(node)) - public(dir(getattr(_C, name))) <= OF_SOME_TORCHES, name
            assert public(own) - public(members(node)) == set(), name


def test_the_package_uses_every_function_of_the_extension() -> None:
    package = pathlib.Path(shardwire.__file__).parent
    text = "\n".join(path.read_text() for path in package.rglob("*.py"))
    unused = {node.name for node in STUB.body
              if isinstance(node, ast.FunctionDef) and not re.search(rf"\b{node.name}\b", text)}
    assert unused == {"symm_num_deferred"}, unused  # used by tests of leaks


def test_functions_have_the_same_arguments() -> None:
    compared = 0
    for owner, where in [(_C, STUB),
                         *((getattr(_C, node.name), node) for node in STUB.body if isinstance(node, ast.ClassDef))]:
        for name, node in members(where).items():
            if not isinstance(node, ast.FunctionDef) or any(isinstance(mark, ast.Name) and mark.id == "property"
                                                            for mark in node.decorator_list):
                continue
            built = arguments_of_extension(getattr(owner, name, None))
            if built is not None:
                compared += 1
                assert arguments_of_stub(node) == built, f"{getattr(owner, '__name__', owner)}.{name}"
    assert compared > 60, compared
