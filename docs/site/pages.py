"""Adds to the pages the parts that plain Markdown lacks: the site's tree, docstrings, headers and plots.

The pages themselves stay plain, to be read on GitHub. The form of the pages says where to add: docs/index.md's points
are the tree, each point of docs/api.md with a name of the package gets the docstring, each header linked from
docs/cpp.md is shown whole, and each table of docs/benchmarks.md after a line `<!-- plot: NAME -->` is drawn.

The headers are shown unchanged and not through doxygen, because doxygen ignores plain `//` comments.
"""

import importlib
import inspect
import pathlib
import re

import plots

DOCS = pathlib.Path(__file__).resolve().parents[1]
# "names: meaning", the form of arguments in the docstrings of the package.
ARGUMENT = re.compile(r"(\*{0,2}[a-z_]\w*(?:, \*{0,2}[a-z_]\w*)*): (?=\S)")
# Classes whose objects only the package makes: users need no signature.
MADE_HERE = {"BoundOp", "CustomOp", "DeviceKernel", "DistributedContext", "Future", "KernelTimes", "MulticastTensor",
             "OfflinePlan", "Publication", "QueueWork", "Subscription", "Team", "Transaction", "WeightSync"}


def setup(app):
    app.connect("source-read", lambda app, name, source: source.__setitem__(
        0, PAGES.get(name, lambda app, text: text)(app, source[0])))
    app.connect("autodoc-process-docstring",
                lambda app, what, name, obj, options, lines: lines.__setitem__(slice(None), arguments_as_points(lines)))
    app.connect("autodoc-process-signature",
                lambda app, what, name, obj, options, signature, result: ("", None)
                                                                         if name.rpartition(".")[2] in MADE_HERE
                                                                         else None)
    # Base classes are shown without links: only references of the docstrings themselves must exist.
    app.connect("warn-missing-reference", lambda app, domain, node: None if "refwarn" in node else True)


def index(app, text):
    """Each heading's pages as a part of the tree at the left."""
    trees = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        names = re.findall(r"\]\(([\w-]+)\.md\)", part)
        trees.append("\n".join(["```{toctree}", ":hidden:", f":caption: {part.splitlines()[0]}", "", *names, "```"]))
    return text + "\n\n" + "\n\n".join(trees) + "\n"


def api(app, text):
    return re.sub(r"^\* `([\w.]+)`: .*$", described, text, flags=re.MULTILINE)


def described(point):
    """The docstring of the name in a point; the point itself where the name has no docstring of its own: a module,
    whose names follow, a value, or another name of a class."""
    path, _, name = f"shardwire.{point[1]}".rpartition(".")
    named = getattr(importlib.import_module(path), name)
    if inspect.ismodule(named) or not callable(named) or inspect.isclass(named) and named.__name__ != name:
        return point[0]
    if inspect.isclass(named):
        kind = "exception" if issubclass(named, BaseException) else "class"
        options = ["   :members:"]
    else:
        kind, options = "function", []
    return "\n".join(["", "```{eval-rst}", f".. auto{kind}:: {path}.{name}", *options, "```", ""])


def changes(app, text):
    """CHANGELOG.md, which lies in the root of the tree, outside of what the site is made of."""
    app.env.note_dependency(str(DOCS.parent / "CHANGELOG.md"))
    return (DOCS.parent / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")


def headers(app, text):
    """Each header whole, under its name."""
    def shown(point):
        name = pathlib.PurePosixPath(point[2]).name
        return "\n".join(
            ["", f"### {name}", point[3].strip(), "", f"```{{literalinclude}} {point[2]}", ":language: cpp", "```", ""])

    return re.sub(r"^\* \[([\w.]+)\]\((\.\./include/[\w/.]+)\): (.*)$", shown, text, flags=re.MULTILINE)


def benchmarks(app, text):
    folder = pathlib.Path(app.outdir) / "_figures"
    folder.mkdir(parents=True, exist_ok=True)
    drawn = plots.with_plots(text, folder, pathlib.Path(app.srcdir))
    # A number stays with its unit where a cell is narrow.
    return re.sub(r"^\|.*$", lambda row: re.sub(r"(\d) (us|ms|s|B|[KMG]i?B|GB/s)\b", "\\1\u00a0\\2", row[0]), drawn,
                  flags=re.MULTILINE)


PAGES = {"index": index, "api": api, "changes": changes, "cpp": headers, "benchmarks": benchmarks}


def arguments_as_points(lines):
    """Paragraphs of lines like "name: meaning", with indented continuations, as points of a list. Other paragraphs
    stay."""
    made, paragraph = [], []
    for line in [*lines, ""]:
        if line:
            paragraph.append(line)
            continue
        if paragraph and ARGUMENT.match(paragraph[0]) and all(ARGUMENT.match(each) or each.startswith(" ")
                                                              for each in paragraph):
            paragraph = [point(each) for each in paragraph]
        made += [*paragraph, ""]
        paragraph = []
    return made


def point(line):
    argument = ARGUMENT.match(line)
    if argument is None:
        return "  " + line.strip()
    names = ", ".join(f"**{name}**" if name.isidentifier() else f"``{name}``" for name in argument[1].split(", "))
    return f"* {names}: {line[argument.end():]}"
