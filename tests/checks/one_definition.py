"""One name, one definition: no two classes, functions or variables with external linkage share a name in code that may
be one process.

The linker keeps one copy of an inline function of several units and reports no difference; the kept copy decides what
the program does.
Two passes. The first reads the sources (types, functions and inline variables at namespace scope, everywhere, also in
code that this machine cannot compile). The second, with --objects BUILD, reads the compiled objects: each inline
function with a name of ours must refer to the same symbols in every unit, and each inline variable and table of virtual
functions must have the same bytes. (Not the functions' bytes: if a unit happens to see a destructor, GCC leaves out the
code that would clean up after the destructor.) BUILD is compiled with -O0, which inlines nothing, so every used
function is there.
A test program is one process with the library and tests/support.
Usage: one_definition.py [--objects BUILD] [ROOT].
"""

import collections
import hashlib
import json
import os
import pathlib
import re
import struct
import sys

from layers import sources

# CMake compiles one of each pair: the second if libibverbs has headers, else the first.
ALTERNATIVES = [("backend/transport/rdma/no_verbs.cc", "backend/transport/rdma/")]
# Compiled for processors that not every machine has: a weak symbol in these objects could be the copy that the linker
# keeps for all.
FOR_SOME_PROCESSORS = re.compile(r"shardwire_kernels_\w+\.dir/")


def program_of(path):
    """None: part of every process. Else the one kind of process with this file."""
    if path.startswith("tests/fuzz/") and path.endswith("_fuzz.cc"):
        return path
    if path.startswith("tests/") and not path.startswith("tests/support/"):
        return str(pathlib.PurePosixPath(path).parent)
    if path.startswith("docs/"):
        return path
    return "bench" if path.startswith("bench/") else None


def may_meet(a, b):
    for special, others in ALTERNATIVES:
        if special in (a, b) and a.startswith(others) and b.startswith(others):
            return False
    programs = {program_of(a), program_of(b)} - {None}
    return a != b and len(programs) < 2


# ---- the sources

TOKEN = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | ^[ \t]*\#(?:\\\n|[^\n])*      # comments, preprocessor lines
      | R"(?P<mark>[^()\s]*)\(.*?\)(?P=mark)" | "(?:\\.|[^"\\])*" | (?<![0-9a-fA-F])'(?:\\.|[^'\\])*'""",
    re.X | re.S | re.M,
)
TYPE = re.compile(r"(?:class|struct|union|enum(?: class| struct)?) (?:[A-Z_]+\([^()]*\) )?([\w:]+(?: ?<.*>)?) "
                  r"?(?:final ?)?(?::(?!:).*)?$")
TEMPLATE = re.compile(r"template\s*<")
FUNCTION = re.compile(r"([\w:~]*(?:operator\s*(?:\(\)|[^\s(]+|\w+))?)\s*\(")


def blanked(text):
    """The text with comments, literals and preprocessor lines emptied; all other text keeps its place."""
    return TOKEN.sub(lambda match: re.sub(r"[^\n]", " ", match.group()) if match.group()[0] not in "\"'R"
                                   else '""' + "\n" * match.group().count("\n"), text)


def without_template(head):
    while TEMPLATE.match(head):
        depth, end = 0, head.index("<")
        for end in range(head.index("<"), len(head)):
            depth += {"<": 1, ">": -1}.get(head[end], 0)
            if depth == 0:
                break
        head = head[end + 1 :].lstrip()
    return head


def parameters(head):
    """The types of the parameters of a function's head, without names and defaults; None when the head has no
    parameters.
    """
    # Not what stands in a template's brackets, as in std::function<void()> next().
    starts = (match for match in FUNCTION.finditer(head)
              if head.count("<", 0, match.start()) <= head.count(">", 0, match.start()))
    start = next(starts, None)
    if start is None or not start.group(1):
        return None
    depth, pieces, piece = 0, [], ""
    for letter in head[start.end() :]:
        depth += letter in "(<[{"
        depth -= letter in ")>]}"
        if depth < 0:
            break
        if letter == "," and depth == 0:
            pieces.append(piece)
            piece = ""
        else:
            piece += letter
    pieces.append(piece)
    types = []
    for each in pieces:
        words = " ".join(each.partition("=")[0].split())
        named = re.match(r"(.*[\w>&*\])]\s*[\s&*])(\w+)((?:\s*\[\])?)$", words)
        if (named and named.group(2) not in ("int", "long", "char", "short", "bool", "double", "float", "const")
                and named.group(1).strip() not in ("const", "unsigned")):
            words = named.group(1) + named.group(3)
        types.append(re.sub(r"\s*([&*<>,])\s*", r"\1", words).strip())
    return start.group(1), ", ".join(types)


def named_by(head, closer):
    """(kind, name) of a definition at namespace scope, None for what has no external linkage or is none. closer: the
    '{' or ';' behind the head.
    """
    head = re.sub(r"(__attribute__\(\(.*?\)\)|SHARDWIRE_EXPORT|\[\[.*?\]\]|\balignas\(\w+\))+\)? ?", "",
                  without_template(" ".join(head.split())))
    head = re.sub(r"^(?:[A-Z][A-Z0-9]*_[A-Z0-9_]+ )+(?=\w)", "", head)  # a macro on a separate line
    if (re.match(r"(static|using|typedef|friend|extern|static_assert|namespace)\b", head)
            or re.match(r"[A-Z][A-Z0-9_]+ ?\(", head)):
        return None
    is_type = TYPE.match(head)
    if is_type:
        return ("type", is_type.group(1).replace(" ", "")) if closer == "{" else None
    value = re.search(r"(?<![=!<>])=(?!=)", head) if not re.search(r"\boperator\b", head) else None
    declared = head[: value.start()] if value and "(" not in head[: value.start()] else head
    variable = re.match(r"(inline\b)?[\w:<>,&* ]*[\s&*>]([\w:]+) ?(?:\[.*)?$", declared.rstrip())
    if variable and not re.search(r"\boperator\b", head):  # constants without 'inline' are the unit's own
        return (("variable", variable.group(2))
                if variable.group(1) or not re.search(r"\b(const|constexpr)\b", declared) else None)
    is_function = parameters(head) if closer == "{" else None
    return ("function", f"{is_function[0]}({is_function[1]})") if is_function else None


def definitions(text):
    """(line, kind, qualified name) of what a file defines at namespace scope with external linkage."""
    text, scopes, head, begin, position, parens = blanked(text), [], "", 0, 0, 0
    while position < len(text):
        letter = text[position]
        parens += (letter == "(") - (letter == ")")
        if letter == "{" and parens:  # a default argument
            position = closing(text, position)
        elif letter == "{":
            opened = re.fullmatch(r"\s*(?:inline\s+)?namespace\b\s*([\w:]*)\s*", head)
            linkage = re.fullmatch(r'\s*extern\s+""\s*', head)
            if opened or linkage:
                scopes.append(opened.group(1) if opened else "")
                if opened and not opened.group(1):
                    scopes[-1] = None
                head = ""
            else:
                end = closing(text, position)
                found = named_by(head, "{")
                if found and None not in scopes:
                    yield text.count("\n", 0, begin) + 1, found[0], "::".join(filter(None, [*scopes, found[1]]))
                # After a body comes the next statement. After a type or an initialiser comes the rest of the statement,
                # which defines nothing of interest.
                goes_on = found and found[0] == "type" or re.match(r"\s*[;,({<>+*/|&?.=%^-]", text[end + 1 : end + 200])
                head = "using " if goes_on else ""
                position = end
        elif letter == "}":
            if scopes:
                scopes.pop()
            head = ""
        elif letter == ";":
            found = named_by(head, ";")
            if found and None not in scopes:
                yield text.count("\n", 0, begin) + 1, found[0], "::".join(filter(None, [*scopes, found[1]]))
            head = ""
        else:
            if not head.strip():
                begin = position
            head += letter
        position += 1


def closing(text, position):
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, position):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.start()
    return len(text) - 1


def clashes(places):
    """{name: [place]} of definitions that may meet; place is (path, text for the report)."""
    for name, found in sorted(places.items()):
        bad = [one for one in found if any(may_meet(one[0], other[0]) for other in found)]
        if bad:
            yield name, bad


def source_findings(files):
    """files: (path from the root, text)."""
    places = collections.defaultdict(list)
    for path, text in files:
        for line, kind, name in definitions(text):
            if "shardwire" in name.partition("(")[0]:
                places[kind, name].append((path, f"{path}:{line}"))
    for (kind, name), bad in clashes(places):
        yield f"{kind} {name} is defined more than once: {', '.join(place for _, place in bad)}"


# ---- the objects


def sections_of(data):
    """Of a 64-bit little-endian ELF file: (type, offset, size, link, info) for each section."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    start, entry_bytes, count = struct.unpack_from("<Q", data, 0x28)[0], *struct.unpack_from("<HH", data, 0x3A)
    count = count or struct.unpack_from("<Q", data, start + 32)[0]
    for number in range(count):
        _, kind, _, _, offset, size, link, info, _, _ = struct.unpack_from(
            "<IIQQQQIIQQ", data, start + number * entry_bytes)
        yield kind, offset, size, link, info


def text_at(data, offset):
    return data[offset : data.index(b"\0", offset)].decode()


# The functions that clean-up after an exception needs: destructors, operator delete, the unwinder.
CLEANING = re.compile(
    r"_ZN.*D[012]Ev$|_Zd[la]P|_Unwind_|__cxa_|__gxx_|_ZSt9terminatev|_ZSt10terminate|__stack_chk_fail")


def weak_symbols(data):
    """(mangled name, the facts that must be equal in all objects) of each inline function or variable in an object
    file.
    """
    sections = list(sections_of(data))
    tables = [section for section in sections if section[0] == 2]  # SHT_SYMTAB
    if not tables:
        return
    _, table, table_bytes, strings, _ = tables[0]
    extended = next((section[1] for section in sections if section[0] == 18), None)  # SHT_SYMTAB_SHNDX
    names = sections[strings][1]
    symbols = [struct.unpack_from("<IBBHQQ", data, at) for at in range(table, table + table_bytes, 24)]
    relocations = collections.defaultdict(list)
    for kind, offset, size, _, info in sections:
        if kind == 4:  # SHT_RELA
            for at in range(offset, offset + size, 24):
                relocations[info].append(struct.unpack_from("<QQq", data, at))
    functions = {(symbol[3], symbol[4]): symbol for symbol in symbols if symbol[1] >> 4 and symbol[1] & 15 == 2}
    for number, (name, bits, _, where, value, size) in enumerate(symbols):
        if where == 0xFFFF and extended is not None:
            where = struct.unpack_from("<I", data, extended + 4 * number)[0]
        # weak or unique; object or function; defined
        if (bits >> 4 not in (2, 10) or bits & 15 not in (1, 2) or where in (0, 0xFFF1, 0xFFF2)
                or where >= len(sections)):
            continue
        kind, offset = sections[where][:2]
        is_data = bits & 15 == 1
        # 8: SHT_NOBITS
        digest = hashlib.sha1(data[offset + value: offset + value + size] if is_data and kind != 8 else b"",
                              usedforsecurity=False)
        named = []
        for place, what, addend in relocations[where]:
            target = symbols[what >> 32]
            # R_X86_64_PC32, PLT32: calls a function defined in this unit
            if not target[1] >> 4 and what & 0xFFFFFFFF in (2, 4):
                target = functions.get((target[3], target[4] + addend + 4), target)
            # A unit's own places (texts, tables of jumps) lie elsewhere in each unit.
            if value <= place < value + size and target[1] >> 4:
                referred = text_at(data, names + target[0])
                if is_data or not CLEANING.match(referred):
                    named.append(f"{place - value} {referred} {addend}" if is_data else referred)
        digest.update(" ".join(named if is_data else sorted(set(named))).encode())
        yield text_at(data, names + name), digest.hexdigest()


def object_findings(objects):
    """objects: (path of the source, path of the object for reports, bytes of the object)."""
    places = collections.defaultdict(lambda: collections.defaultdict(list))
    for source, named, data in objects:
        for name, digest in weak_symbols(data):
            if FOR_SOME_PROCESSORS.search(named):
                yield (f"{named}: {name} may be kept for processors that cannot run it: in ops/reduce/kernels*.h "
                       "everything belongs into the namespace of the instruction set")
            elif "9shardwire" in name:
                places[name][digest].append(source)
    by_sources = collections.defaultdict(list)
    for name, digests in places.items():
        kinds = [sorted(set(found)) for found in digests.values()]
        clash = [(a, b) for one, some in enumerate(kinds) for others in kinds[one + 1 :] for a in some for b in others
                 if may_meet(a, b)]
        if clash:
            by_sources[tuple(kinds[0][:1] + kinds[1][:1])].append(name)
    for (one, other), names in sorted(by_sources.items()):
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        yield (f"{one} and {other}, among others, were compiled from different definitions of: "
               f"{', '.join(sorted(names)[:4])}{more}")


def objects_of(build, root):
    for entry in json.loads((build / "compile_commands.json").read_text()):
        named = re.search(r" -o (\S+\.o)\b", entry["command"]).group(1)
        path = pathlib.Path(entry["directory"]) / named
        if "/Unity/" in named:
            sys.exit(f"{build} has merged units, in which the compiler sees one definition only: configure it with "
                     "-DSHARDWIRE_MERGE=OFF")
        if path.exists():
            source = os.path.relpath(entry["file"], root)
            # Written by CMake, of sources of ours: part of the library.
            source = "ops/reduce/kernels.cc" if source.startswith(os.path.relpath(build, root)) else source
            yield pathlib.PurePath(source).as_posix(), named, path.read_bytes()


def main():
    words = sys.argv[1:]
    build = pathlib.Path(words.pop(words.index("--objects") + 1)).resolve() if "--objects" in words else None
    rest = [word for word in words if word != "--objects"]
    root = pathlib.Path(rest[0] if rest else pathlib.Path(__file__).resolve().parents[2]).resolve()
    if build is not None:
        objects = list(objects_of(build, root))
        count, what, found = len(objects), "objects", list(object_findings(objects))
    else:
        files = [(path.relative_to(root).as_posix(), path.read_text()) for path in sources(root)]
        count, what, found = len(files), "files", list(source_findings(files))
    for words in found:
        print(words)
    print(f"{count} {what}, {len(found)} findings")
    return 1 if found or not count else 0


if __name__ == "__main__":
    sys.exit(main())
