from __future__ import annotations

import pytest

from dps_tf.core import UserError
from dps_tf.workloads import reading as configurations

NAMES = ["lee2021/mnist_sgd", "quickstart", "smoke/digits"]


@pytest.fixture
def shipped_folder(tmp_path, monkeypatch):
    """A folder of shipped files, and an empty current directory beside it."""
    root = tmp_path / "shipped"
    for name in NAMES:
        file = root / f"{name}.gin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (root / "lee2021" / "README.md").write_text("")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(configurations, "folder", lambda: root)
    return root


def test_shipped_names_are_paths_without_suffix(shipped_folder):
    assert configurations.shipped() == NAMES


def test_every_shipped_name_resolves_to_a_file_in_the_package():
    names = configurations.shipped()
    assert "quickstart" in names
    for name in names:
        assert configurations.resolve(name).is_file()


@pytest.mark.parametrize("name", ["lee2021/mnist_sgd", "lee2021/mnist_sgd.gin"])
def test_suffix_of_a_shipped_name_may_be_given(shipped_folder, name):
    expected = shipped_folder / "lee2021" / "mnist_sgd.gin"
    assert configurations.resolve(name) == expected


def test_own_file_is_found_by_relative_path_and_returned_absolute(
    shipped_folder, tmp_path
):
    own = tmp_path / "elsewhere" / "mine.gin"
    own.write_text("")
    assert configurations.resolve("mine.gin") == own


def test_shipped_name_wins_over_a_file_and_a_path_does_not(shipped_folder, tmp_path):
    own = tmp_path / "elsewhere" / "quickstart"
    own.write_text("")
    assert configurations.resolve("quickstart") == shipped_folder / "quickstart.gin"
    assert configurations.resolve("./quickstart") == own


def test_own_file_wins_over_a_shipped_name_with_suffix(shipped_folder, tmp_path):
    own = tmp_path / "elsewhere" / "quickstart.gin"
    own.write_text("")
    assert configurations.resolve("quickstart.gin") == own


def test_unknown_name_is_refused_with_near_matches(shipped_folder):
    with pytest.raises(UserError, match=r"'lee2021/mnist_sdg'.*lee2021/mnist_sgd"):
        configurations.resolve("lee2021/mnist_sdg")


def test_folder_is_refused(shipped_folder, tmp_path):
    with pytest.raises(UserError, match="is a folder"):
        configurations.resolve(str(tmp_path))


@pytest.mark.parametrize("name", ["", "../shipped/quickstart", "quickstart/"])
def test_names_that_are_not_exactly_shipped_are_refused(shipped_folder, name):
    with pytest.raises(UserError):
        configurations.resolve(name)
