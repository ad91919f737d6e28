"""The web application: static pages, and the data that they request."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast, get_args

import msgspec
from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from rekindle.errors import ConfigError, RekindleError
from rekindle.run.comparison import compare_trainings, difference_text, read_grouped_run
from rekindle.run.metadata import LOGS
from rekindle.run.reader import RunReader
from rekindle.storage import files
from rekindle.text import path_text, printable
from rekindle.ui.dashboard.blocks import Axis
from rekindle.ui.dashboard.connections import most_streams
from rekindle.ui.dashboard.listing import Listing
from rekindle.ui.dashboard.security import Guard, Token
from rekindle.ui.dashboard.studies import Studies
from rekindle.ui.dashboard.watching import IndexCache, RunWatch
from rekindle.ui.videos import MEDIA_TYPES, MOST_BYTES, list_videos
from rekindle.version import __version__

__all__ = ["Dashboard"]

STATIC = Path(__file__).parent / "static"
TICK = 1.0
"""Seconds between two checks of the files."""
_HEARTBEAT = 15.0
_MOST_RUNS = 100
"""The most runs in one comparison."""


class Dashboard:
    """The state that all pages of one server share."""

    def __init__(self, root: Path, *, host: str = "127.0.0.1") -> None:
        self.root = root
        self.token = Token()
        self.is_closing = asyncio.Event()
        """Set when the server ends, so that open event streams end too."""
        self._streams = _Streams(most_streams())
        self._listing = Listing(root)
        self._cache = IndexCache()
        self._studies = Studies(root)
        self.app = Starlette(
            routes=[
                Route("/", self._page),
                Route("/api/about", self._about),
                Route("/api/list", self._list),
                Route("/api/watch", self._watch),
                Route("/api/detail", self._detail),
                Route("/api/rows", self._rows),
                Route("/api/video", self._video),
                Route("/api/trainings", self._trainings),
                Route("/api/studies", self._studies_list),
                Route("/api/study", self._study),
                Route("/api/stop", self._stop, methods=["POST"]),
                Route("/api/tags", self._tags, methods=["POST"]),
                Mount("/static", _Static(directory=STATIC)),
            ],
            middleware=[Middleware(Guard, host=host, token=self.token)],
        )

    async def _page(self, _: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    async def _about(self, _: Request) -> Response:
        return _json({"root": path_text(self.root.absolute()), "version": __version__})

    async def _list(self, _: Request) -> Response:
        return _EventStream(self._list_events(), self._streams)

    async def _list_events(self) -> AsyncIterator[bytes]:
        version, is_first = 0, True
        while not self.is_closing.is_set():
            more = await to_thread.run_sync(self._listing.refresh)
            rows, gone, version = self._listing.changed_since(version)
            if rows or gone or is_first:
                yield _event({"runs": rows, "gone": gone, "count": self._listing.count})
                is_first = False
            else:
                yield b""
            if not more:
                await self._pause(TICK)

    async def _watch(self, request: Request) -> Response:
        watches = await to_thread.run_sync(self._watches, request)
        return _EventStream(self._watch_events(watches), self._streams)

    async def _watch_events(self, watches: list[RunWatch]) -> AsyncIterator[bytes]:
        with _all_of(watches):
            while not self.is_closing.is_set():
                is_busy = False
                for watch in watches:
                    messages, more = await to_thread.run_sync(watch.look)
                    is_busy |= more
                    yield b"".join(b"data: " + message + b"\n\n" for message in messages)
                if not is_busy:
                    await self._pause(TICK)

    def _watches(self, request: Request) -> list[RunWatch]:
        ids = list(dict.fromkeys(request.query_params.getlist("id")))[:_MOST_RUNS] or [""]
        points = min(5000, max(20, int(_number(request, "points", 1000))))
        paths = [self._path(id_) for id_ in ids]
        band = request.query_params.get("band", "1") == "1"
        return [
            RunWatch(id_, path, self._listing, self._cache, points=points, band=band)
            for id_, path in zip(ids, paths, strict=True)
        ]

    def _path(self, id_: str) -> Path:
        path = self._listing.find(id_)
        if path is None:
            raise HTTPException(404, "there is no such run")
        return path

    async def _detail(self, request: Request) -> Response:
        axis = request.query_params.get("by", "step")
        if axis not in get_args(Axis):
            raise HTTPException(400, "by must be step or time")
        low, high = _number(request, "from"), _number(request, "to")

        def read() -> Response:
            with _all_of(self._watches(request)) as watches:
                return _json([part for watch in watches for part in watch.detail(cast("Axis", axis), low, high)])

        return await to_thread.run_sync(read)

    async def _rows(self, request: Request) -> Response:
        log = request.query_params.get("log", "train_episodes")
        if log not in LOGS:
            raise HTTPException(400, "there is no such log")
        before = int(_number(request, "before")) if "before" in request.query_params else None
        count = min(500, max(1, int(_number(request, "count", 50))))

        def read() -> Response:
            with _all_of(self._watches(request)) as watches:
                rows, total = watches[0].rows(log, before, count)
                return _json({"rows": rows, "total": total})

        return await to_thread.run_sync(read)

    async def _video(self, request: Request) -> Response:
        def read() -> Response:
            name = request.query_params.get("name", "")
            # The name is compared with those that were found, and never joined to a path.
            found = [video.path for video in list_videos(self._path(request.query_params.get("id", "")))]
            path = next((path for path in reversed(found) if path.name == name), None)
            if path is None:
                raise HTTPException(404, "there is no such video")
            return Response(files.read_bytes(path, most=MOST_BYTES), media_type=MEDIA_TYPES[path.suffix])

        try:
            return await to_thread.run_sync(read)
        except (RekindleError, OSError) as error:
            raise HTTPException(500, str(error)) from None

    async def _trainings(self, request: Request) -> Response:
        def read() -> Response:
            paths = [self._path(id_) for id_ in dict.fromkeys(request.query_params.getlist("id")[:_MOST_RUNS])]
            found = compare_trainings([run for path in paths if (run := read_grouped_run(path)) is not None])
            lines = [
                {"text": printable(difference_text(difference)), "differs": difference.differs}
                for difference in found.differences
            ]
            return _json({"of": found.of, "groups": found.groups, "differences": lines})

        return await to_thread.run_sync(read)

    async def _studies_list(self, _: Request) -> Response:
        return _json(await to_thread.run_sync(self._studies.rows))

    async def _study(self, request: Request) -> Response:
        id_ = request.query_params.get("id", "")
        try:
            found = await to_thread.run_sync(self._studies.page, id_)
        except (RekindleError, OSError) as error:
            raise HTTPException(500, str(error)) from None
        if found is None:
            raise HTTPException(404, "there is no such study")
        return _json(found)

    async def _stop(self, request: Request) -> Response:
        id_ = request.query_params.get("id", "")

        def ask() -> Response:
            reader = RunReader(self._path(id_))
            if not reader.is_live:
                raise HTTPException(409, f"it is not live ({reader.status}): there is nothing to stop")
            reader.request_stop("asked to stop in the dashboard")
            return _json({"asked": True})

        try:
            return await to_thread.run_sync(ask)
        except (RekindleError, OSError) as error:
            raise HTTPException(500, str(error)) from None

    async def _tags(self, request: Request) -> Response:
        id_ = request.query_params.get("id", "")
        add, remove = (request.query_params.getlist(name) for name in ("add", "remove"))

        def change() -> Response:
            tags = RunReader(self._path(id_)).change_tags(add=add, remove=remove)
            self._listing.row(id_)  # so that lists show it at once
            return _json({"tags": tags})

        try:
            return await to_thread.run_sync(change)
        except ConfigError as error:
            raise HTTPException(400, str(error)) from None
        except (RekindleError, OSError) as error:
            raise HTTPException(500, str(error)) from None

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.is_closing.wait(), seconds)
        except TimeoutError:
            return


@contextmanager
def _all_of(watches: list[RunWatch]) -> Generator[list[RunWatch]]:
    with ExitStack() as stack:
        yield [stack.enter_context(watch) for watch in watches]


class _Static(StaticFiles):
    """Static files that the browser must revalidate."""

    async def get_response(self, path: str, scope: Any) -> Response:
        response = await super().get_response(path, scope)
        response.headers.setdefault("cache-control", "no-cache")
        return response


def _number(request: Request, name: str, otherwise: float = math.nan) -> float:
    text = request.query_params.get(name)
    try:
        number = float(text) if text is not None else otherwise
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise HTTPException(400, f"{name} must be a number")
    return number


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


class _Streams(msgspec.Struct):
    """The limit of open event streams, and their number."""

    most: int
    count: int = 0


class _EventStream(StreamingResponse):
    """A stream of events, if the limit allows one more stream."""

    def __init__(self, events: AsyncIterator[bytes], streams: _Streams) -> None:
        super().__init__(_with_heartbeats(events), media_type="text/event-stream")
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._streams.count >= self._streams.most:
            text = f"The dashboard is open {self._streams.count} times, which is the most: close a page.\n"
            await PlainTextResponse(text, status_code=503, headers={"retry-after": "5"})(scope, receive, send)
            return
        self._streams.count += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.count -= 1


async def _with_heartbeats(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pass events on, with a heartbeat during long pauses, so that the server notices when a browser is gone."""
    loop = asyncio.get_running_loop()
    last = loop.time()
    yield b"retry: 1000\n\n"
    async for event in events:
        if event:
            yield event
            last = loop.time()
        elif loop.time() - last > _HEARTBEAT:
            yield b": still here\n\n"
            last = loop.time()
