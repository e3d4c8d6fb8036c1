"""Labels as people keep them: their forms, and what is said of mistakes."""

import pytest
from rubric.judged import rubric

from harness.errors import InvalidInput, LabelsInvalid
from harness.rubric import Dimension, Draft
from harness.rubric.calibration.labels import read_labels

RUBRIC = rubric()


def read(tmp_path, text, name="labels.csv", **columns):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_labels(path, RUBRIC, columns=columns)


def mistakes(tmp_path, text, name="labels.csv", **columns):
    with pytest.raises(LabelsInvalid) as caught:
        read(tmp_path, text, name, **columns)
    return [
        (one.code, one.line, None if one.code.startswith("row.") else str(one).split(": ")[1])
        for one in caught.value.problems
    ]


EXPECTED = {
    "id": "1",
    "people": {"clear": {"anna": 7.0, "bob": 8.5}},
    "scores": {"clear": (7.0, 8.0)},
    "group": "g",
}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(
            "a.csv",
            'id,human.clear.anna,human.clear.bob,score.clear,group\n1,7,8.5,"[7, 8]",g\n',
            id="one row a draft",
        ),
        pytest.param(
            "a.csv",
            "\ufeffid;human.clear.anna;human.clear.bob;score.clear;group\r\n1;7;8.5;7|8;g\r\n",
            id="as Excel writes it in Europe",
        ),
        pytest.param(
            "a.csv",
            "id,rater,human.clear,score.clear,group\n1,anna ,7,7 8, g\n1,bob,8.5,,\n",
            id="one row a rater",
        ),
        pytest.param(
            "a.jsonl",
            '{"id": 1, "human": {"clear": {"anna": 7, "bob": 8.5}}, "score": {"clear": [7, 8]}, '
            '"group": "g"}\n',
            id="nested objects",
        ),
    ],
)
def test_a_draft_is_the_same_in_every_form(tmp_path, name, text):
    (draft,) = read(tmp_path, text, name).drafts

    assert draft.model_dump(include=EXPECTED.keys()) == EXPECTED


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "id,human.clear\n1,3 1 1\n"),
        ("a.jsonl", '{"id": "1", "human.clear": [3, 1, 1]}\n'),
        ("a.jsonl", '{"id": "1", "human": {"clear": [3, 1, null, 1]}}\n'),
    ],
)
def test_scores_of_several_raters_without_names_stand_in_one_cell(tmp_path, name, text):
    (draft,) = read(tmp_path, text, name).drafts

    assert [*draft.people["clear"].values()] == [3, 1, 1]


def test_parquet_holds_labels_as_any_table_does(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "id": [1, 2],
        "human": [{"clear": {"anna": 7.0, "bob": 8.5}}, {"clear": {"anna": float("nan")}}],
        "score": [{"clear": [7.0, 8.0]}, None],
        "group": ["g", "h"],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "labels.parquet")

    one, two = read_labels(tmp_path / "labels.parquet", RUBRIC, columns={}).drafts

    assert one.model_dump(include=EXPECTED.keys()) == EXPECTED
    assert (two.people, two.scores) == ({}, {})


def test_other_columns_mean_nothing_whatever_they_are_called(tmp_path):
    text = "id,accept,score.clear,scores,people,named,file,judges\n1,yes,7,[1],Anna,no,x,[2]\n"
    found = read(tmp_path, text)

    assert found.ignored == ("people", "named", "file")
    assert found.drafts == read(tmp_path, "id,accept,score.clear\n1,yes,7\n").drafts


def test_texts_stand_in_the_file_or_beside_it(tmp_path):
    (tmp_path / "one.md").write_text("# One\n")
    found = read(
        tmp_path,
        'id,path,draft,task,sources,accept\n1,one.md,,Sum up,"[""a"", ""b""]",no\n'
        '2,,"Two,\nlines",,one source,no\n',
    )
    one, two = found.drafts

    assert (one.draft, one.task, one.sources) == ("# One\n", "Sum up", ("a", "b"))
    assert (two.draft, two.task, two.sources) == ("Two,\nlines", "", ("one source",))


def test_other_names_of_columns_are_given_and_what_is_left_is_named(tmp_path):
    found = read(
        tmp_path,
        "key,good,accept,judge,note\n1,yes,old,8,?\n",
        id="key",
        accept="good",
        **{"score.clear": "judge"},
    )

    assert found.drafts[0].id == "1"
    assert found.drafts[0].accept == {"": True}
    assert found.drafts[0].scores == {"clear": (8,)}
    assert found.ignored == ("note",)


def test_a_missing_label_is_no_label(tmp_path):
    found = read(tmp_path, "id,accept,score\n1,,8\n2,n/a,7\n3,no,NaN\n")

    assert [(one.accept, one.scores) for one in found.drafts] == [
        ({}, {"": (8,)}),
        ({}, {"": (7,)}),
        ({"": False}, {}),
    ]


def test_all_mistakes_are_told_at_once_with_line_and_column(tmp_path):
    text = (
        "id,accept,human.clear,score.clear,score.clera\n"
        "1,maybe,7,8,\n"
        "2,yes,7,8\n"
        "1,no,8,9,\n"
        '3,no,"7,5",11,\n'
        "4,no,7,eight,6\n"
    )

    assert mistakes(tmp_path, text) == [
        ("labels.unknown-dimension", 1, "score.clera"),
        ("labels.not-yes-or-no", 2, "accept"),
        ("row.cells", 3, None),
        ("labels.duplicate-id", 4, "id"),
        ("labels.not-a-number", 5, "human.clear"),
        ("labels.off-scale", 5, "score.clear"),
        ("labels.not-a-number", 6, "score.clear"),
    ]


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        pytest.param("id,accept,accept\n1,yes,no\n", "row.columns-alike", 1, id="a column"),
        pytest.param("id,accept\n1,yes,no\n", "row.cells", 2, id="a comma too many"),
        pytest.param("id,accept\n1,yes\n2,no\n1,no\n", "labels.duplicate-id", 4, id="an id twice"),
        pytest.param("id,accept\n1,maybe\n", "labels.not-yes-or-no", 2, id="neither yes nor no"),
        pytest.param('id,accept,score\n1,no,"7,5"\n', "labels.not-a-number", 2, id="a comma"),
        pytest.param("id,accept,score\n1,no,70\n", "labels.off-scale", 2, id="another scale"),
        pytest.param("id,accept,score.x\n1,no,7\n", "labels.unknown-dimension", 1, id="dimension"),
        pytest.param("id,accept,path\n1,no,x\n", "file.unreadable", 2, id="no such file"),
        pytest.param(
            'id,rater,group,accept\n1,a,g,yes\n1,b,"h\n",no\n', "labels.two-values", 3, id="groups"
        ),
    ],
)
def test_a_mistake_has_its_line_and_code(tmp_path, text, code, line):
    assert [one[:2] for one in mistakes(tmp_path, text)] == [(code, line)]


def test_the_line_is_that_on_which_a_row_begins(tmp_path):
    text = 'id,draft,accept\n1,"a\nb\nc",yes\n2,"d\ne",maybe\n'

    assert mistakes(tmp_path, text) == [("labels.not-yes-or-no", 5, "accept")]


def test_broken_json_lines_are_told_together(tmp_path):
    text = '{"id": 1, "accept": true}\n{"id": 2,\n[3]\n{"id": 4, "accept": 5}\n'

    assert mistakes(tmp_path, text, "a.jsonl") == [
        ("row.not-json", 2, None),
        ("row.not-object", 3, None),
        ("labels.not-yes-or-no", 4, "accept"),
    ]


def test_many_mistakes_of_a_kind_are_summed_up(tmp_path):
    with pytest.raises(LabelsInvalid) as caught:
        read(tmp_path, "id,accept\n" + "".join(f"{n},perhaps\n" for n in range(50)))

    assert len(caught.value.problems) == 50
    assert str(caught.value).splitlines()[-1].endswith("labels.csv: 30 more")


@pytest.mark.parametrize(
    ("ours", "theirs", "hint"), [("good", "accept", "accept=good"), ("accept", "god", "'good'")]
)
def test_a_column_that_is_not_there_is_told_with_what_was_meant(tmp_path, ours, theirs, hint):
    with pytest.raises(InvalidInput) as caught:
        read(tmp_path, "id,good\n1,yes\n", **{ours: theirs})

    assert caught.value.code == "row.no-column"
    assert hint in str(caught.value)


@pytest.mark.parametrize("text", ["id,score\n", "id,score\n1,7\n"])
def test_a_file_without_labels_is_refused(tmp_path, text):
    with pytest.raises(InvalidInput) as caught:
        read(tmp_path, text)
    assert caught.value.code == "labels.no-labels"


@pytest.mark.parametrize(
    ("content", "code"),
    [(None, "file.missing"), (b"\xff\xfeid", "file.not-utf8"), (b" ", "file.empty")],
)
def test_a_file_that_is_no_text_is_refused(tmp_path, content, code):
    path = tmp_path / "labels.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput) as caught:
        read_labels(path, RUBRIC, columns={})
    assert caught.value.code == code


def test_the_same_label_has_the_same_digest(tmp_path):
    text = "id,accept,score,note\n1,yes,8,a\n"
    (one,) = read(tmp_path, text).drafts
    (judged_again,) = read(tmp_path, text.replace("8", "5")).drafts
    (relabeled,) = read(tmp_path, text.replace("yes", "no")).drafts

    # Of the draft: who changes a label has seen it.
    assert one.digest == judged_again.digest == relabeled.digest
    labels = [draft.identified_labels for draft in (one, judged_again, relabeled)]
    assert labels[0] == labels[1] != labels[2]


def test_a_text_an_id_or_a_place_among_the_same_labels_is_the_same_draft_in_every_file(tmp_path):
    def digest(text, name):
        return read(tmp_path, text, name).drafts[0].digest

    text, number, place = "id,draft,accept\n1,A text.,yes\n", "id,accept\n1,yes\n", "accept\nyes\n"
    other = "id,draft,human.clear\n2,A text.,7\n"
    assert digest(text, "a.csv") == digest(text, "b.csv") == digest(other, "a.csv")
    assert digest(number, "a.csv") == digest(number, "b.csv")
    assert digest(place, "a.csv") == digest(place, "b.csv") != digest(f"{place}no\n", "b.csv")


def test_a_row_put_before_others_makes_no_other_draft_new(tmp_path):
    text = "draft,accept\nA text.,yes\nAnother.,no\n"
    before = [one.digest for one in read(tmp_path, text).drafts]
    after = [
        one.digest for one in read(tmp_path, text.replace("A text", "New.,yes\nA text")).drafts
    ]

    assert after[1:] == before


def test_of_rows_that_scoring_wrote_the_last_of_a_draft_counts(tmp_path):
    text = (
        "id,passed,composite,score.clear,unjudged,rubric_sha256,sha256,scores,accept,group\n"
        '1,true,8,"[8, 9]",[],abc,s1,[],no,g\n'
        '2,,7,7,"[""tone""]",abc,s2,[],no,g\n'
        '1,true,8,"[8, 9]",[],abd,s1,[],yes,g\n'
    )
    found = read(tmp_path, text)
    two, one = found.drafts

    assert (one.accept, one.scores, one.rubric_sha256) == ({"": True}, {"clear": (8, 9)}, "abd")
    assert (two.unjudged, found.ignored) == (("tone",), ())


@pytest.mark.parametrize(
    ("text", "id_of", "same"),
    [
        pytest.param("id,draft,task,accept\n7,A text.,Write.,yes\n", "7", True, id="by its id"),
        pytest.param("draft,task,accept\nA text.,Write.,yes\n", "labels.csv:2", True, id="none"),
        pytest.param("id,draft,task,accept\n8,A text.,Write.,yes\n", "7", True, id="another"),
    ],
)
def test_a_draft_that_was_scored_is_the_label_that_it_was(tmp_path, text, id_of, same):
    sha256 = Draft(text="A text.", task="Write.").sha256
    (before,) = read(tmp_path, text).drafts
    row = f"id,accept,score,sha256\n{id_of},yes,8,{sha256}\n"
    (scored,) = read(tmp_path, row, "scored.csv").drafts

    assert (scored.digest == before.digest) is same


SCALES = rubric(
    Dimension(name="clear", judge="Is it?", scale={"min": 1, "max": 5, "step": 1}),
    Dimension(name="safe", judge="Is it?", scale="pass_fail"),
)


def test_scores_are_on_the_scale_of_their_dimension_and_pass_and_fail_are_words_too(tmp_path):
    text = "id,human.clear,human.safe,score.clear,score.safe\n1,5,yes,4 3,pass fail 1\n"
    path = tmp_path / "labels.csv"
    path.write_text(text)
    (one,) = read_labels(path, SCALES, columns={}).drafts

    assert one.people == {"clear": {"": 5}, "safe": {"": 1}}
    assert one.scores == {"clear": (4, 3), "safe": (1, 0, 1)}
    path.write_text(text.replace("4 3", "4 7"))
    with pytest.raises(LabelsInvalid, match=r"score.clear: '7': not on its scale, 1 to 5"):
        read_labels(path, SCALES, columns={})


def test_a_number_on_a_scale_of_two_scores_is_the_score_and_not_a_word(tmp_path):
    scales = rubric(Dimension(name="safe", judge="Is it?", scale={"min": 1, "max": 2, "step": 1}))
    path = tmp_path / "labels.csv"
    path.write_text("id,human.safe,score.safe\n1,1,1 2 yes no\n")
    (one,) = read_labels(path, scales, columns={}).drafts

    assert one.people == {"safe": {"": 1}}
    assert one.scores == {"safe": (1, 2, 2, 1)}


@pytest.mark.parametrize(
    ("unreadable", "off_scale", "scores"),
    [
        ("drop", "drop", [(4,), ()]),
        ("lowest", "clip", [(4, 1, 5), (1,)]),
        ("drop", "lowest", [(4, 1), ()]),
    ],
)
@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_judgements_without_a_score_and_scores_off_the_scale_are_told_and_counted(
    tmp_path, ending, unreadable, off_scale, scores
):
    path = tmp_path / f"labels.{ending}"
    if ending == "csv":
        path.write_text("id,accept,score.clear\n1,yes,4 null 9\n2,no,null\n3,no,\n")
    else:
        path.write_text(
            '{"id": "1", "accept": true, "score": {"clear": [4, null, 9]}}\n'
            '{"id": "2", "accept": false, "score.clear": null}\n'
            '{"id": "3", "accept": false, "score.clear": null, "unjudged": ["clear"]}\n'
        )
    found = read_labels(path, SCALES, columns={}, unreadable=unreadable, off_scale=off_scale)

    assert [one.scores.get("clear", ()) for one in found.drafts] == [*scores, ()]
    assert (found.unreadable, found.off_scale) == ({"score.clear": 2}, {"score.clear": 1})
