"""The size check: files of at most 600 lines, functions of at most 100, lines of at most 120 columns; prints how many
files and functions exceed the aims of 300 and 40.

C++ functions are found by clang-format's shape: an opening line that ends in '{', closed by '}' at the same indent.
clang-tidy also counts lines of functions (names.py), but only in the core, after this machine's preprocessor: code for
another torch, another processor or CUDA is read here alone.
Test files may hold longer functions, and files up to 1000 lines.

Lines are measured in C++, Python, shell scripts, CMake's files and the pages. Longer may be: in pages, rows of tables,
lines of fenced blocks, and a single word such as an address; in Python, lines of a text in three quotes that is no
docstring: programs and data.
Usage: sizes.py [ROOT].
"""

import ast
import io
import pathlib
import re
import sys
import tokenize

FILE_LIMIT, TEST_FILE_LIMIT, FILE_AIM = 600, 1000, 300
FUNCTION_LIMIT, FUNCTION_AIM = 100, 40
WIDTH = 120
FSTRING_START, FSTRING_END = getattr(tokenize, "FSTRING_START", -1), getattr(tokenize, "FSTRING_END", -1)
FOLDERS = ("include", "ops", "backend", "python", "tests", "bench", "docs", ".ci")
CPP, PYTHON, OTHER, PAGES = {".h", ".cc", ".cu", ".cpp"}, {".py", ".pyi"}, {".cmake", ".sh", ".txt"}, {".md"}
FENCE = re.compile(r"^( *)(```+)[^\n`]*\n.*?^\1\2$", re.MULTILINE | re.DOTALL)
NOT_A_FUNCTION = re.compile(r"^\s*(if|for|while|switch|else|do|try|catch|namespace|class|struct|enum|union|extern|case|"
                            r"default|return|\}|//|#)\b|^\s*[})]")


def statement_start(lines, number):
    """The first line of the statement that ends in line `number`: an opening brace may follow several lines of
    arguments or initialisers.
    """
    while number > 0:
        before = lines[number - 1].strip()
        if (not before or before.endswith((";", "}", "{")) or before.startswith(("//", "#", "template"))
                or re.match(r"(public|private|protected):$", before)):
            return number
        number -= 1
    return number


def cpp_functions(text):
    """(first line, lines) of each function; lambdas and blocks inside a function belong to the function."""
    lines, number = text.split("\n"), 0
    while number < len(lines):
        start = statement_start(lines, number) if lines[number].rstrip().endswith("{") else number
        head = lines[start]
        if (start <= number and lines[number].rstrip().endswith("{") and not NOT_A_FUNCTION.match(head)
                and ")" in " ".join(lines[start: number + 1])):
            closing = re.compile(re.match(r"\s*", head).group() + r"\}")
            for end in range(number + 1, len(lines)):
                if closing.match(lines[end]):
                    yield start + 1, end - start + 1
                    number = end
                    break
        number += 1


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno - node.lineno + 1


def data_lines(text):
    """The numbers of the lines inside of texts in three quotes, without docstrings."""
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            if ast.get_docstring(node, clean=False) is not None:
                docstrings.add(node.body[0].lineno)
    found, begins = set(), []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == FSTRING_START:  # from Python 3.12 on an f-string is many tokens
            begins.append(token.start[0])
        elif token.type in (tokenize.STRING, FSTRING_END):
            first = token.start[0] if token.type == tokenize.STRING else begins.pop()
            if first < token.end[0] and first not in docstrings:
                found.update(range(first, token.end[0] + 1))
    return found


def width_findings(path, text):
    suffix = pathlib.PurePath(path).suffix
    if suffix in PAGES:
        text = FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    elif suffix == ".txt" and not path.endswith("CMakeLists.txt"):  # lists for programs
        return []
    long = [(number, line) for number, line in enumerate(text.split("\n"), 1) if len(line) > WIDTH]
    if suffix in PAGES:
        long = [(number, line) for number, line in long if not re.match(r"\s*(\||([*+-] +|\d+\. +)?\S+$)", line)]
    elif suffix in PYTHON and long:
        data = data_lines(text)
        long = [(number, line) for number, line in long if number not in data]
    return [f"{path}:{number}: a line of {len(line)} columns, the limit is {WIDTH}" for number, line in long]


def measure(path, text):
    """(findings, lines of the file, lengths of the functions)."""
    suffix, is_test, found = pathlib.PurePath(path).suffix, path.startswith("tests/"), []
    count, limit = len(text.splitlines()), TEST_FILE_LIMIT if is_test else FILE_LIMIT
    if count > limit:
        found.append(f"{path}: {count} lines, the limit is {limit}")
    functions = list(cpp_functions(text) if suffix in CPP else python_functions(text) if suffix in PYTHON else [])
    if not is_test:
        found += [f"{path}:{line}: a function of {lines} lines, the limit is {FUNCTION_LIMIT}"
                  for line, lines in functions if lines > FUNCTION_LIMIT]
    return found + width_findings(path, text), count, [lines for _, lines in functions]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2])
    wanted = CPP | PYTHON | OTHER
    files = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*"))
             if path.suffix in wanted and path.is_file()]
    files += [path for name in ("run", "CMakeLists.txt", "install.cmake", "merged.cmake", ".ci/run", ".ci/weekly")
              if (path := root / name).exists()]
    pages = [*root.glob("*.md"), *root.glob("*.py"), *(root / ".github").rglob("*.md")]
    pages += [path for folder in FOLDERS for path in (root / folder).rglob("*.md")]
    found, counts, lengths = [], [], []
    for path in sorted(pages):
        found += width_findings(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    for path in files:
        bad, count, functions = measure(path.relative_to(root).as_posix(), path.read_text())
        found += bad
        counts.append(count)
        lengths += functions
    for words in found:
        print(words)
    if not files:
        print(f"no files under {root}")
        return 1
    long_files, long_functions = sum(n > FILE_AIM for n in counts), sum(n > FUNCTION_AIM for n in lengths)
    print(
        f"{len(files)} files, {sum(counts)} lines; {long_files} files over {FILE_AIM}, {long_functions} of "
        f"{len(lengths)} functions over {FUNCTION_AIM}; {len(found)} findings"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
