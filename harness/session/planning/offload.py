"""What a model gains of which only a part is on a GPU."""

from __future__ import annotations

from harness.hardware import first_gpu_layer, read_gguf_header, split_footprint
from harness.hardware.speed import GPU_SPEEDUP
from harness.inference import FILE_BACKENDS, MACHINE, Endpoint, loading_of


def offload_estimate(endpoint: Endpoint) -> str | None:
    """How fast a model is with the part of it that is on a GPU; None for one that is whole.

    Raises:
        ModelFileInvalid: Its file cannot be read.
    """
    layers = endpoint.gpu_layers
    if layers is None or endpoint.backend not in FILE_BACKENDS or endpoint.device == MACHINE:
        return None
    assert endpoint.path is not None
    header = read_gguf_header(endpoint.path)
    on_machine = first_gpu_layer(header, layers)
    if on_machine == 0:
        return None
    split = split_footprint(header, loading_of(endpoint, header), gpu_layers=layers)
    return (
        f"with gpu_layers = {layers}, {max(header.block_count - on_machine, 0)} of its "
        f"{header.block_count} layers and {split.gpu_share:.0%} of its weights are on "
        f"'{endpoint.device}': {split.speedup():.1f} times as fast as without, where all of it "
        f"there would be {GPU_SPEEDUP:g} times as fast (Amdahl's law, for a GPU of that speed); a "
        "smaller model that fits whole is nearly always faster"
    )
