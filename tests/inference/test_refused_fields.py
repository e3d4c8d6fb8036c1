import pytest

from harness.errors import ServerError
from harness.inference.providers.error_replies import error_from_reply
from harness.inference.refused_fields import RefusedFields

SENT = {
    "model": "m",
    "messages": [],
    "max_tokens": 64,
    "temperature": 0.0,
    "reasoning_effort": "low",
    "top_p": 0.9,
    "frequency_penalty": 0.5,
    "seed": 7,
    "stop": ["END"],
}
EXTRA = "Extra inputs are not permitted"
USE_ANOTHER = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
    "'max_completion_tokens' instead."
)


def refusal(said, status=400):
    return ServerError(f"HTTP {status}: {said}", endpoint="m", status=status)


def forbidden(*names):
    """vLLM's, TensorRT-LLM's and Mistral's words."""
    return str([{"type": "extra_forbidden", "loc": ("body", n), "msg": EXTRA} for n in names])


@pytest.mark.parametrize(
    ("dropped", "said"),
    [
        # Anthropic, from its newest to its oldest words.
        ("temperature", f"temperature: {EXTRA}"),
        ("temperature", "`temperature` is deprecated for this model."),
        ("top_p", "`temperature` and `top_p` cannot both be specified for this model."),
        # OpenAI.
        ("temperature", "Unsupported value: 'temperature' does not support 0 with this model."),
        ("seed", "Unrecognized request argument supplied: seed"),
        ("stop", "Unsupported parameter: 'stop' is not supported with this model."),
        (
            "reasoning_effort",
            "Unsupported parameter: 'reasoning.effort' is not supported with this model.",
        ),
        # vLLM; Mistral; vLLM without seeds of calls; Groq; Triton's OpenAI front end; Fireworks.
        ("seed", forbidden("seed")),
        ("frequency_penalty seed", "{'detail': " + forbidden("seed", "frequency_penalty") + "}"),
        # litellm, for a provider and for a model.
        (
            "frequency_penalty seed",
            (
                "litellm.UnsupportedParamsError: anthropic does not support parameters: "
                "['frequency_penalty', 'seed'], for model=claude-haiku-4-5. To drop these, set "
                "`litellm.drop_params=True` or for proxy:\n\n`litellm_settings: …`\n"
            ),
        ),
        # FastAPI, older
    ],
)
def test_what_a_refusal_names_is_left_out_from_then_on(said, dropped):
    refused = RefusedFields()

    assert refused.learn(refusal(said), SENT)

    kept, left_out = refused.without(SENT)
    assert list(left_out) == dropped.split()
    assert kept == {name: value for name, value in SENT.items() if name not in dropped.split()}


OVERFLOW = error_from_reply(
    400,
    b'{"error": {"message": "This model\'s maximum context length is 512 tokens. However, you '
    b"requested 600 (88 in the messages, 512 in max_tokens); a seed is not allowed to change "
    b'that."}}',
    headers={},
    endpoint="m",
    model_id="m",
)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(OVERFLOW, id="a prompt that is too long"),
        *map(
            refusal,
            (
                "max_tokens: 100000 > 8192, which is the maximum allowed; not supported",
                (
                    "Invalid schema for response_format 'reply': In context=('properties', "
                    "'temperature'), 'minimum' is not permitted."
                ),
                "temperature: Input should be less than or equal to 1",
                "Tools are not supported. The request had a seed and a temperature.",
                "top_temperature is not supported",
                f"messages: {EXTRA}",
                "Invalid 'messages[0]': 'Why is a temperature not allowed below zero kelvin?'",
            ),
        ),
        refusal("temperature is not supported", 500),
    ],
    ids=str,
)
def test_no_field_goes_for_what_is_no_refusal_of_it(error):
    refused = RefusedFields()

    assert not refused.learn(error, SENT)
    assert refused.without(SENT) == (SENT, ())


def test_a_field_by_another_name_is_sent_and_forgotten_when_that_does_not_help():
    refused = RefusedFields()
    assert refused.learn(refusal(USE_ANOTHER), SENT)

    kept, dropped = refused.without(SENT)
    assert (kept["max_completion_tokens"], dropped) == (64, ())
    assert "max_tokens" not in kept

    assert not refused.learn(refusal(USE_ANOTHER), kept)
    assert refused.without(SENT) == (SENT, ())


def test_what_was_dropped_and_did_not_help_is_sent_again():
    refused = RefusedFields(["seed"])
    # The second half is the prompt's.
    quoting = refusal("Invalid 'messages[0]': \"'temperature' is not allowed, write 'celsius'\"")
    assert refused.learn(quoting, SENT)
    kept, _ = refused.without(SENT)
    assert "temperature" not in kept

    assert not refused.learn(quoting, kept)

    kept, dropped = refused.without(SENT)
    assert "temperature" in kept
    assert dropped == ("seed",), "what is known is not in doubt"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("response_format", "replicate does not support parameters: ['response_format']"),
        ("stream_options", forbidden("stream_options")),
    ],
)
def test_further_fields_may_be_droppable(name, said):
    sent = {**SENT, name: {}}
    refused = RefusedFields(droppable=[name])

    assert not RefusedFields().learn(refusal(said), sent)
    assert refused.learn(refusal(said), sent)
    assert refused.without(sent) == (SENT, (name,))
