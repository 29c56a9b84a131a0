"""Every public name of the packages in tests/names/peers.json is in shardwire and accepts every call of the package's
own, or stands in docs/names.md with the reason why the name needs a device.

``collect.py`` beside the list reads the names out of the packages' sources, ``ours.py`` maps them to shardwire's names.
The test compares signatures, not behaviour: other tests call the functions.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pathlib
import sys
import textwrap
from typing import Any

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "names"))
import collect  # noqa: E402: of tests/names
import ours  # noqa: E402

NAMES = {f"{module}.{name}": (module, name, facts) for module, name, facts in ours.names()}


class Missing(Exception):
    """A name that does not resolve, or does not accept a call."""


def exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the parent
        return False


def is_set_by_constructor(owner: Any, name: str) -> bool:
    """Whether a constructor of the class sets the attribute, as ``self.name = ...``."""
    for each in getattr(owner, "__mro__", ()):
        made = inspect.unwrap(vars(each).get("__init__", print))
        if inspect.isfunction(made) and made.__code__.co_filename != "<string>":  # a dataclass's
            if name in collect.attributes(ast.parse(textwrap.dedent(inspect.getsource(made))).body[0]):
                return True
    return False


def resolved(module: str, name: str) -> tuple[Any, Any]:
    """(owner, object) of our name; the object of an attribute that only instances have is None."""
    if not exists(module):
        raise Missing(f"there is no module {module}")
    owner, found = None, importlib.import_module(module)
    for part in name.split("."):
        owner = found
        if any(part in vars(each).get("__annotations__", {}) for each in getattr(owner, "__mro__", ())):
            found = getattr(owner, part, None)  # a field, or an attribute of the instances
        elif hasattr(owner, part):
            found = getattr(owner, part)
        elif is_set_by_constructor(owner, part):
            found = None
        elif exists(f"{module}.{part}"):
            found = importlib.import_module(f"{module}.{part}")
        else:
            raise Missing(f"{owner} has no {part}")
    return owner, found


class Call:
    """One call that the package's function accepts."""

    def __init__(self, positional: list[str], keywords: list[str]) -> None:
        self.positional, self.keywords = positional, keywords

    def __repr__(self) -> str:
        return f"({', '.join([*self.positional, *(f'{name}=' for name in self.keywords)])})"


def calls(parameters: list[str]) -> list[Call]:
    """The calls that a signature accepts: with the required arguments alone, with all by position, all by keyword, and
    each optional argument alone by keyword."""
    only_positional: list[str] = []
    positional: list[str] = []
    optional: set[str] = set()
    keywords: list[str] = []
    more: list[str] = []
    is_keyword = False
    for text in parameters:
        name = ours.PARAMETERS.get(text.rstrip("="), text.rstrip("="))
        if text == "/":
            only_positional, positional = positional, []
        elif text.startswith("**"):
            keywords.append("a_name_of_the_caller")
            optional.add("a_name_of_the_caller")
        elif text.startswith("*"):
            is_keyword = True
            more = ["more0", "more1"] if text != "*" else []
        else:
            (keywords if is_keyword else positional).append(name)
            optional |= {name} if text.endswith("=") else set()
    required = [each for each in positional if each not in optional]
    needed = [each for each in keywords if each not in optional]
    first = only_positional if all(each not in optional for each in only_positional) else []
    found = [Call(first + required, needed), Call(only_positional + positional + more, keywords)]
    if not more:
        found.append(Call(only_positional, positional + keywords))
    found += [Call(first + required, [*needed, each]) for each in [*positional, *keywords] if each in optional]
    return found


def accepts(owner: Any, target: Any, call: Call) -> str | None:
    """A text about a call that our function refuses; None for an accepted call."""
    if inspect.isclass(target) and issubclass(target, BaseException) and target.__init__ in (
            Exception.__init__, ValueError.__init__):
        return None  # an exception without a constructor of its own takes anything by position
    signature = inspect.signature(target)
    receiver = ["self"] if inspect.isclass(owner) and inspect.isfunction(target) and not isinstance(
        inspect.getattr_static(owner, target.__name__, None), staticmethod) else []
    try:
        bound = signature.bind(*receiver, *call.positional, **dict.fromkeys(call.keywords))
    except TypeError as error:
        return f"{call}: {error}; ours: {signature}"
    for name, value in bound.arguments.items():  # an argument given by position must not come under another's name
        if (isinstance(value, str) and value in call.positional and name != value and value in signature.parameters
                and signature.parameters[value].kind is not inspect.Parameter.KEYWORD_ONLY):
            return f"{call}: {value} is taken as {name}; ours: {signature}"
    return None


def check(module: str, name: str, facts: dict[str, Any]) -> None:
    owner, found = resolved(*ours.ours(module, name))
    if facts["kind"] == "class" and not inspect.isclass(found):
        raise Missing(f"{name} is a class there, and {found!r} here")
    if facts.get("parameters") is None:
        return
    if not callable(found):
        raise Missing(f"{name} is {found!r} and cannot be called")
    if name.endswith("__init__"):
        owner, found = None, owner  # the call of the class
    is_by_type = (module, name) in ours.BY_TYPE
    wrong = [each for each in (accepts(owner, found, call) for call in calls(facts["parameters"])
                               if not is_by_type or call.keywords) if each]
    wrong += other_defaults(module, name, found, facts.get("defaults", {}))
    if wrong:
        raise Missing("\n".join(wrong))


def other_defaults(module: str, name: str, found: Any, defaults: dict[str, str]) -> list[str]:
    """Texts about parameters whose default is not the package's, and which the table of ours does not list."""
    known = inspect.signature(found).parameters if defaults else {}
    return [f"{parameter} is {known[own].default!r} by default; theirs {text}" for parameter, text in defaults.items()
            if (own := ours.PARAMETERS.get(parameter, parameter)) in known and repr(known[own].default) != text
            and (module, f"{name}: {parameter}") not in ours.DEFAULTS]


@pytest.mark.parametrize("label", NAMES)
def test_a_name_of_a_peer(label):
    module, name, facts = NAMES[label]
    why = ours.reason(module, name)
    if why is not None:
        assert name.endswith("__init__") or not _resolves(module, name), f"{label} is here: take it off the table"
        if name.endswith("__init__") and name.count(".") and (module, name) in ours.NEEDS_A_DEVICE:
            with pytest.raises(Missing):
                check(module, name, facts)
        return
    check(module, name, facts)


def _resolves(module: str, name: str) -> bool:
    try:
        resolved(*ours.ours(module, name))
    except Missing:
        return False
    return True


def test_every_entry_of_the_tables_names_a_name_of_a_peer():
    known = {(module, name) for module, name, _ in NAMES.values()}
    assert set(ours.NEEDS_A_DEVICE) | set(ours.RENAMED) | set(ours.BY_TYPE) <= known
    assert {module for module, _ in known} == set(ours.MODULES)
    assert {(module, name.split(": ")[0]) for module, name in ours.DEFAULTS} <= known


def test_the_pages_tables_are_those_of_the_list():
    assert ours.PAGE.read_text() == ours.page(), "run python tests/names/ours.py"


def test_another_default_is_found():
    def target(a, b=1, *, c="x"):
        pass

    assert other_defaults("m", "n", target, {"b": "1", "c": "'x'"}) == []
    assert other_defaults("m", "n", target, {"b": "True", "c": "None"}) == [
        "b is 1 by default; theirs True", "c is 'x' by default; theirs None"]


def test_attributes_that_constructors_set():
    class Base:
        def __init__(self, first):
            self.kept, self._hidden = first, first
            if first:
                self.later: int = 3
            other.left = self.kept

    class Derived(Base):
        made_elsewhere = property(lambda self: 1)

    other = type("Other", (), {})()
    assert all(is_set_by_constructor(Derived, name) for name in ("kept", "later"))
    assert not any(is_set_by_constructor(Derived, name) for name in ("left", "_hidden", "first", "made_elsewhere"))
    assert not is_set_by_constructor(importlib, "kept") and not is_set_by_constructor(int, "kept")


def test_calls_of_a_signature():
    assert [str(call) for call in calls(["a", "/", "b=", "*", "c", "d="])] == [
        "(a, c=)", "(a, b, c=, d=)", "(a, b=, c=, d=)", "(a, c=, b=)", "(a, c=, d=)"]

    def swapped(b, a):
        pass

    def longer(a, /, b=None, *, c, d=None, e=None):
        pass

    assert "a is taken as b" in accepts(None, swapped, calls(["a", "b"])[0])
    assert not any(accepts(None, longer, call) for call in calls(["a", "/", "b=", "*", "c", "d="]))
