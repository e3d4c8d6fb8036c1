import pytest

from harness.errors import InvalidInput
from harness.inference import Message, as_messages


def test_a_text_becomes_one_user_message():
    assert as_messages("Write.") == (Message("user", "Write."),)


def test_a_conversation_stays_as_it_is():
    conversation = [Message("system", "Be brief."), Message("user", "Write.")]

    assert as_messages(conversation) == tuple(conversation)


def test_text_that_no_wire_can_carry_is_refused_before_any_call():
    read_wrongly = b"caf\xe9".decode("utf-8", "surrogateescape")

    with pytest.raises(InvalidInput, match="the user message is not text: character 3 is half"):
        as_messages(read_wrongly)
