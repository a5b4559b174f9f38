"""What comes from outside: texts that nobody can read or print, files that are none."""

import errno
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatherbench.outside import LONGEST, cleaned, open_file, parsed, plain, read_json, words_of

anything = st.text(st.characters(exclude_categories=()), max_size=200)
pieces = st.sampled_from(["\x1b[31m", "\x1b]0;t\x07", "\ud800", "\u202e", "\0", "\r\n", "a" * 3000])


@given(st.lists(anything | pieces, max_size=6).map("".join))
def test_any_text_is_one_printable_line_that_is_the_same_when_it_is_made_plain_again(text):
    made = plain(text)
    assert made.isprintable()
    assert len(made) <= LONGEST
    assert made.encode().decode() == made
    assert plain(made) == made


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("as it was: ü, 日本, “quoted”", "as it was: ü, 日本, “quoted”"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://there\x1b\\link\x1b]8;;\x07", "link"),
        ("two\nlines\tand a\xa0tab", "two | lines and a tab"),
        ("half \ud83d, \0, \x9b31m, \u202e", "half \ufffd, \ufffd, \ufffd31m, \ufffd"),
        ("x" * LONGEST, "x" * LONGEST),
        ("x" * 10**7, "x" * (LONGEST - 1) + "…"),
        ("\x1b[0m" * 10**5, "…"),
    ],
)
def test_what_is_printable_stays(text, made):
    assert plain(text) == made


def test_an_error_whose_words_fail_has_words():
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert words_of(ValueError("two\nlines")) == "ValueError: two | lines"
    said = "MuteError: its message cannot be read (RuntimeError)"
    assert words_of(MuteError()) == said


@pytest.mark.parametrize("kind", ["folder", "fifo", "link to a fifo", "socket", "device", "none"])
def test_what_is_no_file_is_refused_and_nobody_waits(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x"
    match kind:
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "link to a fifo":
            os.mkfifo(tmp_path / "fifo")
            path.symlink_to(tmp_path / "fifo")
        case "socket":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(path.name)  # the whole path may be too long for one
        case "device":
            path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match=r"regular file|No such|directory") as refused:
        open_file(path)
    assert refused.value.errno in (errno.EINVAL, errno.EISDIR, errno.ENOENT, errno.ENXIO)


@pytest.mark.parametrize(
    "text",
    [
        *("[" * 10**5, '{"a":' * 10**5, "[" * 60 + "]" * 60, "9" * 5001, "-" + "9" * 5001),
        *("9" * 20, '{"a": [1' + "0" * 5001 + "]}", "", "nul", b"\xff\xfe\xfa"),
    ],
)
def test_json_that_cannot_be_used_is_one_error(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r"\w"):
        read_json(path)


def test_texts_of_json_are_plain_and_the_rest_is_as_it_was():
    value = {"a\x1b[0m": ["\ud800", 1, 1.5, None, True, {"b": "x" * 3000}]}
    assert cleaned(value) == {"a": ["\ufffd", 1, 1.5, None, True, {"b": "x" * 1999 + "…"}]}
    assert cleaned(parsed('{"wide": Infinity, "n": -9223372036854775808}'))["n"] == -(2**63)
