"""Finds the places in C++ sources that mutate.py changes: conditions, comparisons, statements, returned truths."""

import pathlib
import re
import sys

sys.path.append("/usr/lib/python3/dist-packages")  # Debian's python3-clang-14
from clang import cindex  # noqa: E402  pylint: disable=wrong-import-position

BOUNDARY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
Kind = cindex.CursorKind
FUNCTIONS = {Kind.FUNCTION_DECL, Kind.CXX_METHOD, Kind.CONSTRUCTOR, Kind.DESTRUCTOR, Kind.FUNCTION_TEMPLATE,
             Kind.CONVERSION_FUNCTION}
SCOPES = {Kind.NAMESPACE, Kind.CLASS_DECL, Kind.STRUCT_DECL, Kind.CLASS_TEMPLATE}
LOOPS = {Kind.FOR_STMT, Kind.WHILE_STMT, Kind.CXX_FOR_RANGE_STMT, Kind.DO_STMT}
NOT_DELETED = re.compile(r"(log[A-Z]\w*|SW_\w+|static_cast<void>)\(")


class Places:
    """The places of one file that mutants change: (first byte, last byte, what, the parts of a comparison)."""

    def __init__(self, text):
        self.text = text
        self.found = {}
        self.macros = [(macro.start(), self.end_of(macro.end())) for macro in re.finditer(r"\b[A-Z][A-Z_]+\(", text)]
        for begin, end in self.macros:
            if text.startswith("SW_RETURN_IF_ERROR(", begin) and text[end] == ";":
                self.found[begin, end + 1, "deleted"] = ()

    def end_of(self, at):
        """The end of the parenthesis whose inside begins at `at`."""
        depth = 1
        while depth > 0:
            depth += {"(": 1, ")": -1}.get(self.text[at], 0)
            at += 1
        return at

    def of(self, cursor):
        return cursor.extent.start.offset, cursor.extent.end.offset

    def add(self, begin, end, what, *parts):
        inside = self.text[begin:end]
        is_plain = all(inside.count(a) == inside.count(b) for a, b in ["()", "{}", "[]"]) and 'R"' not in inside
        in_macro = any(first <= begin and end <= last for first, last in self.macros)
        if begin < end and is_plain and not in_macro and not (parts and "//" in inside):
            self.found[begin, end, what] = parts

    def force(self, cursor, values):
        begin, end = self.of(cursor)
        for value in values:
            if value != self.text[begin:end]:
                self.add(begin, end, value)

    def visit(self, cursor, in_loop=False):
        kind, children = cursor.kind, list(cursor.get_children())
        begin, end = self.of(cursor)
        text = self.text[begin:end]
        is_declared = any(child.kind == Kind.VAR_DECL for child in children)  # as in if (const auto x = f())
        if kind in (Kind.CALL_EXPR, Kind.UNEXPOSED_EXPR) and re.match(r"(fmt::format|log[A-Z]\w*)\(", text):
            return
        if kind == Kind.DECL_STMT and re.match(r"(static )?constexpr\b|static_assert", text):
            return
        if kind in (Kind.IF_STMT, Kind.WHILE_STMT, Kind.CONDITIONAL_OPERATOR) and not is_declared:
            if text.startswith("if constexpr"):
                return
            condition = next((child for child in children if child.kind.is_expression()), None)
            if condition is not None:
                self.force(condition, ["false"] if kind == Kind.WHILE_STMT else ["true", "false"])
        if kind == Kind.FOR_STMT and len(children) == 4:
            self.force(children[1], ["false"])
        if kind == Kind.RETURN_STMT and children and children[0].type.kind == cindex.TypeKind.BOOL:
            self.force(children[0], ["true", "false"])
        self.compare(kind, cursor, children)
        if kind == Kind.COMPOUND_STMT:
            for child in children:
                self.delete(child, in_loop)
        if kind in (Kind.CASE_STMT, Kind.DEFAULT_STMT) and children:
            self.delete(children[-1], False)
            children = children[-1:]
        for child in children:
            self.visit(child, kind in LOOPS or (in_loop and kind not in (Kind.SWITCH_STMT, Kind.LAMBDA_EXPR)))

    def compare(self, kind, cursor, children):
        if kind == Kind.BINARY_OPERATOR and len(children) == 2:
            left, right = children
        elif kind == Kind.CALL_EXPR and re.match(r"operator[<>=!]", cursor.spelling) and len(children) == 3:
            left, right = children[0], children[2]
        else:
            return
        between = self.text[left.extent.end.offset:right.extent.start.offset].strip()
        if between in BOUNDARY:
            (begin, _), (_, end) = parts = self.of(left), self.of(right)
            self.add(begin, end, BOUNDARY[between], *parts)
        elif between in ("&&", "||"):
            for side in (left, right):
                self.force(side, ["true" if between == "&&" else "false"])

    def delete(self, cursor, in_loop):
        begin, end = self.of(cursor)
        text = self.text[begin:end]
        is_jump = text == "return" or (in_loop and text in ("break", "continue"))
        is_call = cursor.kind.is_expression() and not NOT_DELETED.match(text)
        if (is_jump or is_call) and self.text[end:end + 1] == ";":
            self.add(begin, end + 1, "deleted")


def places_of(tree, folder):
    """{path in the tree: Places} of the sources of a folder, found in one translation unit of all of them."""
    places = {str(path): Places(path.read_text(encoding="utf-8")) for path in sorted((tree / folder).glob("*.cc"))}
    unit = str(tree / "all.cc")
    text = "".join(f'#include "{path}"\n' for path in places)
    parsed = cindex.Index.create().parse(unit, ["-std=c++20", f"-I{tree}", f"-I{tree}/include", "-w"], [(unit, text)])
    for problem in parsed.diagnostics:
        print("clang:", problem, file=sys.stderr)

    def descend(cursor):
        for child in cursor.get_children():
            at = child.location.file and places.get(child.location.file.name)
            if at and child.kind in FUNCTIONS and child.is_definition():
                body = next((part for part in child.get_children() if part.kind == Kind.COMPOUND_STMT), None)
                head = at.text[child.extent.start.offset:body.extent.start.offset] if body else "constexpr"
                if not re.search(r"\b(constexpr|consteval)\b", head):
                    at.visit(body)
            elif at and child.kind in SCOPES:
                descend(child)
    descend(parsed.cursor)
    return {str(pathlib.Path(path).relative_to(tree)): at for path, at in places.items()}
