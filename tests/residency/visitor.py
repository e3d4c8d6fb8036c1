"""A guest whose bytes a test sets."""


class Visitor:
    """Counts what it takes of a machine's memory.

    Args:
        name: As the trace has it.
        needed_bytes: What it takes, from the beginning.
        machine: Where it takes them.

    Attributes:
        log: What it was told, in order.
        broken: Whether it fails to come back.
    """

    def __init__(self, name, needed_bytes, machine):
        self.name = name
        self.needed_bytes = needed_bytes
        self.log = []
        self.broken = False
        self._is_out = False
        self._taken = machine.taken
        self._taken[name] = needed_bytes

    @property
    def resident_bytes(self):
        return self._taken[self.name]

    def become(self, needed_bytes):
        self.needed_bytes = needed_bytes
        if not self._is_out:
            self._taken[self.name] = needed_bytes

    def evict(self, reason):
        self.log.append(reason)
        self._is_out = True
        self._taken[self.name] = 0

    def restore(self):
        assert self._is_out, f"{self.name} is there already"
        if self.broken:
            raise OSError("its file is gone")
        self.log.append("back")
        self._is_out = False
        self._taken[self.name] = self.needed_bytes
