import pytest

from harness.errors import ContextOverflow, ServerError
from harness.inference.refused_fields import RefusedFields
from harness.inference.wire.errors import error_from_reply

SENT = {
    "model": "m",
    "messages": [],
    "max_tokens": 64,
    "temperature": 0.0,
    "frequency_penalty": 0.5,
    "seed": 7,
    "logprobs": True,
    "top_logprobs": 2,
}


def refusal(said, status=400):
    return ServerError(f"HTTP {status}: {said}", endpoint="m", status=status)


LITELLM_REMEDY = (
    " To drop these, set `litellm.drop_params=True` or for proxy:\n\n"
    "`litellm_settings:\n drop_params: true`\n"
)


@pytest.mark.parametrize(
    ("said", "dropped"),
    [
        pytest.param(
            "temperature: Extra inputs are not permitted", ["temperature"], id="Anthropic, 2026-10"
        ),
        pytest.param(
            "`temperature` is deprecated for this model.", ["temperature"], id="Anthropic, newer"
        ),
        pytest.param(
            "`temperature` may only be set to 1 when thinking is enabled.",
            ["temperature"],
            id="Anthropic, thinking",
        ),
        pytest.param(
            "Unsupported value: 'temperature' does not support 0 with this model. Only the default "
            "(1) value is supported.",
            ["temperature"],
            id="OpenAI, a value",
        ),
        pytest.param(
            "Unsupported parameter: 'frequency_penalty' is not supported with this model.",
            ["frequency_penalty"],
            id="OpenAI, a parameter",
        ),
        pytest.param(
            "Unrecognized request argument supplied: seed", ["seed"], id="OpenAI, an argument"
        ),
        pytest.param(
            "logprobs are not supported with reasoning models.",
            ["logprobs", "top_logprobs"],
            id="OpenAI, log probabilities",
        ),
        pytest.param(
            "[{'type': 'extra_forbidden', 'loc': ('body', 'seed'), 'msg': 'Extra inputs are not "
            "permitted', 'input': 7}]",
            ["seed"],
            id="vLLM and TensorRT-LLM",
        ),
        pytest.param(
            "JAX does not support per-request seed.", ["seed"], id="vLLM without seeds of calls"
        ),
        pytest.param(
            "{'detail': [{'type': 'extra_forbidden', 'loc': ['body', 'seed'], 'msg': 'Extra inputs "
            "are not permitted', 'input': 7}, {'type': 'extra_forbidden', 'loc': ['body', "
            "'logprobs'], 'msg': 'Extra inputs are not permitted', 'input': True}]}",
            ["seed", "logprobs", "top_logprobs"],
            id="Mistral",
        ),
        pytest.param("property 'seed' is unsupported", ["seed"], id="Groq"),
        pytest.param(
            "logprobs are currently available only for the vLLM backend",
            ["logprobs", "top_logprobs"],
            id="Triton's OpenAI front end",
        ),
        pytest.param(
            "Extra inputs are not permitted, field: 'seed', value: 7", ["seed"], id="Fireworks"
        ),
        pytest.param(
            "litellm.UnsupportedParamsError: anthropic does not support parameters: "
            "['frequency_penalty', 'seed'], for model=claude-haiku-4-5." + LITELLM_REMEDY,
            ["frequency_penalty", "seed"],
            id="litellm, for a provider",
        ),
        pytest.param(
            "litellm.UnsupportedParamsError: O-series models don't support temperature=0.0. Only "
            "temperature=1 is supported. To drop unsupported openai params from the call, set "
            "`litellm.drop_params = True`",
            ["temperature"],
            id="litellm, for a model",
        ),
        pytest.param("Unknown fields: top_p, seed", ["seed"], id="a list"),
        pytest.param("body -> seed: extra fields not permitted", ["seed"], id="FastAPI, older"),
        pytest.param(
            "The temperature parameter is not supported.", ["temperature"], id="a parameter"
        ),
        pytest.param(
            "Unsupported parameter: 'top_logprobs' is not supported with this model.",
            ["top_logprobs"],
            id="one of two whose names are alike",
        ),
    ],
)
@pytest.mark.parametrize("status", [400, 422])
def test_what_a_refusal_names_is_left_out_from_then_on(said, dropped, status):
    refused = RefusedFields()

    assert refused.learn(refusal(said, status), SENT)

    kept, left_out = refused.without(SENT)
    assert list(left_out) == dropped
    assert kept == {name: value for name, value in SENT.items() if name not in dropped}


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(
            error_from_reply(
                400,
                b'{"error": {"message": "This model\'s maximum context length is 512 tokens. '
                b"However, you requested 600 (88 in the messages, 512 in max_tokens); a seed "
                b'is not allowed to change that."}}',
                headers={},
                endpoint="m",
                model_id="m",
            ),
            id="a prompt that is too long",
        ),
        pytest.param(
            refusal("max_tokens: 100000 > 8192, which is the maximum allowed; not supported"),
            id="a reply that is too long",
        ),
        pytest.param(
            refusal(
                "Invalid schema for response_format 'reply': In context=('properties', "
                "'temperature'), 'minimum' is not permitted."
            ),
            id="a schema with a property of that name",
        ),
        pytest.param(
            refusal(
                "[{'loc': ('body', 'response_format'), 'msg': 'Extra inputs are not permitted', "
                "'input': {'json_schema': {'properties': {'seed': {}}}}}]"
            ),
            id="a schema that is given back",
        ),
        pytest.param(
            refusal("temperature: Input should be less than or equal to 1"), id="a value too large"
        ),
        pytest.param(
            refusal("Tools are not supported. The request had a seed and a temperature."),
            id="another sentence",
        ),
        pytest.param(refusal("top_temperature is not supported"), id="a longer name"),
        pytest.param(refusal("top_p is not supported"), id="a field that was not sent"),
        pytest.param(refusal("messages: Extra inputs are not permitted"), id="what must be sent"),
        pytest.param(refusal("temperature is not supported", 500), id="a server that failed"),
        pytest.param(
            refusal("Invalid 'messages[0]': 'Why is a temperature not allowed below zero kelvin?'"),
            id="a prompt that is given back",
        ),
        pytest.param(
            refusal("Invalid 'messages[0]': 'The seed of an unknown plant'"),
            id="a prompt that is given back, the name at its beginning",
        ),
    ],
)
def test_no_field_goes_for_what_is_no_refusal_of_it(error):
    refused = RefusedFields()

    assert not refused.learn(error, SENT)
    assert refused.without(SENT) == (SENT, ())


def test_an_overflow_is_told_from_a_refusal_before_it_comes_here():
    error = error_from_reply(
        400,
        b'{"error": {"message": "maximum context length is 512 tokens; max_tokens not supported"}}',
        headers={},
        endpoint="m",
        model_id="m",
    )

    assert isinstance(error, ContextOverflow)


def test_a_field_by_another_name_is_sent_and_not_dropped():
    refused = RefusedFields()
    said = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
        "'max_completion_tokens' instead."
    )

    assert refused.learn(refusal(said), SENT)

    kept, dropped = refused.without(SENT)
    assert kept["max_completion_tokens"] == 64
    assert "max_tokens" not in kept
    assert dropped == ()
    assert not refused.learn(refusal(said), kept), "a second time it does not help"


def test_a_field_that_was_dropped_and_is_refused_all_the_same_ends_the_call():
    refused = RefusedFields()
    error = refusal("seed is not supported")
    assert refused.learn(error, SENT)
    kept, _ = refused.without(SENT)

    assert not refused.learn(error, kept)


def test_what_was_dropped_and_did_not_help_is_sent_again():
    refused = RefusedFields(["logprobs"])
    # The second half is the prompt's.
    quoting = refusal("Invalid 'messages[0]': \"'temperature' is not allowed, write 'celsius'\"")
    assert refused.learn(quoting, SENT)
    kept, _ = refused.without(SENT)
    assert "temperature" not in kept

    assert not refused.learn(quoting, kept)

    kept, dropped = refused.without(SENT)
    assert "temperature" in kept
    assert dropped == ("logprobs", "top_logprobs"), "what is known is not in doubt"


def test_a_new_name_that_did_not_help_is_forgotten():
    refused = RefusedFields()
    assert refused.learn(refusal("Use 'max_completion_tokens' instead."), SENT)
    kept, _ = refused.without(SENT)

    assert not refused.learn(refusal("Use 'max_completion_tokens' instead."), kept)

    assert refused.without(SENT) == (SENT, ())


def test_fields_are_found_out_one_after_another():
    refused = RefusedFields()
    for name in ("seed", "temperature"):
        kept, _ = refused.without(SENT)
        assert refused.learn(refusal(f"'{name}' is not supported"), kept)

    assert refused.without(SENT)[1] == ("temperature", "seed")


def test_a_server_that_fails_puts_nothing_in_doubt():
    refused = RefusedFields()
    refused.learn(refusal("'seed' is not supported"), SENT)
    kept, _ = refused.without(SENT)

    assert not refused.learn(refusal("boom", 500), kept)

    assert refused.without(SENT)[1] == ("seed",)


def test_what_is_known_beforehand_is_dropped_with_what_belongs_to_it():
    kept, dropped = RefusedFields(["logprobs", "seed"]).without(SENT)

    assert dropped == ("seed", "logprobs", "top_logprobs")
    assert not {"seed", "logprobs", "top_logprobs"} & set(kept)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param(
            "response_format",
            "replicate does not support parameters: ['response_format'], for model=m",
            id="a schema",
        ),
        pytest.param(
            "stream_options",
            "[{'type': 'extra_forbidden', 'loc': ['body', 'stream_options'], 'msg': 'Extra inputs "
            "are not permitted', 'input': {'include_usage': True}}]",
            id="the wish for usage",
        ),
    ],
)
def test_further_fields_may_be_droppable(name, said):
    sent = {**SENT, name: {}}
    refused = RefusedFields(droppable=[name])

    assert not RefusedFields().learn(refusal(said), sent)
    assert refused.learn(refusal(said), sent)
    assert refused.without(sent) == (SENT, (name,))
