"""Images: what is one, and what becomes of it in requests, keys and traces."""

import base64
from dataclasses import replace
from urllib.parse import quote

import pytest

from harness.errors import InvalidInput
from harness.inference import ChatRequest, Image, Message, ToolCall, as_messages
from harness.inference.call_spans import conversation_text
from harness.inference.images import MOST_BYTES
from harness.inference.providers.openai_wire import wire_message
from harness.inference.reply_store import call_key
from harness.inference.request import most_prompt_tokens, one_turn
from harness.inference.tool_offers import _as_text

PNG = b"\x89PNG\r\n\x1a\n of an owl"
DATA_URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
URL = "https://owls.example/owl.png"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0 of an owl", "image/jpeg"),
        (b"RIFF\x10\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"GIF89a of an owl", "image/gif"),
    ],
)
def test_an_image_says_itself_what_kind_it_is(data, kind, tmp_path):
    path = tmp_path / "owl"
    path.write_bytes(data)

    assert Image.from_bytes(data) == Image.from_path(path) == Image.from_bytes(data, kind)
    assert Image.from_path(path).media_type == kind
    assert Image.from_url(Image.from_bytes(data).address) == Image.from_bytes(data)


@pytest.mark.parametrize(
    "respelled",
    [
        base64.encodebytes,
        base64.urlsafe_b64encode,
        lambda data: quote(base64.b64encode(data), safe="").encode(),
        lambda data: base64.b64encode(data).rstrip(b"="),
        lambda data: base64.b64encode(data) + b"==",
    ],
    ids=["in lines", "for URLs", "escaped", "without padding", "with too much of it"],
)
def test_a_data_address_has_the_bytes_however_they_are_spelled(respelled):
    data = PNG + bytes(range(256))
    assert Image.from_url(f"data:image/png;base64,{respelled(data).decode()}").data == data


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda folder: Image.from_path(folder / "none.png"), "image.unreadable"),
        (Image.from_path, "image.unreadable"),
        (lambda _: Image.from_bytes(b"<svg/>"), "image.not-an-image"),
        (lambda _: Image.from_bytes(PNG, "image/jpeg"), "image.not-an-image"),
        (lambda _: Image.from_bytes(PNG + bytes(MOST_BYTES)), "image.too-large"),
        (lambda _: Image.from_url("file:///etc/passwd"), "image.bad-address"),
        (lambda _: Image.from_url("data:image/png;base64,A"), "image.bad-address"),
        (lambda _: Image.from_url(Image.from_bytes(PNG).address + "!!"), "image.bad-address"),
        (lambda _: Image.from_url("data:image/png;base64,Größe"), "image.bad-address"),
        (lambda _: as_messages({"role": "user", "content": [3]}), "request.part-not-text"),
    ],
)
def test_what_is_no_image_is_refused_before_any_call(make, code, tmp_path):
    with pytest.raises(InvalidInput) as caught:
        make(tmp_path)
    assert caught.value.code == code


FOX = {"type": "image_url", "image_url": {"url": URL, "detail": "low"}}
OWL = {"type": "image_url", "image_url": {"url": DATA_URL}}
CACHED = {"type": "text", "text": "All animals.", "cache_control": {"type": "ephemeral"}}


def text(words):
    return {"type": "text", "text": words}


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        (["Is ", FOX, text("this or "), Image.from_bytes(PNG), " this?"],
         [text("Is "), FOX, text("this or "), OWL, text(" this?")]),
        ([FOX, text("This?")], [FOX, text("This?")]),
        (["This?", OWL], [text("This?"), OWL]),
        ([CACHED, text("And?")], [CACHED, text("And?")]),
        ([text("All "), "animals?"], "All animals?"),
        ([OWL | {"image_url": DATA_URL, "cache_control": {}}], [OWL | {"cache_control": {}}]),
    ],
    ids=["between texts", "first", "last", "cached", "texts", "an address alone"],
)  # fmt: skip
def test_the_parts_of_a_message_are_sent_in_their_order_with_their_fields(content, sent):
    (message,) = as_messages({"role": "user", "content": content})

    assert wire_message(message)["content"] == sent
    assert message.content == "".join(p["text"] for p in listed(sent) if "text" in p)
    asked = one_turn(Message("user", "Look."), replace(message, content=f"{message.content} Now."))
    joined = wire_message(asked)["content"]
    assert [p for p in listed(joined) if p["type"] == "image_url"] == [
        p for p in listed(sent) if p["type"] == "image_url"
    ]
    assert "".join(p["text"] for p in listed(joined) if "text" in p).endswith(" Now.")


def listed(content):
    return [text(content)] if isinstance(content, str) else content


def test_a_turn_that_is_joined_to_a_cached_part_is_no_part_of_it():
    turns = as_messages(
        [{"role": "user", "content": [CACHED]}, {"role": "user", "content": "And?"}]
    )

    cached = CACHED | {"text": "All animals.\n\n"}
    assert wire_message(one_turn(*turns))["content"] == [cached, text("And?")]


def test_an_image_before_the_text_is_the_same_however_it_is_written():
    image = Image.from_bytes(PNG)
    (message,) = as_messages({"role": "user", "content": [OWL, "This?"]})
    assert message == Message("user", "This?", images=(image,))


def key(*content):
    messages = as_messages({"role": "user", "content": content})
    return call_key(ChatRequest(model="m", messages=messages), identity="m")


def test_calls_whose_parts_stand_elsewhere_have_different_keys():
    cached = OWL | {"cache_control": {"type": "ephemeral"}}
    orders = [(OWL, "ab"), ("a", OWL, "b"), ("ab", OWL), (FOX, "ab"), (cached, "ab")]
    assert len({key(*content) for content in orders}) == len(orders)


def test_a_trace_and_a_key_know_an_image_by_its_digest():
    image = Image.from_bytes(PNG)
    shown = conversation_text([Message("user", "This?", images=(image,))])
    assert shown == f"[user]\nThis?\n\n[image image/png, {len(PNG)} bytes, sha256 {image.digest}]"
    assert len({key("?"), key(image, "?"), key(Image.from_url(URL), "?"), key(image, image)}) == 4
    assert key(image, "?") == key(Image.from_url(DATA_URL), "?")


def test_an_image_counts_in_the_estimate():
    request = ChatRequest(model="m", messages=as_messages("This?"))
    shown = ChatRequest(
        model="m", messages=(Message("user", "This?", images=(Image.from_bytes(PNG),)),)
    )
    assert most_prompt_tokens(shown) == most_prompt_tokens(request) + 2048


LOOK = tuple(ToolCall(f"c{n}", "look", "{}") for n in range(2))


def turns(*messages):
    return [
        (message.role, message.content, len(message.images))
        for message in ChatRequest(model="m", messages=messages).conversation
    ]


@pytest.mark.parametrize(
    ("behind", "roles"),
    [
        ((), ["user", "assistant", "tool", "tool", "user"]),
        ((Message("user", "So?"),), ["user", "assistant", "tool", "tool", "user"]),
        (
            (Message("assistant", "A dot."),),
            ["user", "assistant", "tool", "tool", "user", "assistant"],
        ),
    ],
    ids=["at the end", "before a question", "before an answer"],
)
def test_images_of_tools_are_shown_by_a_user_behind_all_results(behind, roles):
    image = Image.from_bytes(b"\x89PNG\r\n\x1a\n" + bytes(9))
    results = [Message("tool", "[image 1]", answers=call.id, images=(image,)) for call in LOOK]
    said = turns(Message("user", "?"), Message("assistant", "", tool_calls=LOOK), *results, *behind)
    assert [role for role, _, _ in said] == roles
    assert [images for *_, images in said][:5] == [0, 0, 0, 0, 2]
    assert "images" in said[4][1]
    assert said[4][1].endswith("So?") or not behind or behind[0].role != "user"


def test_a_typed_offer_keeps_the_images_of_tools():
    image = Image.from_bytes(b"\x89PNG\r\n\x1a\n" + bytes(9))
    results = [Message("tool", "[image 1]", answers=call.id, images=(image,)) for call in LOOK]
    said = _as_text([Message("user", "?"), Message("assistant", "", tool_calls=LOOK), *results])
    assert [(message.role, len(message.images)) for message in said] == [
        ("user", 0),
        ("assistant", 0),
        ("user", 2),
    ]
