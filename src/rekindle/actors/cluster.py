"""Actors on Ray: on any node of a cluster that you trust, or on one that is started here."""

# Ray's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
import platform
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

import numpy as np

from rekindle.actors.blas import one_thread
from rekindle.actors.casting import Cast
from rekindle.actors.evaluating import EvalPlan, PlayedEpisode
from rekindle.actors.packing import aligned
from rekindle.actors.policies import unpacked_policy
from rekindle.actors.processes import raise_report
from rekindle.actors.rounds import ActorEnd, Order, RoundArrays
from rekindle.actors.stage import Stage, error_report
from rekindle.actors.supervision import Silence, Supervised
from rekindle.agent import Policy, State
from rekindle.envs.factory import ENV_ERRORS
from rekindle.envs.pickling import pickled_by_value, unpickled
from rekindle.errors import ConfigError, EnvError, Interrupted, MissingExtra
from rekindle.experience import Array
from rekindle.interrupt import ShouldStop
from rekindle.processors import processors
from rekindle.text import install_command

__all__ = ["ActorsOnRay"]

_LOOK = 0.5
"""Seconds between two looks at whether to stop."""
_START = 120.0
"""Seconds that a worker gets to find a processor, and at least to start, and then to create each environment."""
_CONNECT = 60.0
"""Seconds that a cluster gets to answer."""
_GET = 60.0
"""Seconds to fetch what is ready."""


class ActorsOnRay(Supervised["_Worker"]):
    """Plays rounds on Ray; each Ray actor plays for several logical actors. Every call that waits has a timeout."""

    has_one_thread = True  # or a node says that it differs

    def __init__(
        self, cast: Cast, *, workers: int | None = None, address: str | None = None, patience: float = 120.0
    ) -> None:
        """Connect to the cluster at an address, or start one here."""
        self.shape = shape = cast.shape
        super().__init__(f"{cast.factory.name}: the Ray actor", shape.actors, patience)
        self.mark_inexact: Callable[[str], object] = lambda _: None
        """Called if a node differs from the machine of the learner."""
        self._cast = cast
        count = min(workers or processors(), shape.actors)
        ends = [shape.actors * index // count for index in range(count + 1)]
        self._order: Order | None = None
        self._ray = ray = _imported()
        self._undo = contextlib.ExitStack()
        self._workers: list[_Worker] = []
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            if not ray.is_initialized():
                self._connect(address, count)
            pickled = pickled_by_value(cast, "--actors-on here")
            for first, end in itertools.pairwise(ends):
                self._workers.append(_Worker(ray, range(first, end), pickled))
            undo.pop_all()

    def _connect(self, address: str | None, count: int) -> None:
        ray = self._ray
        self._undo.callback(ray.shutdown)
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
        try:
            with _sigterm_kept():
                if address is None:
                    # Not on another thread: the processes of the cluster end with the thread that has started them.
                    ray.init(num_cpus=count, include_dashboard=False, **options)
                else:
                    if address != "auto" and "://" not in address:
                        _check_server(address)
                    _join(ray, address=address, **options)
        except (ConnectionError, RuntimeError, ValueError, OverflowError, OSError) as error:
            where, advice = "this machine", ""
            if address is not None:
                where, advice = address, "; if it wants a token, set RAY_AUTH_MODE=token, with the token in ~/.ray"
            raise ConfigError(f"there is no Ray cluster at {where}: {error}{advice}") from None

    @property
    def workers(self) -> int:
        """See `Crew`."""
        return len(self._workers)

    # Rounds

    def start(self, order: Order) -> None:
        """Begin a round; the policy is sent to the object store once."""
        self._order, self._policy = order, self._ray.put(np.array(order.policy))
        for worker in self._workers:
            worker.deaths = 0
            worker.play(order, self._policy)

    def collect(self) -> tuple[RoundArrays, list[ActorEnd]]:
        """Wait for the round; workers that die meanwhile, alone or with their node, are started again."""
        order = cast("Order", self._order)
        self._order = None

        def again(worker: _Worker) -> None:
            worker.play(order, self._policy)

        self._wait_for(self._workers, f"in round {order.number}", again, self.should_stop)
        arrays = RoundArrays.empty(self.shape, self.shape.rows)
        ends: list[ActorEnd] = []
        for worker in self._workers:
            answer = worker.take_answer()
            for mine, theirs in zip(arrays.each, answer["arrays"], strict=True):
                mine[:, self.shape.rows_of(worker.actors)] = theirs
            ends += [ActorEnd.of_tree(end) for end in answer["ends"]]
        self._policy = None
        return arrays, ends

    def evaluate(
        self, plan: EvalPlan, policy: Array, parts: Sequence[Sequence[int]], should_stop: ShouldStop
    ) -> list[PlayedEpisode] | None:
        """Play evaluation episodes between two rounds, each part on another worker; None in the middle of a round."""
        if self._order is not None:
            return None
        pickled, there = pickled_by_value(plan, "--actors-on here"), self._ray.put(np.array(policy))

        def ask(worker: _Worker, numbers: list[int]) -> None:
            worker.evaluate({"plan": pickled, "numbers": numbers}, there)

        return self._evaluated(self._workers, parts, ask, should_stop)

    def _wait(self, waiting: Sequence[_Worker]) -> Sequence[_Worker]:
        self._ray.wait([worker.answer for worker in waiting], num_returns=1, timeout=_LOOK)
        return list(waiting)

    def _answered(self, worker: _Worker) -> None:
        self._compare(worker)

    def _compare(self, worker: _Worker) -> None:
        """Say so if a node computes with other libraries, or another processor, than the learner."""
        if worker.is_compared:
            return
        worker.is_compared = True
        here = {**machine(), "BLAS": "one thread"}
        different = [
            f"{name} {there} (here {here[name]})" for name, there in worker.machine.items() if there != here[name]
        ]
        if different:
            self.mark_inexact(
                f"the node of {worker.name} differs: {', '.join(different)}: results may differ in last bits"
            )

    def close(self) -> None:
        """End the workers, and the cluster if it was started here."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.kill()
        self._undo.close()


def _check_server(address: str) -> None:
    """Raise at once if nothing answers there: Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"ray_address is {address!r}: use HOST:PORT, such as 10.0.0.1:6379, or auto")
    socket.create_connection((host, int(port)), timeout=10).close()


@contextlib.contextmanager
def _sigterm_kept() -> Generator[None]:
    """Give SIGTERM its handler back: Ray sets one that exits, and one in C++ that aborts."""
    is_main, handler = threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGTERM)
    is_terminated = False
    try:
        yield
    except SystemExit:  # by Ray, which SIGTERM has reached
        is_terminated = True
    finally:
        if is_main and handler is not None:
            signal.signal(signal.SIGTERM, handler)
    if is_terminated:
        signal.raise_signal(signal.SIGTERM)
        raise Interrupted("stopped while Ray was started")


def _join(ray: Any, **options: Any) -> None:
    """Connect to a cluster; a server that accepts a connection and is no cluster would be waited for for minutes."""
    raised: list[BaseException] = []

    def initialise() -> None:
        try:
            ray.init(**options)
        except BaseException as error:
            raised.append(error)

    log = logging.getLogger("ray")
    level = log.level
    log.setLevel(logging.ERROR)  # it would warn that this is not the main thread
    thread = threading.Thread(target=initialise, name="rekindle-ray", daemon=True)
    thread.start()
    thread.join(_CONNECT)
    log.setLevel(level)
    if thread.is_alive():
        raise ConnectionError(f"no answer in {_CONNECT:g} s")
    for error in raised:
        raise error


def machine() -> dict[str, str]:
    """What the last bits of an action may depend on."""
    return {"python": platform.python_version(), "numpy": np.__version__, "processor": _processor()}


def _processor() -> str:
    features: dict[str, bool] = getattr(getattr(np, "_core", None), "_multiarray_umath").__cpu_features__  # noqa: B009
    found = [name for name in ("AVX512F", "AVX2", "FMA3", "SSE41", "NEON") if features.get(name)]
    return f"{platform.machine()} {'+'.join(found)}"


def _policy(data: Array) -> Policy:
    """A policy, with its arrays aligned as everywhere."""
    copy = aligned(len(data))
    copy[:] = data
    return unpacked_policy(copy)


class RayStage:
    """What a Ray actor runs: the actors of one worker, and on another thread an answer to whether it is alive."""

    def __init__(self, pickled: bytes, actors: Sequence[int], paths: Sequence[str]) -> None:
        """`paths` are where the learner finds its modules; they count where they exist."""
        sys.path += [path for path in paths if path not in sys.path and os.path.isdir(path)]
        self._pickled, self._range = pickled, range(*actors)
        self._blas = one_thread()
        self._machine = {**machine(), "BLAS": "one thread" if self._blas.__enter__() else "any number of threads"}
        self._stage: Stage | None = None
        self._beats = 0

    def beats(self) -> tuple[int, bool]:
        """Steps so far, and whether all environments are created."""
        return self._beats, self._stage is not None

    def _beat(self) -> None:
        self._beats += 1

    def _made(self) -> Stage:
        if self._stage is None:
            self._cast: Cast = unpickled(self._pickled)
            self._stage = Stage(self._cast, self._range, beat=self._beat)
        return self._stage

    def play(self, order: State, policy: Array) -> State:
        """Play a round."""
        try:
            stage = self._made()
            arrays = RoundArrays.empty(self._cast.shape, stage.rows)
            ends = stage.play(order, _policy(policy), arrays)
        except ENV_ERRORS as error:
            return error_report(error)
        return {"ends": ends, "arrays": arrays.each, "machine": self._machine}

    def evaluate(self, order: State, policy: Array) -> State:
        """Play evaluation episodes."""
        try:
            return {"played": self._made().evaluate(order, _policy(policy)), "machine": self._machine}
        except ENV_ERRORS as error:
            return error_report(error)


class _Worker:
    """One Ray actor, as the learner sees it. What a former incarnation answers is never looked at."""

    def __init__(self, ray: Any, actors: range, pickled: bytes) -> None:
        self._ray, self.actors, self._pickled = ray, actors, pickled
        self.name = f"actor {actors.start}" if len(actors) == 1 else f"actors {actors.start} to {actors.stop - 1}"
        self._kind = ray.remote(RayStage).options(num_cpus=1, max_concurrency=2, max_restarts=0)
        self.deaths = 0
        self.machine: dict[str, str] = {}
        self._start()

    def _start(self) -> None:
        self._handle = self._kind.remote(
            self._pickled, [self.actors.start, self.actors.stop], [path for path in sys.path if path]
        )
        self._is_at_start, self.is_lost, self.is_compared = True, False, False
        self._is_up = self._is_ready = False
        self._silence = Silence()
        self._beats = 0
        self._asked: Any = self._handle.beats.remote()
        self._found: State | None = None
        self._failure: str | None = None
        self.answer: Any = None

    def play(self, order: Order, policy: Any) -> None:
        """Let it play a round."""
        if self.is_lost:
            self.start_again()
        starts = order.starts[self.actors.start : self.actors.stop] if self._is_at_start or order.rewinds else None
        self._is_at_start = False
        self._send(
            self._handle.play,
            {
                "number": order.number,
                "env_steps": order.env_steps,
                "starts": None if starts is None else [start.tree() for start in starts],
            },
            policy,
        )

    def evaluate(self, order: State, policy: Any) -> None:
        """Let it play evaluation episodes."""
        if self.is_lost:
            self.start_again()
        self._send(self._handle.evaluate, order, policy)

    def _send(self, method: Any, order: State, policy: Any) -> None:
        self._found = self._failure = None
        if self._is_up:
            self._silence = Silence(self._beats)
        self.answer = method.remote(order, policy)

    def has_answer(self) -> bool:
        """Whether it has answered; raises what it has reported."""
        if self._found is None:
            return False
        raise_report(self._found, self.name)
        return True

    def take_answer(self) -> State:
        """What it has answered."""
        return cast("State", self._found)

    def death(self, patience: float) -> str | None:
        """How the actor died, or that it hangs; None if it is well, or has answered."""
        ray = self._ray
        ready, _ = ray.wait([self.answer], timeout=0)
        if ready:
            try:
                self._found = ray.get(self.answer, timeout=_GET)
                self.machine = self._found.get("machine", {}) if self._found is not None else {}
            except ray.exceptions.GetTimeoutError:
                return f"did not send its answer in {_GET:g} s"
            except ray.exceptions.RayError as error:
                return f"died ({type(error).__name__})"
            return None
        return self._hang(patience)

    def _hang(self, patience: float) -> str | None:
        ray = self._ray
        ready, _ = ray.wait([self._asked], timeout=0)
        if ready:
            try:
                self._beats, self._is_ready = ray.get(self._asked, timeout=_GET)
            except ray.exceptions.RayError as error:
                return f"died ({type(error).__name__})"
            if not self._is_up:
                self._is_up, self._silence = True, Silence()
            self._asked = self._handle.beats.remote()
        silent = self._silence.seconds(self._beats)
        if not self._is_up:
            allowed = max(_START, patience)
            if silent > allowed:
                raise EnvError(
                    f"{self.name}: no processor of the Ray cluster was free for {allowed:g} s: use fewer --workers, "
                    "or add a node"
                )
            return None
        allowed = max(patience, _LOOK * 4 if self._is_ready else _START)
        if silent > allowed:
            return f"made no step for {allowed:g} s"
        return None

    def start_again(self) -> None:
        """End the rest of the actor, and start another on any node."""
        self.kill()
        self._start()

    def kill(self) -> None:
        """End it."""
        with contextlib.suppress(Exception):  # it may be dead, or the cluster gone
            self._ray.kill(self._handle, no_restart=True)


def _imported() -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"actors on Ray need {error.name}: {install_command('ray')}", name=error.name) from None
