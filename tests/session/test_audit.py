from harness.session.audit import series_fields


def loop(*scores, rubric="brief", best_round=1, **more):
    rounds = [
        {
            "round": number,
            "score": score,
            "dims": {"tone": score},
            "issues": ["too dry"],
            "prompt_sha256": f"p{number}",
        }
        for number, score in enumerate(scores, start=1)
    ]
    said = {"rubric_sha256": "11", "prompts_sha256": "22", "stop_reason": "passed", **more}
    return {"rubric": rubric, "best_round": best_round, "rounds": rounds, **said}


def stage(**more):
    said = {"input": 100, "output": 20, "calls": 2, "total_ms": 900.0, "prompt_ms": 300.0}
    return {**said, "eval_ms": 500.0, "tok_s": 40.0, **more}


def test_the_series_fields_are_of_the_last_loop():
    # A gate stopped its last round: the composite is of the checks alone, and not the best.
    line = series_fields({}, [loop(5.0, rubric="essay"), loop(6.0, 8.5, 9.0, best_round=2)])

    assert line["schema_version"] == 1
    assert (line["wiggum_rounds"], line["wiggum_scores"]) == (3, [6.0, 8.5, 9.0])
    assert line["wiggum_dims"] == [{"tone": 6.0}, {"tone": 8.5}, {"tone": 9.0}]
    assert line["wiggum_eval_log"] == loop(6.0, 8.5, 9.0)["rounds"]
    assert line["wiggum_eval_log"][0].items() >= {"round": 1, "issues": ["too dry"]}.items()
    assert (line["first_score"], line["best_score"], line["last_score"]) == (6.0, 8.5, 9.0)
    assert (line["rubric_id"], line["rubric_sha256"]) == ("brief", "11")
    assert (line["stop_reason"], line["best_round"]) == ("passed", 2)
    assert (line["prompt_sha256"], line["prompts_sha256"]) == ("p2", "22")


def test_a_run_without_a_loop_or_a_call_has_the_series_fields_too():
    line = series_fields({}, [])

    assert (line["wiggum_rounds"], line["wiggum_scores"], line["wiggum_dims"]) == (0, [], [])
    assert (line["first_score"], line["best_score"], line["stop_reason"]) == (None, None, None)
    assert (line["input_tokens"], line["total_tokens"]) == (0, 0)
    assert (line["generation_tok_s"], line["tokens_by_stage"]) == (None, {})


def test_totals_are_of_all_stages_and_the_rate_of_those_that_have_one():
    line = series_fields(
        {
            "producer": stage(),
            "evaluator": stage(input=7, output=1, eval_ms=1500.0, tok_s=20.0),
            "other": stage(input=1, output=0, prompt_ms=0.0, eval_ms=3.0, tok_s=None),
        },
        [],
    )

    assert (line["input_tokens"], line["output_tokens"], line["total_tokens"]) == (108, 21, 129)
    assert (line["total_prompt_ms"], line["total_eval_ms"]) == (600.0, 2003.0)
    assert line["generation_tok_s"] == (40 * 500 + 20 * 1500) / 2000
    assert list(line["tokens_by_stage"]) == ["producer", "evaluator", "other"]
    assert line["tokens_by_stage"]["other"]["input"] == 1
