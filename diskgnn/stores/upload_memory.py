"""Memory of what is on its way to a store: claimed before it is taken, by all uploads of an artifact together."""

from __future__ import annotations

import threading
from collections import deque

UPLOAD_BYTES = 64 << 20  # of parts and of buffers of drivers
BESIDE_BYTES = 8 << 20  # threads and connections, and the piece of each file that is copied to its part
_POLL_SECONDS = 0.1


class UploadMemory:
    """Limits what several threads take to so many bytes.

    Nobody waits for ever if those who have claimed need no more to get rid of it: an upload claims a part, fills it,
    sends it and releases it. What is being filled may wait for other files to arrive (`Outbox.send`): nobody has more
    than half, so that they can.
    """

    def __init__(self, total_bytes: int = UPLOAD_BYTES) -> None:
        self.total_bytes, self.claimed_bytes = total_bytes, 0
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    def claim(self, num_bytes: int) -> int:
        """Blocks until `num_bytes`, at most half of all, are free. Returns how many to release.

        In the order of calls: who needs much is not passed for ever by those who need little.
        """
        num_bytes, turn = min(num_bytes, self.total_bytes // 2), object()
        with self._changed:
            self._waiting.append(turn)
            try:
                while self._waiting[0] is not turn or self.claimed_bytes + num_bytes > self.total_bytes:
                    self._changed.wait(_POLL_SECONDS)  # a signal that another thread got is handled in between
                self.claimed_bytes += num_bytes
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()
        return num_bytes

    def release(self, num_bytes: int) -> None:
        """Lets others claim these bytes."""
        with self._changed:
            self.claimed_bytes -= num_bytes
            self._changed.notify_all()
