"""A server of the session protocol that fails as told, at exact moments; it learns nothing."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any, Self

import msgspec
from aiohttp import WSMsgType, web

__all__ = ["ScriptedServer"]

SECRET = "8f0c1a2b3c4d5e6f708192a3b4c5d6e7"


class ScriptedServer:
    """Answers requests, and applies the next fault of the script to each numbered request that arrives.

    `cut before`: end the connection, the request is not processed. `cut after`: process it and end the connection.
    `twice`: answer twice. `refuse`: refuse it, without a trace. `leave`: say that the server leaves. `gone`, `behind`:
    end the connection, and refuse the secret or say that requests were lost in the next one. Anything else: answer.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = list(faults)
        self.processed: list[dict[str, Any]] = []
        self.hellos: list[dict[str, Any]] = []
        self.unanswered_stats = 0
        """How many requests for statistics get no answer."""
        self.last = 0
        self._next_welcome = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        application = web.Application()
        application.router.add_get("/session", self._converse)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _converse(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for frame in socket:
            if frame.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
                break
            is_text = frame.type is WSMsgType.TEXT
            message = json.loads(frame.data) if is_text else msgspec.msgpack.decode(frame.data)
            if not await self._answered(socket, message, is_text):
                assert request.transport is not None
                request.transport.abort()
                break
        return socket

    async def _answered(self, socket: web.WebSocketResponse, message: dict[str, Any], is_text: bool) -> bool:
        async def send(**answer: Any) -> None:
            if is_text:
                await socket.send_str(json.dumps(answer))
            else:
                await socket.send_bytes(msgspec.msgpack.encode(answer))

        if message["type"] == "hello":
            if not await self._welcomed(send, message):
                await socket.close(code=4410)
        elif message["type"] == "stats" and self.unanswered_stats:
            self.unanswered_stats -= 1
        elif message["type"] == "stats":
            await send(type="stats", ref=message["ref"], steps=len(self.processed))
        elif "seq" in message:
            return await self._processed(socket, send, message, is_text)
        return True

    async def _processed(
        self, socket: web.WebSocketResponse, send: Any, message: dict[str, Any], is_text: bool
    ) -> bool:
        fault = self.faults.pop(0) if self.faults else ""
        seq = message["seq"]
        if fault in ("cut before", "gone", "behind"):
            self._next_welcome = fault
            return False
        if fault == "leave":
            await send(type="error", code="leaving", message="the server stops", seq=seq)
            await socket.close(code=1001)
        elif fault == "refuse":
            await send(type="error", code="value", message="an action outside of the space", seq=seq)
        elif seq not in (self.last, self.last + 1):
            await send(type="error", code="sequence", message=f"{seq} after {self.last}", seq=seq)
        else:
            if seq == self.last + 1:
                self.last = seq
                self.processed.append(message)
            actions: Any = [seq % 3] if is_text else (seq % 3).to_bytes(4, "little")
            for _ in range({"cut after": 0, "twice": 2}.get(fault, 1)):
                await send(type="actions", seq=seq, tick=seq, actions=actions)
        return fault != "cut after"

    async def _welcomed(self, send: Any, hello: dict[str, Any]) -> bool:
        self.hellos.append(hello)
        if self._next_welcome == "gone" and hello.get("secret") is not None:
            await send(type="error", code="gone", message="nobody has that secret")
            return False
        is_behind = self._next_welcome == "behind"
        if hello.get("secret") is None:
            self.last = 0
        elif is_behind:
            self.last -= 1
        self._next_welcome = ""
        await send(
            type="welcome",
            version=1,
            server="scripted",
            run="run",
            agent="none",
            client=hello.get("client") or "somebody",
            incarnation=1,
            secret=SECRET,
            last=self.last,
            is_behind=is_behind,
            streams=[],
            observation_space={},
            action_space={},
            observation={"": {"dtype": "float32", "shape": [2]}},
            action={"": {"dtype": "int32", "shape": []}},
            limits={"message": 1 << 20, "streams": 1024, "rate": 2000},
        )
        return True
