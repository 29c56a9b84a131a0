"""The words check: what is counted, what is refused, and what is left alone."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import words


def findings(path, text):
    return [line.split(": ", 1)[1] for line in words.measure(path, text)[0]]


@pytest.mark.parametrize(
    "path, text, counts",
    [
        ("a.h", "// It sends those bytes.\nint x;  // its size\n", (6, 3)),
        ("a.h", 'const char* a = "it that those";  /* that\n thing */\nchar b = \'"\'; // it\n', (3, 2)),
        ("a.h", 'const char* url = "http://it"; const char* raw = R"(// it)";\n', (0, 0)),
        ("a.h", "// `itThat that` and \"who it is\" are quoted.\n", (5, 0)),
        ("a.py", '"""It is a module."""\nx = "it that"  # those\n\n\ndef f():\n    """That works."""\n', (7, 3)),
        ("a.md", "# It is a heading\n\nIt runs `it`.\n\n```sh\nit that\n```\n| it | one |\n|---|---|\n", (5, 2)),
        ("a.md", "See [its page](that.md) or https://it.that/those.\n", (4, 1)),
    ],
)
def test_reference_words_are_counted_in_prose_only(path, text, counts):
    assert words.measure(path, text)[1:] == counts


@pytest.mark.parametrize(
    "text",
    [
        "// Who has left may not join.\n",
        "// The end. Whoever is\n// late waits.\n",
        "// What a rank needs.\n",
        "int x;  // what the peer combines\n",
        "// (Whose turn comes next.)\n",
    ],
)
def test_a_free_clause_is_refused(text):
    assert [line for line in findings("a.cc", text) if line.startswith("a sentence without a subject")], text


@pytest.mark.parametrize("text",
                         ["// Who is late?\n", "// A rank that is late waits. Decides what is sent, and who sends.\n",
                          'f("what a text");\n', "// whoPlans is copied.\n"])
def test_a_question_a_name_and_a_clause_inside_a_sentence_are_not(text):
    assert findings("a.cc", text) == []


def test_the_line_of_a_finding_is_that_of_its_sentence():
    assert words.measure("a.cc", "int x;\n// One line.\n// What follows is\n// no sentence.\n")[0][0].startswith(
        "a.cc:3: ")


@pytest.mark.parametrize(
    "path, text, word",
    [
        ("a.cc", "// The peer knocks at the port.\n", "connection request"),
        ("a.cc", 'fail("rank {} was told so");\n', "notify"),
        ("a.py", 'raise ValueError("turned away by the owner")\n', "reject"),
        ("a.md", "Mended: a hang.\n", "fix"),
    ],
)
def test_a_metaphor_is_refused_with_the_word_of_the_field(path, text, word):
    assert [line for line in findings(path, text) if word in line], text


def test_reference_words_of_printed_texts_are_counted_by_file():
    text = 'fail("it said that its rank {} left");\n' * 20
    (found,) = words.measure("backend/a.cc", text)[0]
    assert found.startswith("backend/a.cc, printed texts: 50.0 reference words per 100 (60 of 120)")
    assert words.measure("tests/a.cc", text)[0] == [] == words.measure("backend/a.cc", text[: len(text) // 2])[0]
    values = """raise ValueError(f"rank {who} of {its['those']} left the group")\n""" * 30
    assert words.measure("python/a.py", values)[0] == [] == words.measure("a.py", 'f("it that", "its")\n' * 200)[0]


@pytest.mark.parametrize("text", ['open("doors");\n', '#include "backend/bootstrap/doors.h"\n',
                                  "// `doors` and buryAll(), told_ and door_.close() are names.\n", "int door = 1;\n",
                                  "// doors.h has the list\n"])
def test_names_in_code_are_no_metaphors(text):
    assert findings("a.cc", text) == []


def test_a_long_source_begins_with_its_story():
    body = "int x;\n" * words.STORY_LINES
    story = "// " + "The first pass gathers the boxes and cuts them. " * 3 + "\n"
    assert findings("a.cc", story + body) == [] == findings("a.h", body) == findings("a.cc", "int x;\n")
    for text in (body, "// Boxes.\n" + body, "#include <vector>\n" + story + body):
        assert len(findings("a.cc", text)) == 1


def test_files_are_judged_alone_and_small_files_by_room(tmp_path):
    good, bad = "// The rank sends bytes.\n" * 30, "// It sends its bytes.\n" * 30
    (tmp_path / "ops/late").mkdir(parents=True)
    (tmp_path / "ops/good.cc").write_text(good)
    (tmp_path / "ops/late/good.cc").write_text(good)
    assert words.measure_tree(tmp_path) == ([], {"ops": [120, 0], "ops/late": [120, 0]})

    for name in "abcdefghijklmno":
        (tmp_path / f"ops/late/{name}.h").write_text("// It sends its bytes.\n" * 2)
    (found,) = words.measure_tree(tmp_path)[0]
    assert found.startswith("ops/late, its files with fewer than 100 words: ")
    (tmp_path / "ops/bad.cc").write_text(bad)
    assert "ops/bad.cc" in [line.split(":")[0] for line in words.measure_tree(tmp_path)[0]]


def test_every_root_is_there_and_only_the_examples_are_left_out():
    assert [root for root in words.ROOTS if not (words.ROOT / root).exists()] == []
    assert words.room_of(words.EXAMPLES) is None and (words.ROOT / words.EXAMPLES).exists()
    rooms = {"README.md": "README.md", "docs/cpp.md": "docs", "backend/transport/tcp/wire.cc": "backend/transport"}
    assert {path: words.room_of(path) for path in rooms} == rooms and words.room_of("setup.py") is None
