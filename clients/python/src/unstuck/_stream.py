"""One bidirectional stream in the background, which is opened again whenever it ends.

The queue is bounded and nothing here blocks a caller.
"""

from __future__ import annotations

import collections
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import grpc

log = logging.getLogger("unstuck")

BACKOFF_MIN_SECS = 0.05
BACKOFF_MAX_SECS = 5.0
# Of one message; the service accepts 1 MiB.
BATCH_BYTES_MAX = 512 * 1024
# A message that the service refuses as a whole is not sent more often than this.
REFUSALS_MAX = 3
# The service answers in order, so more requests under way only fill buffers.
REQUESTS_MAX = 64
# The whole request is refused, and would be again.
HOPELESS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)


class Item:
    """Something to send. Subclasses add what they need when it is answered."""

    __slots__ = ("message", "size", "sent_at", "refusals")

    def __init__(self, message: Any) -> None:
        self.message = message
        self.size: int = message.ByteSize()
        self.sent_at = 0.0
        self.refusals = 0


ItemT = TypeVar("ItemT", bound=Item)


class Stream(Generic[ItemT]):
    """Sends items in batches. With `resend`, those without an answer are sent again.

    `pack` makes a request of a number and messages, `unpack` is called with each response and
    the items that it answers (none: a push), `opened` with each new stream, `lost` with each item
    that waits when a stream ends.
    """

    def __init__(
        self,
        *,
        name: str,
        connect: Callable[[Iterator[Any]], Any],
        pack: Callable[[int, list[Any]], Any],
        unpack: Callable[[Any, list[ItemT]], None],
        opened: Callable[[], None] = lambda: None,
        lost: Callable[[ItemT], None] = lambda item: None,
        resend: bool,
        max_batch: int,
        buffer: int,
    ) -> None:
        self._name = name
        self._connect = connect
        self._pack = pack
        self._unpack = unpack
        self._opened = opened
        self._lost = lost
        self._resend = resend
        self._max_batch = max_batch
        self._buffer = buffer
        self._changed = threading.Condition(threading.Lock())
        self._waiting: collections.deque[ItemT] = collections.deque()
        self._under_way: dict[int, list[ItemT]] = {}
        self._items_under_way = 0
        # The rest of the buffer is for what comes while these wait for their answers.
        self._items_under_way_max = max(1, buffer // 2)
        self._sequence = 0
        self._generation = 0
        self._call: Any = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._sleeping = threading.Event()
        self.down = False
        """The last attempt to connect failed: waiting for an answer is useless."""
        self.dropped = 0
        self.resent = 0
        self.reconnects = 0

    def put(self, item: ItemT) -> None:
        """Queues an item. A full queue drops its oldest."""
        with self._changed:
            if self._closed:
                self.dropped += 1
                return
            self._waiting.append(item)
            self._trim()
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def pending(self) -> int:
        """The number of items without an answer."""
        with self._changed:
            return len(self._waiting) + self._items_under_way

    def is_own_thread(self) -> bool:
        """Whether this is the thread that receives the answers: it cannot wait for one."""
        return threading.current_thread() is self._thread

    def unanswered(self, matches: Callable[[ItemT], bool]) -> bool:
        """Whether an item that matches has no answer yet."""
        with self._changed:
            groups = [self._waiting, *self._under_way.values()]
            return any(matches(item) for group in groups for item in group)

    def close(self, until: float) -> None:
        """Sends what waits, until this time of the monotonic clock, and ends the stream."""
        with self._changed:
            while not self.down and self._thread and (self._waiting or self._under_way):
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            self._closed = True
            self.dropped += len(self._waiting) + self._items_under_way
            self._waiting.clear()
            self._under_way.clear()
            self._items_under_way = 0
            call, thread = self._call, self._thread
            self._changed.notify_all()
        self._sleeping.set()
        if call is not None:
            call.cancel()
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))

    def _trim(self) -> None:
        while len(self._waiting) > max(1, self._buffer - self._items_under_way):
            self._waiting.popleft()
            self.dropped += 1

    def _run(self) -> None:
        backoff = BACKOFF_MIN_SECS
        while not self._closed:
            began = time.monotonic()
            code = None
            try:
                code = self._run_once()
            except Exception as error:  # The thread must outlive anything.
                log.debug("%s: %s", self._name, type(error).__name__)
            with self._changed:
                # Headers have arrived: the next attempt begins with a short pause.
                if not self.down and time.monotonic() - began > BACKOFF_MIN_SECS:
                    backoff = BACKOFF_MIN_SECS
                self._take_back(code)
                self.down = True
                waiting = list(self._waiting)
                self._changed.notify_all()
                if self._closed:
                    return
                self.reconnects += 1
            for item in waiting:
                self._lost(item)
            self._sleeping.wait(backoff * random.uniform(0.5, 1.0))
            backoff = min(backoff * 2, BACKOFF_MAX_SECS)

    def _run_once(self) -> grpc.StatusCode | None:
        """One stream, from its opening to its end. Returns the status with which it ended."""
        with self._changed:
            self._generation += 1
            generation = self._generation
            self._sequence = 0
        call = self._connect(self._requests(generation))
        with self._changed:
            self._call = call
            if self._closed:
                call.cancel()
        try:
            # Waits for the headers, which the service sends at once.
            call.initial_metadata()
            self.down = False
            self._opened()
            for response in call:
                self._receive(response)
        except grpc.RpcError as error:
            log.debug("%s: %s", self._name, error.code())
            code: grpc.StatusCode | None = error.code()
            return code
        finally:
            with self._changed:
                self._generation += 1
                self._call = None
                self._changed.notify_all()
            call.cancel()
        return None

    def _receive(self, response: Any) -> None:
        items: list[ItemT] = []
        sequence = getattr(response, "sequence", 0)
        if sequence:
            with self._changed:
                items = self._under_way.pop(sequence, [])
                self._items_under_way -= len(items)
        try:
            self._unpack(response, items)
        except Exception as error:
            log.debug("%s: %s", self._name, type(error).__name__)
        if sequence:
            with self._changed:
                self._changed.notify_all()

    def _take_back(self, code: grpc.StatusCode | None) -> None:
        """Puts what was not answered back to the front of the queue, in its order."""
        items = [item for _, group in sorted(self._under_way.items()) for item in group]
        self._under_way.clear()
        self._items_under_way = 0
        if code in HOPELESS:
            for item in items:
                item.refusals += 1
        again = [item for item in items if item.refusals < REFUSALS_MAX]
        self.dropped += len(items) - len(again)
        self.resent += len(again)
        self._waiting.extendleft(reversed(again))
        self._trim()

    def _requests(self, generation: int) -> Iterator[Any]:
        """The requests of one stream; read by a thread of gRPC."""
        while True:
            with self._changed:
                while generation == self._generation and (
                    not self._waiting or len(self._under_way) >= REQUESTS_MAX
                    or self._items_under_way >= self._items_under_way_max
                ):
                    if self._closed:
                        return
                    self._changed.wait()
                if generation != self._generation:
                    return
                batch = self._next_batch()
                self._sequence += 1
                if self._resend:
                    self._under_way[self._sequence] = batch
                    self._items_under_way += len(batch)
                request = self._pack(self._sequence, [item.message for item in batch])
            yield request

    def _next_batch(self) -> list[ItemT]:
        # An item that was refused with others goes alone, so that it harms only itself.
        batch: list[ItemT] = []
        size = 0
        now = time.monotonic()
        room = min(self._max_batch, self._items_under_way_max - self._items_under_way)
        while self._waiting and len(batch) < room:
            item = self._waiting[0]
            size += item.size
            if batch and (size > BATCH_BYTES_MAX or item.refusals):
                break
            item.sent_at = now
            batch.append(self._waiting.popleft())
            if item.refusals:
                break
        return batch
