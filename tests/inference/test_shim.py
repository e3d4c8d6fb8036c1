import asyncio

import pytest

from harness.errors import ConfigurationInvalid
from harness.inference import ChatRequest, InferenceShim, ScriptedBackend, as_messages


def request(model):
    return ChatRequest(model=model, messages=as_messages("Write."))


def test_each_request_goes_to_the_backend_of_its_model():
    async def main():
        shim = InferenceShim({"small": ScriptedBackend(["s"]), "large": ScriptedBackend(["l"])})
        assert (await shim.chat(request("large"))).text == "l"
        assert (await shim.chat(request("small"))).text == "s"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("tags", "says"),
    [
        (["qwen2.5-7b", "llama"], "no endpoint is called 'qwen-7b'; did you mean 'qwen2.5-7b'?"),
        (["zeta", "alpha"], "known: alpha, zeta"),
        ([], "there are none"),
    ],
    ids=["a near one", "none near", "none at all"],
)
def test_an_unknown_tag_is_told_what_there_is(tags, says):
    shim = InferenceShim({tag: ScriptedBackend([]) for tag in tags})

    with pytest.raises(ConfigurationInvalid, match=says.replace("?", r"\?")):
        asyncio.run(shim.chat(request("qwen-7b")))
