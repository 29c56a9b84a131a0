"""Collects the public names and signatures of the packages whose names shardwire offers, as tests/names/peers.json.

Run by hand where a new version of a package counts: unzip the wheel, or check the sources out, then

    python tests/names/collect.py nvmath-python=1.0.0:FOLDER nvshmem4py=0.4.1:FOLDER moodist=0.11.4:FOLDER \\
        nkipy=COMMIT:FOLDER > tests/names/peers.json

Nothing is imported: the sources are parsed. Only facts are written: names, kinds, parameters and defaults. A name
that the sources import from compiled code has no parameters there, and has the kind "compiled". Where the wheel has the
Cython source of such a class, or a stub, the class's members are listed too. An instance has the attributes which the
constructor sets.

A list of parameters has one text for each: "a", "a=" (with a default), "*" (keyword-only parameters follow), "*args",
"**kwargs", "/" (positional-only parameters precede). Members of a class are "Class.member"; "Class.__init__" has the
parameters of the constructor.
"""

from __future__ import annotations

import ast
import itertools
import json
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator

# By package: the modules whose public names count, and the folders of the sources that hold the modules.
MODULES = {
    "nvmath-python": ("nvmath.distributed", "nvmath.distributed.process_group", "nvmath.distributed.distribution",
                      "nvmath.distributed.fft", "nvmath.distributed.linalg", "nvmath.distributed.linalg.advanced",
                      "nvmath.linalg.advanced.helpers.matmul"),
    "nvshmem4py": ("nvshmem.core",),
    "moodist": ("moodist",),
    "nkipy": ("nkipy.runtime", "spike"),
}
# Of these modules only some names count: the rest of spike is the runtime of the device.
ONLY = {"spike": ("BenchmarkResult",)}
FOLDERS = {"nkipy": ("nkipy/src", "spike/src")}
# Classes whose attributes are their working state (handles, workspaces, descriptors), none in nvmath's documentation.
STATE = ("Redistribute", "FFT", "Matmul")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Sources:
    """The modules below some folders, parsed on first use."""

    def __init__(self, folders: list[pathlib.Path]) -> None:
        self._folders = folders
        self._trees: dict[str, ast.Module | None] = {}

    def tree(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            stem = pathlib.Path(*module.split("."))
            found = [path for folder in self._folders
                     for path in (folder / stem / "__init__.py", folder / stem.with_suffix(".py")) if path.exists()]
            self._trees[module] = ast.parse(found[0].read_text()) if found else None
        return self._trees[module]

    def cython(self, module: str) -> list[str]:
        """The texts of the Cython sources and stubs of a module; of all sources for a module without."""
        found = [path for folder in self._folders for path in sorted(folder.rglob(f"{module}.py[xi]"))]
        return [path.read_text() for path in found or [each for folder in self._folders
                                                       for each in sorted(folder.rglob("*.pyx"))]]

    def is_package(self, module: str) -> bool:
        return any((folder / pathlib.Path(*module.split(".")) / "__init__.py").exists() for folder in self._folders)

    def absolute(self, module: str, node: ast.ImportFrom) -> str:
        """The full name of the module that an import names."""
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        parts = parts[:len(parts) - node.level + (1 if self.is_package(module) else 0)]
        return ".".join([*parts, *((node.module or "").split(".") if node.module else [])])

    def public(self, module: str) -> list[str]:
        """The names that `from module import *` binds, by __all__ where there is one."""
        tree = self.tree(module)
        assert tree is not None, module
        for node in tree.body:
            if isinstance(node, ast.Assign) and any(isinstance(each, ast.Name) and each.id == "__all__"
                                                    for each in node.targets):
                return self._listed(module, node.value)
        names: list[str] = []
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if alias.name == "*":
                        names += self.public(self.absolute(module, node))
                    elif alias.asname == alias.name:
                        names.append(alias.name)
        return names

    def _listed(self, module: str, value: ast.expr) -> list[str]:
        if isinstance(value, ast.BinOp):
            return self._listed(module, value.left) + self._listed(module, value.right)
        if isinstance(value, ast.Attribute):  # sub.module.__all__
            return self.public(f"{module}.{ast.unparse(value.value)}")
        return list(ast.literal_eval(value))

    def find(self, module: str, name: str) -> tuple[str, ast.AST | None]:
        """(module, node) of the definition of a name; the node is None where no source defines the name."""
        tree = self.tree(module)
        if tree is None:
            return module, None
        starred: list[str] = []
        for node in _statements(tree):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and node.name == name:
                return module, node
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    source = self.absolute(module, node)
                    if (alias.asname or alias.name) == name:
                        if self.tree(f"{source}.{alias.name}") is not None:
                            return module, node  # a module
                        found = self.find(source, alias.name)
                        if found[1] is not None or self.tree(source) is None:
                            return found
                    elif alias.name == "*" and self.tree(source) is not None:
                        starred.append(source)
            targets = (node.targets if isinstance(node, ast.Assign)
                       else [node.target] if isinstance(node, ast.AnnAssign) else [])
            if any(isinstance(each, ast.Name) and each.id == name for each in targets):
                return module, node
        for source in starred:
            if name in self.public(source):
                return self.find(source, name)
        return module, None


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module, and those in its `try` and `if` blocks: `if TYPE_CHECKING:` describes compiled
    code."""
    blocks: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from node.body
        elif isinstance(node, ast.Try):
            blocks += node.body
        else:
            blocks.append(node)
    yield from blocks


def parameters(arguments: ast.arguments, bound: bool = False) -> list[str]:
    """The parameters of a function as texts; bound: without the first, `self` or `cls`."""
    positional = [*arguments.posonlyargs, *arguments.args]
    first_default = len(positional) - len(arguments.defaults)
    texts = []
    for place, each in enumerate(positional):
        texts.append(each.arg + ("=" if place >= first_default else ""))
        if place + 1 == len(arguments.posonlyargs):
            texts.append("/")
    texts = texts[1:] if bound else texts
    if arguments.vararg:
        texts.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        texts.append("*")
    texts += [each.arg + ("" if default is None else "=")
              for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    return texts + ([f"**{arguments.kwarg.arg}"] if arguments.kwarg else [])


def defaults(arguments: ast.arguments) -> dict[str, str]:
    """The plain default values of a function's parameters, as Python writes them."""
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(positional[len(positional) - len(arguments.defaults):], arguments.defaults),
             *zip(arguments.kwonlyargs, arguments.kw_defaults)]
    return _plain((each.arg, value) for each, value in pairs)


def _plain(pairs: Iterable[tuple[str, ast.expr | None]]) -> dict[str, str]:
    return {name: ast.unparse(value) for name, value in pairs if isinstance(value, ast.Constant)}


def _decorators(node: ast.AST) -> list[str]:
    return [ast.unparse(each) for each in getattr(node, "decorator_list", [])]


def described(sources: Sources, module: str, name: str) -> dict[str, dict[str, object]]:
    """The facts of a name, and of the members of a class."""
    where, node = sources.find(module, name)
    if isinstance(node, FUNCTIONS):
        return {name: {"kind": "function", "parameters": parameters(node.args), "defaults": defaults(node.args)}}
    if isinstance(node, ast.ClassDef):
        return _of_class(sources, where, name, node)
    call = _partial_call(node)
    if call is not None:
        _, inner = sources.find(where, ast.unparse(call.args[0]))
        assert isinstance(inner, FUNCTIONS)
        given = {each.arg for each in call.keywords}
        return {name: {"kind": "function", "parameters": [each for each in parameters(inner.args)
                                                          if each.rstrip("=") not in given]}}
    if isinstance(node, ast.ImportFrom) or node is None and sources.tree(f"{module}.{name}") is not None:
        return {name: {"kind": "module"}}
    if node is None or isinstance(node, ast.Assign) and _is_of_compiled_code(node.value):
        kind = f"{where}.{name}" if node is None else ast.unparse(node.value)
        return {name: {"kind": "compiled"}, **_of_cython(sources, name, kind)}
    return {name: {"kind": "value"}, **_of_cython(sources, name, _enumeration(node))}


def _enumeration(node: ast.AST) -> str:
    """The enumeration of ``name = module.Kind`` and of ``name = MutableEnum.from_enum(Kind)``, else empty."""
    value = getattr(node, "value", None)
    if isinstance(value, ast.Attribute):
        return ast.unparse(value)
    is_made = isinstance(value, ast.Call) and ast.unparse(value.func).endswith(".from_enum")
    return f"bindings.{ast.unparse(value.args[0])}" if is_made else ""


def _of_cython(sources: Sources, name: str, kind: str) -> dict[str, dict[str, object]]:
    """The members of a class in a Cython source or its stub: of an enumeration, and the properties and static methods
    of another class. kind: the class, behind the name of its module."""
    found: dict[str, dict[str, object]] = {}
    *_, module, kind = ["", *kind.split(".")]
    begin = re.compile(rf"^(?:cdef )?class {re.escape(kind)}\b")
    for text in sources.cython(module) if kind else ():
        lines = iter(text.splitlines())
        next((line for line in lines if begin.match(line)), None)
        mark = ""
        for line in itertools.takewhile(lambda line: not re.match(r"\S", line), lines):
            member = re.match(r"    ([A-Z][A-Z_0-9]*)(?:: ClassVar\[\w+\])? = ", line)
            function = re.match(r"    def ([a-z]\w*)\(", line)
            if member:
                found[f"{name}.{member[1]}"] = {"kind": "member"}
            elif function and mark in ("property", "staticmethod"):
                found[f"{name}.{function[1]}"] = {"kind": "property" if mark == "property" else "function"}
            if line.strip():
                mark = line.strip()[1:] if line.startswith("    @") else ""
    return found


def _partial_call(node: ast.AST | None) -> ast.Call | None:
    """The call of functools.partial in ``name = functools.wraps(f)(functools.partial(f, keyword=...))``."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args:
        inner = node.value.args[0]
        if isinstance(inner, ast.Call) and ast.unparse(inner.func) == "functools.partial":
            return inner
    return None


def _is_of_compiled_code(value: ast.expr) -> bool:
    text = ast.unparse(value)
    return text.startswith(("bindings.", "getattr(_C,"))


def _of_class(sources: Sources, module: str, name: str, node: ast.ClassDef) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {name: {"kind": "class"}}
    bases = [ast.unparse(base) for base in node.bases]
    for base in bases:
        where, parent = sources.find(module, base)
        if isinstance(parent, ast.ClassDef):
            inherited = _of_class(sources, where, base, parent)
            found.update({f"{name}{each[len(base):]}": facts for each, facts in inherited.items()})
    is_enum = any(base.split(".")[-1] in ("Enum", "IntEnum", "IntFlag") for base in bases)
    fields: list[str] = []
    for each in node.body:
        if isinstance(each, FUNCTIONS):
            if each.name.startswith("_") and each.name not in ("__init__", "__call__", "__enter__", "__exit__"):
                continue
            if each.name == "__init__" and name not in STATE:
                for attribute in attributes(each):
                    found.setdefault(f"{name}.{attribute}", {"kind": "attribute"})
            marks = _decorators(each)
            if any(mark == "property" or mark.endswith("cached_property") for mark in marks):
                found[f"{name}.{each.name}"] = {"kind": "property"}
            elif not any(mark.endswith(".setter") for mark in marks):
                found[f"{name}.{each.name}"] = {
                    "kind": "method", "parameters": parameters(each.args, bound="staticmethod" not in marks),
                    "defaults": defaults(each.args)}
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            fields.append(each.target.id + ("" if each.value is None else "="))
            if not each.target.id.startswith("_"):
                found[f"{name}.{each.target.id}"] = {"kind": "field"}
        elif isinstance(each, ast.Assign) and is_enum:
            found.update({f"{name}.{target.id}": {"kind": "member"} for target in each.targets
                          if isinstance(target, ast.Name)})
        elif isinstance(each, ast.ClassDef) and not each.name.startswith("_"):
            inner = _of_class(sources, module, each.name, each)
            found.update({f"{name}.{key}": facts for key, facts in inner.items()})
    if any("dataclass" in mark for mark in _decorators(node)):
        found[f"{name}.__init__"] = {"kind": "method", "parameters": fields, "defaults": _plain(
            (each.target.id, each.value) for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name))}
    return found


def attributes(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The public attributes that a constructor sets: ``self.name = ...``."""
    first = [*node.args.posonlyargs, *node.args.args][0].arg
    for each in ast.walk(node):
        if (isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and isinstance(each.value, ast.Name)
                and each.value.id == first and not each.attr.startswith("_")):
            yield each.attr


def main(arguments: list[str]) -> None:
    peers = []
    for argument in arguments:
        package, rest = argument.split("=", 1)
        version, folder = rest.split(":", 1)
        root = pathlib.Path(folder)
        sources = Sources([root / each for each in FOLDERS.get(package, ("",))])
        modules = {}
        for module in MODULES[package]:
            modules[module] = {}
            for name in dict.fromkeys(ONLY.get(module) or sources.public(module)):
                modules[module].update(described(sources, module, name))
        peers.append({"package": package, "version": version, "modules": modules})
    print(_written(peers))


def _written(peers: list[dict[str, object]]) -> str:
    """JSON with one line for each name, so that a new version shows as lines."""
    lines = ["["]
    for peer in peers:
        lines.append(f' {{"package": "{peer["package"]}", "version": "{peer["version"]}", "modules": {{')
        for module, names in peer["modules"].items():
            lines.append(f'  "{module}": {{')
            lines += [f"   {json.dumps(name)}: {json.dumps({key: fact for key, fact in facts.items() if fact != {}})},"
                      for name, facts in sorted(names.items())]
            lines[-1] = lines[-1].rstrip(",")
            lines.append("  },")
        lines[-1] = "  }"
        lines.append(" }},")
    lines[-1] = " }}"
    return "\n".join([*lines, "]"])


if __name__ == "__main__":
    main(sys.argv[1:])
