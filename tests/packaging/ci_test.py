"""Does CI notice tests that did not run?"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.packaging.source_tree import SOURCE_TREE

REPORT = """<testsuites><testsuite>
<testcase name="runs"/>
<testcase name="fails as expected">
  <skipped type="pytest.xfail" message="known"/>
</testcase>
<testcase name="needs a GPU">
  <skipped type="pytest.skip" message="no GPU on this machine"/>
</testcase>
</testsuite></testsuites>"""


@pytest.fixture
def check(tmp_path):
    """Runs the check on the report, as often as told, with files of these contents."""

    def run(
        minimum: str, allowed_skips: str, reports: int = 1
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "report.xml").write_text(REPORT)
        (tmp_path / "minimum").write_text(f"# Why.\n{minimum}\n")
        (tmp_path / "allowed").write_text(f"# Why.\n\n{allowed_skips}\n")
        return subprocess.run(
            [
                sys.executable,
                SOURCE_TREE / ".ci" / "check_tests.py",
                f"--minimum={tmp_path / 'minimum'}",
                f"--allowed_skips={tmp_path / 'allowed'}",
                *[tmp_path / "report.xml"] * reports,
            ],
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_says_nothing_when_all_ran_or_may_be_skipped(check):
    result = check("2", "no GPU")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_skipped_tests_do_not_count_as_run(check):
    result = check("3", "no GPU")
    assert result.returncode == 1
    assert "only 2 tests ran, at least 3 exist" in result.stderr


def test_runs_that_shared_the_tests_count_together(check):
    assert check("4", "no GPU", reports=2).returncode == 0
    assert "only 4 tests ran" in check("5", "no GPU", reports=2).stderr
    assert "skipped 2 times" in check("4", "no TPU", reports=2).stderr


def test_skip_for_another_reason_is_refused(check):
    result = check("0", "no TPU")
    assert result.returncode == 1
    assert "no GPU on this machine" in result.stderr


def test_empty_list_allows_no_skip(check):
    assert check("0", "").returncode == 1


def test_committed_files_are_readable():
    lines = (SOURCE_TREE / ".ci" / "minimum_tests").read_text().splitlines()
    assert int(lines[-1]) > 0
    assert (SOURCE_TREE / ".ci" / "allowed_skips").is_file()
