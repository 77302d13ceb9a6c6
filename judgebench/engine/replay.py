"""The replay engine: recorded replies, joined by input key. It asks nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from judgebench.engine import Event, Failure, Response
from judgebench.request import Key, Request


class Recorded(NamedTuple):
    """A recorded reply."""

    output: str
    finish_reason: str | None = None
    top_logprobs: str | None = None


@dataclass(frozen=True, eq=False)
class Replay:
    """Answers from `replies`, which is called at the first request: nothing is read before."""

    replies: Callable[[], Mapping[Key, Recorded]]
    origin: Literal["replayed", "imported"] = "replayed"

    async def run(self, requests: AsyncIterable[Request]) -> AsyncGenerator[Event, None]:
        """See `judgebench.engine.Engine`."""
        recorded: Mapping[Key, Recorded] | None = None
        async for request in requests:
            if recorded is None:
                recorded = await asyncio.to_thread(self.replies)
            reply = recorded.get(request.key)
            if reply is None:
                yield Failure(request, "not_recorded", "There is no recording of this rendered prompt.")
            elif reply.output == "":
                yield Failure(request, "empty", "The recorded reply is empty.", output="")
            else:
                yield Response(
                    request,
                    reply.output,
                    finish_reason=reply.finish_reason,
                    top_logprobs=reply.top_logprobs,
                    origin=self.origin,
                )
