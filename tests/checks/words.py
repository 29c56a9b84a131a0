"""The words check: comments, docstrings and pages in plain English. docs/CONTRIBUTING.md has the list of words.

Of each source and page under ROOTS:
  reference words   words that only refer to another word (REFERENCE) are at most 4 of 100. TensorPipe, KJ, Abseil,
                    gloo, nixl, MSCCL++ and UCX have between 1.1 and 3.8. Files with fewer than 100 words are added up
                    with the other small files of the room, since two words would decide. Printed texts of the product
                    (texts of three words or more in its sources) are counted likewise, each file alone; the strings
                    of tests are programs and samples.
  free clauses      no sentence begins with `Who`, `Whoever`, `Whose`, `Whom` or `What`, except a question: the sentence
                    names its subject.
  metaphors         the field's word stands in place of each word of METAPHORS: in comments, pages, and texts that the
                    program prints.
  stories           a .cc of 150 lines or more begins with a comment of at least 20 words that says what the file does
                    and in which order.

The check does not look for sentences without a verb. A comment that describes a member ("Bytes of the header.") is
rightly a noun phrase, and English verbs look like plural nouns ("copies", "waits"). A trial with a list of verbs and
endings found 112 of 2,526 sentences of C++. Of 40 of these 30 were noun phrases or labels, 6 had a verb missing in the
list, and 4 were broken sentences.

A room is a folder directly below a root, or the root itself (backend/base, docs).
Usage: words.py [ROOT].
"""

import ast
import io
import pathlib
import re
import sys
import tokenize
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT, FEWEST, FEWEST_OF_A_TEXT = 4.0, 100, 3
STORY_LINES, STORY_WORDS = 150, 20
ROOTS = ("README.md", "backend", "bench", "docs", "include", "ops", "python", "tests")
EXAMPLES = "tests/checks/test_words.py"  # has sentences with findings, as examples

REFERENCE = frozenset(
    "it its itself they them their theirs themselves that those one's ones such others who whom whose whoever nobody "
    "anybody somebody nobody's anybody's somebody's it's that's who's".split()
)
METAPHORS = {
    r"doors?": "endpoint, listener or entry point",
    r"knock(s|ed|ing)?": "connection request, or: requests a connection",
    r"strangers?": "foreign process, or: unknown sender",
    r"bur(y|ies|ied|ying)|graveyards?": "release later; deferred release",
    r"tell(s|ing)?|told": "notify, report, state, distinguish",
    r"hears?|heard|hearing": "receive, be notified",
    r"mend(s|ed|ing)?": "fix, repair",
    r"turn(s|ed|ing)? away": "reject",
    r"(come|comes|coming|came) along": "be included",
    r"lets? go( of)?": "release",
    r"in\s+good\s+order": "normally, without an error",
}
METAPHOR = re.compile(r"\b(?:" + "|".join(f"(?P<m{number}>{pattern})" for number, pattern in enumerate(METAPHORS))
                      + r")\b(?![(_.:-]\w|\()", re.IGNORECASE)
SUGGESTIONS = list(METAPHORS.values())
FREE = re.compile(r"(?:who|whoever|whose|whom|what|whatever)\b", re.IGNORECASE)
WORD = re.compile(r"[A-Za-z][A-Za-z']*")
VALUE = re.compile(r"\{[^{}\"]*\}")  # of a format or an f-string
CPP, PYTHON = {".h", ".cc", ".cu"}, {".py", ".pyi"}
TOKEN = re.compile(r'(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<text>R"(?P<fence>\w*)\(.*?\)(?P=fence)"|"(?:[^"\\\n]|\\.)*")|'
                   r'\'(?:[^\'\\\n]|\\.)+\'', re.DOTALL)


class Prose(NamedTuple):
    """A piece of text, the line of the beginning, and whether the text is prose to be counted or printed by the
    program.
    """

    line: int
    text: str
    printed: bool = False


def cpp_prose(source):
    """Comments and string literals; consecutive comments alone on a line are joined."""
    found, last, line, counted = [], -1, 1, 0
    for match in TOKEN.finditer(source):
        line += source.count("\n", counted, match.start())
        counted = match.start()
        if match["text"]:
            found.append(Prose(line, match["text"], printed=True))
        elif match["comment"]:
            words = re.sub(r"^//+ ?|^/\*+|\*+/$", "", match["comment"])
            alone = not source[source.rfind("\n", 0, match.start()) + 1 : match.start()].strip()
            if alone and found and last == line - 1 and not found[-1].printed:
                found[-1] = Prose(found[-1].line, found[-1].text + "\n" + words)
            else:
                found.append(Prose(line, words))
            last = line if alone and match["comment"].startswith("//") else -1
    return found


def python_prose(source):
    """Comments, docstrings, and strings."""
    docstrings = {}
    for node in ast.walk(ast.parse(source)):
        if (isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body
                and isinstance(node.body[0], ast.Expr)):
            value = node.body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docstrings[value.lineno] = value.value
    found, last = [], -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            words, alone = token.string.lstrip("#").strip(), not token.line[: token.start[1]].strip()
            if alone and found and last == line - 1 and not found[-1].printed:
                found[-1] = Prose(found[-1].line, found[-1].text + "\n" + words)
            else:
                found.append(Prose(line, words))
            last = line if alone else -1
        elif token.type == tokenize.STRING:
            found.append(Prose(line, docstrings[line]) if line in docstrings
                         else Prose(line, token.string, printed=True))
    return found


def page_prose(source):
    """Paragraphs, items and cells of a page: no blocks of code, no headings."""
    source = re.sub(r"^( *)```.*?^\1```$|<!--.*?-->", lambda match: re.sub(r"[^\n]", "", match[0]), source,
                    flags=re.DOTALL | re.MULTILINE)
    found, last = [], -1
    for number, line in enumerate(source.split("\n"), 1):
        if re.match(r"\s*(#|$|\|[ :|-]+\|?$)", line):
            continue
        begins = re.match(r"\s*([*-] |\d+\. |\|)", line)
        if found and last == number - 1 and not begins:
            found[-1] = Prose(found[-1].line, found[-1].text + "\n" + line)
        else:
            found += [Prose(number, cell) for cell in (line.split("|") if line.lstrip().startswith("|")
                                                       else [re.sub(r"^\s*([*-]|\d+\.) ", "", line)])]
        last = number
    return found


def plain(text):
    """Without code in backquotes, quoted words, addresses, and targets of links."""
    text = re.sub(r"``.*?``|`[^`]*`", "x", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)|https?://\S+", " ", text)
    return re.sub(r'"[^"\n]{1,60}"', "x", text)


def sentences(text):
    """(offset, sentence): what ends in . ! ? or in an empty line. A colon or semicolon ends none."""
    start = 0
    for end in re.finditer(r"[.!?](?=[\s)]|$)|\n\s*\n|\Z", text):
        piece = text[start : end.end()]
        if piece.strip():
            yield start + len(piece) - len(piece.lstrip()), piece.strip()
        start = end.end()


def prose_of(path, source):
    suffix = pathlib.PurePath(path).suffix
    return cpp_prose(source) if suffix in CPP else python_prose(source) if suffix in PYTHON else page_prose(source)


def without_story(path, source, pieces):
    if not path.endswith(".cc") or source.count("\n") < STORY_LINES:
        return False
    return not source.startswith(("//", "/*")) or len(WORD.findall(pieces[0].text)) < STORY_WORDS


def counts_of(text):
    """(words, reference words)"""
    here = WORD.findall(text)
    return len(here), sum(word.lower() in REFERENCE for word in here)


def printed_findings(path, pieces):
    """The finding of a file of the product whose printed texts have too many reference words."""
    texts = [VALUE.sub(" ", piece.text) for piece in pieces if piece.printed and " " in piece.text]
    counts = [(words, references) for words, references in map(counts_of, texts) if words >= FEWEST_OF_A_TEXT]
    words, references = map(sum, zip(*counts)) if counts else (0, 0)
    above = words >= FEWEST and not path.startswith("tests/") and too_many(f"{path}, printed texts", words, references)
    return [above] if above else []


def measure(path, source):
    """(findings, words, reference words) of one file."""
    pieces = prose_of(path, source)
    found, words, references = printed_findings(path, pieces), 0, 0
    for piece in pieces:
        text = piece.text if piece.printed else plain(piece.text)
        if not piece.printed:
            words, references = map(sum, zip((words, references), counts_of(text)))
            for offset, sentence in sentences(text):
                if FREE.match(sentence.lstrip("(*_")) and not sentence.rstrip(")*_").endswith("?"):
                    line = piece.line + text.count("\n", 0, offset)
                    found.append(f"{path}:{line}: a sentence without a subject, name the rank, caller or thing: "
                                 f"{' '.join(sentence.split())[:80]}")
        elif " " not in text:
            continue
        for match in METAPHOR.finditer(text):
            line = piece.line + text.count("\n", 0, match.start())
            suggestion = next(SUGGESTIONS[number] for number in range(len(SUGGESTIONS)) if match[f"m{number}"])
            found.append(f"{path}:{line}: {match[0]!r}: {suggestion}")
    if without_story(path, source, pieces):
        found.append(f"{path}:1: {STORY_LINES} lines or more, and no comment at the head that says what the file does "
                     "and in which order")
    return found, words, references


def room_of(path):
    """The room of a file, or None for a file that is not checked."""
    root, *folders = path.split("/")
    return None if root not in ROOTS or path == EXAMPLES else "/".join([root, *folders[:-1][:1]])


def too_many(name, words, references):
    return (f"{name}: {100 * references / words:.1f} reference words per 100 ({references} of {words}), the limit is "
            f"{LIMIT:g}" if 100 * references > LIMIT * words else None)


def measure_tree(root):
    """(findings, {room: [words, reference words]})"""
    found, rooms, small = [], {}, {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        room = room_of(name)
        if (room is None or path.suffix not in CPP | PYTHON | {".md"} or not path.is_file()
                or "__pycache__" in path.parts):
            continue
        bad, words, references = measure(name, path.read_text(encoding="utf-8"))
        found += bad
        sums = [rooms.setdefault(room, [0, 0])]
        if words < FEWEST:
            sums.append(small.setdefault(room, [0, 0]))
        elif above := too_many(name, words, references):
            found.append(above)
        for counts in sums:
            counts[0] += words
            counts[1] += references
    for room, (words, references) in small.items():
        name = f"{room}, its files with fewer than {FEWEST} words"
        if words >= FEWEST and (above := too_many(name, words, references)):
            found.append(above)
    return found, rooms


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT)
    found, rooms = measure_tree(root)
    for room, (words, references) in sorted(rooms.items()):
        print(f"{room}: {100 * references / max(words, 1):.1f} reference words per 100, {words} words")
    for line in found:
        print(line)
    if not rooms:
        print(f"no rooms under {root}")
        return 1
    print(f"{len(rooms)} rooms, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
