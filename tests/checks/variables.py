"""The variables check: docs/variables.md has every SHARDWIRE_* variable of the library, and no other.

A group's variables are in include/shardwire/options.h, each member with a comment: the first table is made of these
comments. The other tables are written by hand; each variable that the library reads must be in one of the tables.
Usage: variables.py [ROOT]; variables.py --fix rewrites the first table.
"""

import pathlib
import re
import sys

BEGIN, END = "<!-- made of include/shardwire/options.h by tests/checks/variables.py --fix -->", "<!-- until here -->"
LIBRARY = ("backend", "ops", "python/csrc", "python/shardwire", "python/shardwire_autoload.py")
MEMBER = re.compile(r"((?:^  //.*\n)+)^  [^/\n]+?\b\w+(?: = (?P<default>[^;]+))?;$", re.MULTILINE)


def rows(header):
    """(variable, values, default, other libraries' variables, meaning) of each option with an environment variable."""
    for member in MEMBER.finditer(header):
        comment = " ".join(line.strip()[2:].strip() for line in member.group(1).splitlines())
        named = re.search(r"SHARDWIRE_[A-Z_]+(=[a-z01_|]+)?", comment)
        if named is None:
            continue
        fallback = ", ".join(dict.fromkeys(re.findall(r"\b(?:NCCL|GLOO|TORCH)_[A-Z_]+", comment)))
        meaning = re.sub(r"\s*SHARDWIRE_[A-Z_]+(=[a-z01_|]+)?(, else (?:NCCL|GLOO|TORCH)_[A-Z_]+)*[.;]?", "",
                         comment).strip()
        yield (named.group(0).partition("=")[0], named.group(1) or "",
               "0" if named.group(1) == "=0|1" else default_of(member["default"]), fallback, meaning)


def default_of(written):
    """A member's default in common words: "30 min", "1 MiB", "auto"."""
    for pattern, say in (
            (r"std::chrono::(minutes|seconds)\((\d+)\)", lambda m: f"{m[2]} {'min' if m[1] == 'minutes' else 's'}"),
            (r"std::chrono::milliseconds\((\d+)\)", lambda m: f"{int(m[1]) / 1000:g} s"),
            (r"std::size_t\{(\d+)\} << (10|20|30)",
             lambda m: f"{m[1]} {dict([('10', 'KiB'), ('20', 'MiB'), ('30', 'GiB')])[m[2]]}"),
            (r"\w+::k([A-Z]\w*)", lambda m: m[1].lower()), (r"std::chrono::nanoseconds\(-1\)|-1|0", lambda m: "chosen"),
            (r"false", lambda m: "default")):
        matched = re.fullmatch(pattern, written or "")
        if matched:
            return say(matched)
    return "" if written is None else written


def table(header):
    lines = ["| variable | values | default | or that of another library | meaning |", "|---|---|---|---|---|"]
    for name, values, default, fallback, meaning in rows(header):
        shown = ", ".join(f"`{value}`" for value in values.lstrip("=").split("|") if value)
        lines.append(f"| `{name}` | {shown} | {default} | {fallback} | {meaning.replace('|', '/')} |")
    return "\n".join(lines)


def read_by(text):
    """Names that a source reads: quoted whole, as in getenv and os.environ."""
    return set(re.findall(r"[\"'](SHARDWIRE_[A-Z0-9_]+)[\"']", text))


def findings(root):
    page = (root / "docs" / "variables.md").read_text()
    wanted = table((root / "include" / "shardwire" / "options.h").read_text())
    _, found, rest = page.partition(BEGIN)
    if not found or rest.partition(END)[0].strip() != wanted:
        yield ("docs/variables.md:1: its first table is not what include/shardwire/options.h says: run "
               "tests/checks/variables.py --fix")
    listed = set(re.findall(r"^\| `(SHARDWIRE_[A-Z0-9_]+)", page, re.MULTILINE))
    read = {}
    for place in LIBRARY:
        for path in sorted([root / place] if (root / place).is_file() else (root / place).rglob("*")):
            if path.suffix in (".cc", ".h", ".py"):
                for name in read_by(path.read_text(encoding="utf-8")):
                    read.setdefault(name, path.relative_to(root))
    for name in sorted(read.keys() - listed):
        yield f"{read[name]}:1: reads {name}, which docs/variables.md does not have"
    for name in sorted(listed - read.keys()):
        yield f"docs/variables.md:1: has {name}, which nothing in the library reads"


def main():
    words = [word for word in sys.argv[1:] if word != "--fix"]
    root = pathlib.Path(words[0]) if words else pathlib.Path(__file__).resolve().parents[2]
    if "--fix" in sys.argv:
        page = root / "docs" / "variables.md"
        before, _, rest = page.read_text().partition(BEGIN)
        page.write_text(f"{before}{BEGIN}\n{table((root / 'include' / 'shardwire' / 'options.h').read_text())}\n"
                        f"{END}{rest.partition(END)[2]}")
    found = list(findings(root))
    print("\n".join([*found, f"{len(found)} findings"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
