"""What tuning leaves beside a rubric: looks at labels, the calibration, and the threshold."""

from pathlib import Path

import pytest
from rubric.judged import rubric

from harness.errors import InvalidInput
from harness.files import shipped_directory
from harness.rubric import load_rubric, read_rubric
from harness.rubric.calibration.calibration_files import Attempts, write_pass_at

RUBRIC = rubric()
ONE = {"a": 7.0, "b": 8.0, "c": None}


def looked(*looks):
    attempts = Attempts()
    for pass_at, scores in looks:
        attempts = attempts.after(pass_at, scores, drafts=len(scores))
    return attempts


def test_the_same_scores_are_the_same_attempt_with_more_labels_too():
    looks = looked((7, ONE), (7, ONE | {"d": 5.0}), (7, {"d": 5.0, "e": 6.0}))

    assert len(looks.on({"a": 1.0})) == 1
    assert looks.on({"e": 6.0})[0].scores == ONE | {"d": 5.0, "e": 6.0}
    assert looks.on(ONE)[0].drafts == (2, 3, 4)


def test_an_edited_rubric_is_another_attempt_on_the_labels_that_it_shares():
    looks = looked((7, ONE), (7, {"b": 8.5, "z": 1.0}), (6, {"y": 3.0}))

    assert len(looks.on(ONE)) == 2
    assert len(looks.on({"z": 1.0})) == 1
    assert len(looks.on({"new": 1.0})) == 0


def test_another_threshold_on_the_same_scores_is_remembered():
    (look,) = looked((7, ONE), (8, ONE), (7, ONE)).attempts

    assert look.pass_at == (7, 8)


def test_looks_are_found_again_beside_the_rubric(tmp_path):
    looks = looked((7, ONE))
    assert Attempts.read(RUBRIC, tmp_path) is None

    looks.write(RUBRIC, tmp_path)

    assert Attempts.read(RUBRIC, tmp_path) == looks
    assert [path.name for path in tmp_path.iterdir()] == ["essay.attempts.json"]


@pytest.mark.parametrize("content", ["", "[]", '{"attempts": 3}', '{"other": 1}'])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "essay.attempts.json"
    path.write_text(content)
    with pytest.raises(InvalidInput) as caught:
        Attempts.read(RUBRIC, tmp_path)

    assert (caught.value.code, caught.value.path) == ("rubric.record-invalid", path)
    assert path.read_text() == content


REST = "dimensions:\n  - name: clear\n    judge: Is it?   # really\n"


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        pytest.param(
            f"# mine\ntitle: T\npass_at: 7   # a guess\n\n{REST}",
            f"# mine\ntitle: T\npass_at: 7.5   # a guess\n\n{REST}",
            id="with a comment",
        ),
        pytest.param(
            f"title: T\r\npass_at: '7'\r\n{REST}",
            f"title: T\r\npass_at: 7.5\r\n{REST}",
            id="line ends of Windows",
        ),
        pytest.param(
            f"# mine\ntitle: T # so\n\n{REST}",
            f"# mine\ntitle: T # so\npass_at: 7.5\n\n{REST}",
            id="a default so far",
        ),
        pytest.param(
            f"{REST}title: T", f"{REST}title: T\npass_at: 7.5\n", id="no line end at the end"
        ),
        pytest.param(
            f"title: >\n  A long\n  title\n{REST}",
            f"title: >\n  A long\n  title\npass_at: 7.5\n{REST}",
            id="a title in lines",
        ),
        pytest.param(
            f"'title': 'A long\n  title'\n'pass_at' :\n  7\n{REST}",
            f"'title': 'A long\n  title'\n'pass_at' :\n  7.5\n{REST}",
            id="names in quotes",
        ),
        pytest.param(
            f"title: &t T\nfocus_below: &f 6\npass_at: *f\npurpose: *t\n{REST}",
            f"title: &t T\nfocus_below: &f 6\npass_at: 7.5\npurpose: *t\n{REST}",
            id="values that stand elsewhere",
        ),
    ],
)
def test_a_threshold_is_written_and_nothing_else_changes(tmp_path, text, changed):
    path = tmp_path / "mine.yaml"
    path.write_bytes(text.encode())
    path.chmod(0o640)
    rubric = write_pass_at(read_rubric(str(path)), 7.5)

    assert path.read_bytes().decode() == changed
    assert (rubric.id, rubric.pass_at) == ("mine", 7.5)
    assert rubric.sha256 == load_rubric(path).sha256
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_threshold_that_was_taken_over_stands_in_the_rubric_itself(tmp_path):
    (tmp_path / "base.yaml").write_text(f"title: Base\npass_at: 7\n{REST}")
    path = tmp_path / "mine.yaml"
    path.write_text("extends: base\n# more\n")
    write_pass_at(read_rubric(str(path)), 6.4)

    assert path.read_text() == "extends: base\npass_at: 6.4\n# more\n"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        pytest.param(
            2, f"title: T\npass_at: &t 7\nfocus_below: *t\n{REST}", id="shared with others"
        ),
        pytest.param(
            1, "{title: T, dimensions: [{name: clear, judge: 'Is it?'}]}\n", id="one line"
        ),
    ],
)
def test_a_threshold_that_cannot_be_written_alone_leaves_the_file_as_it_was(tmp_path, line, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        write_pass_at(read_rubric(str(path)), 7.5)

    assert (caught.value.code, caught.value.line) == ("tune.threshold-not-written", line)
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_rubric_that_ships_is_not_written():
    before = {path: path.read_bytes() for path in shipped_directory("rubrics").glob("*.yaml")}
    with pytest.raises(InvalidInput) as caught:
        write_pass_at(read_rubric("brief", directory=Path("none")), 5)

    assert caught.value.code == "tune.rubric-ships"
    assert {path: path.read_bytes() for path in before} == before
