"""A conversation as one text, the way a model was trained to read it.

For servers that take nothing else. What opens every prompt of a model, such as `<|begin_of_text|>`
of Llama 3, is left out: the server's tokenizer puts it there, and a second one does harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.inference.endpoint import PromptTemplate
from harness.inference.request import Message, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFormat:
    """How the turns of a conversation are told apart."""

    header: Callable[[Role], str]
    """What goes before a turn."""
    end: str
    """What goes after it."""
    stop: tuple[str, ...]
    """Texts at which the model's own turn is over."""
    strips: bool = False
    """Whether blanks around a turn are dropped."""


TURN_FORMATS: Mapping[PromptTemplate, TurnFormat] = {
    "chatml": TurnFormat(
        header=lambda role: f"<|im_start|>{role}\n", end="<|im_end|>\n", stop=("<|im_end|>",)
    ),
    "llama3": TurnFormat(
        header=lambda role: f"<|start_header_id|>{role}<|end_header_id|>\n\n",
        end="<|eot_id|>",
        stop=("<|eot_id|>",),
        strips=True,
    ),
    # For models that were never trained on conversations: they go on with the other side's turn.
    "plain": TurnFormat(
        header=lambda role: f"{role.capitalize()}:\n", end="\n\n", stop=("\nUser:", "\nSystem:")
    ),
}


def prompt_text(turns: TurnFormat, messages: Sequence[Message]) -> str:
    """The conversation, and then the header of the turn that is asked for."""
    told = (
        turns.header(message.role)
        + (message.content.strip() if turns.strips else message.content)
        + turns.end
        for message in messages
    )
    return "".join(told) + turns.header("assistant")
