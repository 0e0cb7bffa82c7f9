"""The server's live state, as one document and as a stream of them.

Owns the JSON of /status and the pace of its event stream: an event when something changed, a comment in silence.
Promises that watchers hold up neither requests nor the end of the server. Refuses to know how the state is kept.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foveate import __version__
from foveate.core.observe import Live, RequestView
from foveate.server.contract import Limits, Service
from foveate.server.reply import Channel, Ending, watched
from foveate.server.sse import HEADERS, comment, frame
from foveate.server.timings import image_object, timings_object

PACE_S = 0.25


def status_document(service: Service, live: Live, since_s: float) -> dict[str, Any]:
    """The document; `since_s` is when the server started, on the monotonic clock."""
    gauges = live.gauges
    return {
        "model": service.name,
        "version": __version__,
        "status": "draining" if service.draining else service.health()["status"],
        "uptime_s": round(time.monotonic() - since_s, 3),
        "slots": {"total": gauges.slots, "used": gauges.slots_used},
        "kv": {"pages": gauges.pages, "used": gauges.pages_used},
        "image_rows": {"total": gauges.image_rows, "used": gauges.image_rows_used, "kept": gauges.image_rows_kept},
        "encoder": {"images": gauges.images_encoding},
        "queue": {"waiting": gauges.waiting, "image_rows": gauges.waiting_image_rows},
        "requests": [_request(view) for view in live.requests],
        "recent": [_request(view) for view in live.recent],
    }


def _request(view: RequestView) -> dict[str, Any]:
    timings = timings_object(view.timings, view.output_tokens)
    timings.pop("images")
    return {
        "id": view.id,
        "state": view.state,
        "prompt_tokens": view.prompt_tokens,
        "output_tokens": view.output_tokens,
        "elapsed_s": round(view.elapsed_s, 6),
        "prepare_s": round(view.prepare_s, 6),
        "images": [image_object(image) for image in view.timings.images],
        "timings": timings,
    }


class StatusStream(Response):
    """Sends the document, each time it has changed, as `event: status`, until the watcher leaves or the server ends."""

    def __init__(self, service: Service, limits: Limits, since_s: float) -> None:
        super().__init__()
        self._service, self._limits, self._since_s = service, limits, since_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ending: Ending = asyncio.get_running_loop().create_future()
        channel = Channel(send, ending, self._limits)
        async with watched(receive, ending):
            await channel.start(200, HEADERS)
            await self._send_changes(channel)
            await channel.write(b"", last=True)

    async def _send_changes(self, channel: Channel) -> None:
        shown, quiet_s = None, 0.0
        while not self._service.draining:
            document = status_document(self._service, await self._service.live(), self._since_s)
            state = document | {"uptime_s": 0}
            if state != shown:
                await channel.write(frame(document, "status"))
                shown, quiet_s = state, 0.0
            elif quiet_s >= self._limits.keep_alive_s:
                await channel.write(comment("keep-alive"))
                quiet_s = 0.0
            quiet_s += PACE_S
            await channel.run(asyncio.sleep(PACE_S))
