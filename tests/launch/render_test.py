"""Does launch/render fill a template, or say in one sentence why not?"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.packaging.source_tree import SOURCE_TREE

RENDER = SOURCE_TREE / "launch" / "render"
TEMPLATE = """# Its comments are for the reader: ${NOT_A_PLACEHOLDER}
name: "${NAME:-sweep}"
image: "${IMAGE}"
queue: "${QUEUE}" # only with QUEUE
tasks: ${TASKS:-4}
args:
  - "${OPTION}" # for each OPTION
  - "$(KUBERNETES) and $SHELL stay"
command: train '${COMMAND:-none}'
"""


@pytest.fixture
def render(tmp_path):
    template = tmp_path / "template.yaml"
    template.write_text(TEMPLATE)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, RENDER, template, *arguments]
        return subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, check=False
        )

    return run


def test_defaults_stand_and_conditional_lines_are_left_out(render):
    assert render("IMAGE=i:1").stdout == (
        'name: "sweep"\nimage: "i:1"\ntasks: 4\nargs:\n'
        '  - "$(KUBERNETES) and $SHELL stay"\n'
        "command: train 'none'\n"
    )


def test_lines_are_repeated_for_every_value_and_the_last_of_others_counts(
    render, tmp_path
):
    settings = tmp_path / "kind.settings"
    settings.write_text("# A comment.\n\nOPTION=--a=1\nNAME=of file\nQUEUE=q\n")
    result = render(settings, "IMAGE=i", "OPTION=--b=x = 2", "NAME=mine", "QUEUE=")
    assert result.stdout == (
        'name: "mine"\nimage: "i"\ntasks: 4\nargs:\n  - "--a=1"\n  - "--b=x = 2"\n'
        '  - "$(KUBERNETES) and $SHELL stay"\n'
        "command: train 'none'\n"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "error: IMAGE is missing: give IMAGE=VALUE."),
        (
            ["IMAGE=i", "IMAGES=j"],
            "error: IMAGES is unknown; known are COMMAND, IMAGE, ",
        ),
        (['IMAGE=a"b'], "error: IMAGE='a\"b' holds \", \\ or what cannot be printed."),
        (["IMAGE=a\x85b: c"], "error: IMAGE='a\\x85b: c' holds"),
        (["IMAGE=a\u2028b: c"], "error: IMAGE='a\\u2028b: c' holds"),
        (["IMAGE=i", "TASKS=4, x: y"], "error: TASKS='4, x: y' is not a whole number."),
        (["IMAGE=i", "TASKS=\u0664"], "error: TASKS='\u0664' is not a whole number."),
        (["IMAGE=i", "COMMAND=a' ; rm"], "error: COMMAND=\"a' ; rm\" holds '."),
        (["IMAGE=a\nb: c"], "error: IMAGE='a\\nb: c' holds"),
        (["nowhere.settings"], "error: [Errno 2] No such file or directory"),
    ],
)
def test_a_slip_is_one_sentence(render, arguments, sentence):
    result = render(*arguments)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith(sentence)
    assert result.stderr.count("\n") == 1
