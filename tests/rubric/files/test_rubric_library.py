import pytest

from harness.errors import RubricInvalid
from harness.rubric import load_rubric
from harness.shipped import shipped_directory

MINE = "title: Mine\ndimensions:\n- name: a\n  judge: Good?\n"
SHIPPED = sorted(path.stem for path in shipped_directory("rubrics").glob("*.yaml"))


def test_a_rubric_of_ones_own_goes_before_the_one_that_ships(tmp_path):
    assert load_rubric("brief", directory=tmp_path).title == "Brief"

    (tmp_path / "brief.yaml").write_text(MINE)

    assert load_rubric("brief", directory=tmp_path).title == "Mine"


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_a_name_with_a_suffix_is_a_path(tmp_path, suffix):
    path = tmp_path / f"other{suffix}"
    path.write_text(MINE)

    assert load_rubric(str(path)).id == "other"


@pytest.mark.parametrize(
    ("name", "end"),
    [
        pytest.param("breif", "did you mean 'brief'?", id="nearly one that ships"),
        pytest.param("essays", "did you mean 'essay'?", id="nearly one's own"),
        pytest.param("zzz", f"known: {', '.join(sorted([*SHIPPED, 'essay']))}", id="like none"),
    ],
)
def test_an_unknown_name_is_answered_by_the_nearest_known(tmp_path, name, end):
    (tmp_path / "essay.yaml").write_text(MINE)

    with pytest.raises(RubricInvalid) as caught:
        load_rubric(name, directory=tmp_path)

    assert f"there is no rubric '{name}' in {tmp_path}/" in str(caught.value)
    assert str(caught.value).endswith(end)


def test_a_directory_that_is_not_there_is_no_mistake(tmp_path):
    assert load_rubric("brief", directory=tmp_path / "none").title == "Brief"
