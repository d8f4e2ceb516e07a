"""Text of others is shown as text: to terminals, spreadsheets and in figures."""

from __future__ import annotations

import csv
import io

import pandas as pd
import pytest

from dps_tf.analysis.fit_table import read_table
from dps_tf.analysis.report import style
from dps_tf.analysis.report.assembly import csv_bytes
from dps_tf.core import UserError, on_one_line, printable

pytestmark = pytest.mark.fault

FORMULAS = ["=1+1", "+cmd|'/c calc'!A1", "-2+3+x", "@SUM(A1)", "\t=1"]


def test_no_cell_or_header_of_a_csv_file_is_a_formula():
    frame = pd.DataFrame({text: [text, None] for text in FORMULAS})
    rows = list(csv.reader(io.StringIO(csv_bytes(frame).decode())))
    assert rows[0] == rows[1] == [f"'{text}" for text in FORMULAS]
    assert rows[2] == [""] * len(FORMULAS)


def test_numbers_and_plain_text_stay_as_they_are():
    frame = pd.DataFrame(
        {"n": [-1.5, 0.1], "k": [1, -2], "text": ["-0.5", 'a "b", c'], "w": ["x", None]}
    )
    read = pd.read_csv(io.BytesIO(csv_bytes(frame)), dtype={"text": str})
    pd.testing.assert_frame_equal(read, frame, check_dtype=False)


@pytest.mark.parametrize(
    "text", ["\x1b[2J", "\x1b]0;title\x07", "a\rb", "\x9b31m", "\u202eabc", "\ud800"]
)
def test_what_steers_a_terminal_is_shown_as_an_escape(text):
    shown = printable(f"é数 {text}\nnext")
    assert shown.startswith("é数 ") and shown.endswith("\nnext")
    assert shown.replace("\n", "").isprintable()
    shown.encode()
    assert on_one_line(f"a\n{text}b.").isprintable()


def test_a_dollar_sign_in_a_figure_is_no_formula():
    name = r"a$\frac{1}{$b$"  # a formula of it would be an error
    with style.one_axis({name: style.LineStyle("#000000", "o", "-")}) as (figure, axis):
        axis.plot([1, 2], [3, 4])
        axis.set_xlabel(name)
    style.lay_out(figure)
    assert style.svg(figure).startswith(b"<?xml")


TABLE = "batch_size,steps_to_result\n8,100\n16,50\n32,25\n"


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("http://127.0.0.1:9/t.csv", None, "cannot be read: No such file"),
        ("s3://bucket/t.csv", None, "cannot be read: No such file"),
        ("file:///etc/passwd", None, "cannot be read: No such file"),
        ("memory://t.csv", None, "cannot be read: No such file"),
        ("", "batch_size,steps_to_result,batch_size\n1,2,3\n", "2 columns 'batch_size"),
        ("", TABLE.replace("100", "=1+1"), "it must be a number"),
        (
            "",
            TABLE.replace("100", "1e308"),
            r"'1e\+308' in row 1 .* from 1e-15",
        ),
        ("", TABLE.replace("8,", "1e-300,"), "batch_size is '1e-300' in row 1"),
        ("", "", "is not a CSV table"),
        ("", "\x00\x01", "has no column|is not a CSV table"),
    ],
)
def test_fit_reads_files_and_no_addresses(tmp_path, name, text, sentence):
    path = name or tmp_path / "t.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=sentence) as caught:
        read_table(path)
    assert str(caught.value).isprintable()
