"""A proxy between clients and a server that cuts, delays, doubles and reorders what passes through.

Bytes of TCP cannot be doubled or reordered without breaking the stream, so whole WebSocket frames of the client are:
the proxy reads the frames, as a faulty middle box or a client that sends again would make them arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import threading


class FaultProxy:
    """Listens on a port of its own, on a thread of its own."""

    def __init__(self, port: int, *, seed: int, cut: float = 0.0, delay: float = 0.0, double: float = 0.0) -> None:
        """`cut`, `delay` and `double` are the shares of frames to which that happens."""
        self._target, self._rng = port, random.Random(seed)
        self._cut, self._delay, self._double = cut, delay, double
        self.cuts = self.delays = self.doubles = self.stalls = 0
        self._open: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        self._ready.wait(10)

    @property
    def address(self) -> str:
        return f"ws://127.0.0.1:{self.port}/session"

    async def _main(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        async with server:
            await self._over.wait()
        await asyncio.gather(*self._open)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        current = asyncio.current_task()
        assert current is not None
        self._open.add(current)
        try:
            there, to_server = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        tasks = [
            asyncio.create_task(self._requests(reader, to_server)),
            asyncio.create_task(self._answers(there, writer)),
            asyncio.create_task(self._over.wait()),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in (writer, to_server):
            one.close()
            with contextlib.suppress(OSError):
                await one.wait_closed()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From the client to the server, frame by frame."""
        writer.write(await reader.readuntil(b"\r\n\r\n"))
        held = b""
        is_first = True
        while True:
            frame = await read_frame(reader)
            if is_first:  # hello
                is_first = False
                writer.write(frame)
                continue
            chance = self._rng.random()
            if chance < self._cut:
                self.cuts += 1
                if self._rng.random() < 0.5:  # half of it arrives
                    writer.write(frame[: self._rng.randrange(len(frame))])
                    await writer.drain()
                return
            if self._rng.random() < self._delay:
                self.delays += 1
                await asyncio.sleep(self._rng.uniform(0.0, 0.02))
            writer.write(frame)
            if self._rng.random() < self._double:
                self.doubles += 1
                writer.write(frame)
                held = frame
            elif held and self._rng.random() < 0.5:  # an old frame arrives again, after a newer one
                self.stalls += 1
                writer.write(held)
                held = b""
            await writer.drain()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From the server to the client: bytes, in pieces, and sometimes not at all."""
        while data := await reader.read(4096):
            if self._rng.random() < self._cut / 2:
                self.cuts += 1
                writer.write(data[: self._rng.randrange(len(data))])
                await writer.drain()
                return
            if self._rng.random() < self._delay:
                half = len(data) // 2
                writer.write(data[:half])
                await writer.drain()
                await asyncio.sleep(self._rng.uniform(0.0, 0.01))
                data = data[half:]
            writer.write(data)
            await writer.drain()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """One whole frame of a client."""
    head = await reader.readexactly(2)
    size = head[1] & 0x7F
    if size == 126:
        more = await reader.readexactly(2)
        size, head = struct.unpack(">H", more)[0], head + more
    elif size == 127:
        more = await reader.readexactly(8)
        size, head = struct.unpack(">Q", more)[0], head + more
    return head + await reader.readexactly(size + 4)
