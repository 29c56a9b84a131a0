"""The docs check: the pages of the root and docs/*.md hold together, without building the site.

Links lead to existing files and headings. docs/index.md leads to every page. docs/api.md has every exported name of the
package. The errors in docs/errors.md occur in the sources. No sentence has more than 40 words, code in backquotes
counted as one. Each Python block is a whole program, to be pasted and run. The line before the block says how the block
is run as shown:

    <!-- run: 4 ranks -->, also "1 and 3 ranks", ", torch 2.6"    by tests/python/test_examples.py
    <!-- run by tests/python/test_kernels.py -->                  by the named test, which names the page
    <!-- excerpt of tests/python/test_publish.py -->              not at all: a part of the named test's program

The first line of an excerpt names the block that it continues: "# Continues server.py above."

Usage: docs.py [ROOT].
"""

import ast
import builtins
import pathlib
import re
import sys
from typing import NamedTuple

LONGEST = 40
# Packages with an __all__ that must be in docs/api.md, by their names there.
PACKAGES = {"": "__init__.py", "symm.": "symm/__init__.py", "distributed.": "distributed/__init__.py",
            "distributed.experts.": "distributed/experts.py", "distributed.fft.": "distributed/fft.py",
            "distributed.reshape.": "distributed/reshape.py",
            "distributed.linalg.": "distributed/linalg/__init__.py",
            "distributed.linalg.advanced.": "distributed/linalg/advanced/__init__.py"}
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- (?:run: (?P<sizes>\d+(?: and \d+)*) ranks?(?:, torch (?P<torch>\d+\.\d+))?|(?P<how>run "
                  r"by|excerpt of) (?P<test>\S+\.py))"
                  r" -->\n\Z")


class Example(NamedTuple):
    """A Python block. sizes: numbers of ranks that run the block whole; test: the file that runs or contains the block,
    where no size is given.
    """

    page: str
    line: int
    code: str
    sizes: tuple[int, ...] = ()
    torch: str = ""
    test: str = ""
    how: str = ""


def pages(root):
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("*.md"))]


def examples(root):
    """(Example or None if the mark is missing, page, line) of each Python block."""
    for path in pages(root):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
        for block in FENCE.finditer(text):
            if block[2] != "python":
                continue
            line = text.count("\n", 0, block.start()) + 1
            mark = MARK.search(text[: block.start()])
            if mark is None:
                yield None, name, line
                continue
            sizes = tuple(int(size) for size in re.findall(r"\d+", mark["sizes"] or ""))
            yield Example(name, line, block[3], sizes, mark["torch"] or "", mark["test"] or "",
                          mark["how"] or "run"), name, line


def example_findings(root):
    for example, name, line in examples(root):
        if example is None:
            yield (f"{name}:{line}: a Python block without a line above it that names the test that runs the block; "
                   "tests/checks/docs.py lists the forms")
        elif example.test and not (root / example.test).is_file():
            yield f"{name}:{line}: there is no {example.test}"
        elif (example.how == "run by"
              and pathlib.PurePath(name).name not in (root / example.test).read_text(encoding="utf-8")):
            yield f"{name}:{line}: {example.test} does not name this page"
        elif example.how == "excerpt of" and not re.match(r"# Continues [^\n]+\.\n", example.code):
            yield (f"{name}:{line}: an excerpt begins with a line that says which program it is of: # Continues "
                   "server.py above.")
        else:
            try:
                program = ast.parse(example.code)
            except SyntaxError as error:
                yield f"{name}:{line + (error.lineno or 0)}: {error.msg}"
                continue
            if missing := undefined(program) if example.how != "excerpt of" else set():
                yield f"{name}:{line}: no whole program: nothing defines {', '.join(sorted(missing))}"


def undefined(program):
    """Names that a program uses and nowhere defines."""
    nodes = list(ast.walk(program))
    defined = {name.asname or name.name.partition(".")[0] for node in nodes
               if isinstance(node, (ast.Import, ast.ImportFrom)) for name in node.names}
    defined |= {node.name for node in nodes
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler))
                   and node.name} | {node.arg for node in nodes if isinstance(node, ast.arg)}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    defined |= {name.id for name in names if not isinstance(name.ctx, ast.Load)} | set(dir(builtins))
    return {name.id for name in names} - defined


def error_findings(root):
    """The error words in docs/errors.md occur in the sources."""
    said = re.findall(r"^\| `([^`]+)` \|",
                      (root / "docs" / "errors.md").read_text(encoding="utf-8").partition("## The types")[0],
                      re.MULTILINE)
    sources = [path for folder in ("backend", "ops", "python") for path in sorted((root / folder).rglob("*"))
               if path.suffix in (".cc", ".h", ".py")]
    # Strings that go on in the next line are one.
    whole = "\n".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8")) for path in sources)
    for words in said:
        if words not in whole:
            yield f"docs/errors.md:1: explains an error that says {words!r}, which no source does"
    if not said:
        yield "docs/errors.md:1: explains no error"


def without_code(text):
    """The page with each fenced block's lines empty: other lines keep their numbers."""
    return FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)


def slug(heading):
    """A heading's anchor, in GitHub's form."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")


def links(path):
    """(line, target) of each relative link."""
    text = re.sub(r"`[^`\n]*`", "", without_code(path.read_text(encoding="utf-8")))
    for found in re.finditer(r"\]\(([^()\s]+)\)", text):
        if not re.match(r"[a-z]+:", found[1]):
            yield text.count("\n", 0, found.start()) + 1, found[1]


def link_findings(root):
    anchors = {path: {
        slug(title) for title in re.findall(r"^#+ (.*)$", without_code(path.read_text(encoding="utf-8")), re.MULTILINE)}
               for path in pages(root)}
    reached = set()
    for path in pages(root):
        for line, link in links(path):
            name, _, anchor = link.partition("#")
            there = (path.parent / name).resolve() if name else path
            where = f"{path.relative_to(root)}:{line}: {link}"
            if not there.exists():
                yield f"{where} leads nowhere"
            elif anchor and anchor not in anchors.get(there, ()):
                yield f"{where}: no heading there has this name"
            if path.name == "index.md":
                reached.add(there)
    for path in pages(root):
        if path.parent.name == "docs" and path.name != "index.md" and path not in reached:
            yield f"docs/index.md:1: does not lead to {path.name}"


def exported(path):
    """The names in a module's __all__."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return ast.literal_eval(node.value)
    raise ValueError(f"{path} has no __all__")


def api_findings(root):
    listed = re.findall(r"^\* `([\w.]+)`:", (root / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    wanted = {prefix + name for prefix, module in PACKAGES.items()
              for name in exported(root / "python" / "shardwire" / module)}
    for name in sorted(wanted.difference(listed)):
        yield f"docs/api.md:1: does not have shardwire.{name}, which is exported"
    # In tables, without docstrings: the docstrings of NVSHMEM4Py hold for the names.
    text, package = (root / "docs" / "api.md").read_text(encoding="utf-8"), root / "python" / "shardwire"
    tables = "".join(re.findall(r"^\|.*$", text, re.MULTILINE))
    commands = {f"python -m shardwire.{path.parent.name}" for path in package.glob("*/__main__.py")} | {
        f"python -m shardwire.{path.stem}" for path in package.glob("*.py")
        if not path.name.startswith("_") and "__main__" in path.read_text(encoding="utf-8")}
    for name in sorted({name for name in exported(package / "nvshmem" / "core" / "__init__.py")
                        if f"`{name}`" not in tables} | {name for name in commands if f"* `{name}`:" not in text}):
        yield f"docs/api.md:1: does not have {name}"
    for name in sorted({name for name in listed if listed.count(name) > 1}):
        yield f"docs/api.md:1: has shardwire.{name} twice"


def sentences(text):
    """(line, sentence) of a page: of the paragraphs, points and cells of tables."""
    text = re.sub(r"<!--.*?-->", lambda comment: "\n" * comment[0].count("\n"), without_code(text), flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", lambda code: "X" + "\n" * code[0].count("\n"), text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    begin = 1
    for part in re.split(r"(\n\s*\n|\n(?=\s*(?:[*+-]|\d+\.) )|\n(?=\s*\|)|\n(?=#)|(?<!\n)\|(?!\n))", text):
        for sentence in re.split(r"(?<=[.!?])[)\"*]*\s+", part.strip(" |\n")):
            yield begin, sentence
        begin += part.count("\n")


def sentence_findings(root):
    for path in pages(root):
        for line, sentence in sentences(path.read_text(encoding="utf-8")):
            words = len(re.findall(r"[^\W\d][\w'-]*", sentence))
            if words > LONGEST and not sentence.startswith("#"):
                yield (f"{path.relative_to(root)}:{line}: a sentence of {words} words, the limit is {LONGEST}: "
                       f"{' '.join(sentence.split())[:60]} ...")


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]).resolve()
    found = [*link_findings(root), *api_findings(root), *error_findings(root), *example_findings(root),
             *sentence_findings(root)]
    print("\n".join(
        [*found, f"{len(pages(root))} pages, {sum(1 for _ in examples(root))} Python examples, {len(found)} findings"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
