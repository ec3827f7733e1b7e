"""Run the process: open the bundles, answer, reload on SIGHUP, drain and stop on SIGTERM and SIGINT."""

import asyncio
import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from whiten_serving.http.access_log import log_refused
from whiten_serving.http.app import App
from whiten_serving.http.metrics import Metrics
from whiten_serving.http.models import Models
from whiten_serving.http.state import State
from whiten_serving.server.banner import banner, describe
from whiten_serving.server.gauges import DriftGauges
from whiten_serving.server.graceful import make_server
from whiten_serving.server.guards import Guards
from whiten_serving.server.keys import read_keys
from whiten_serving.server.limits import allowed_connections
from whiten_serving.server.log import Form, Log, take_over
from whiten_serving.server.notify import notify_ready, notify_reloading, notify_stopping
from whiten_serving.server.opening import make_lanes, open_models, served
from whiten_serving.server.options import http_options
from whiten_serving.server.reloading import Reloader, note
from whiten_serving.server.sockets import Listeners, bind, port_in_use
from whiten_serving.server.tls import certificate
from whiten_serving.settings.models import ModelChoice
from whiten_serving.settings.table import Settings, told

_SWITCH = 0.0001
"""Seconds after which a thread that waits for the interpreter gets it. With Python's 0.005, a lane that has computed a
batch waits for many requests of the event loop's thread: on two cores, 10 % fewer texts/s of all-MiniLM-L6-v2."""

_CLOSING = 1.0
"""Seconds for models, and then for threads, to end after the grace."""


def serve(settings: Settings, choices: tuple[ModelChoice, ...]) -> None:
    """Serve bundles until SIGTERM or SIGINT has been obeyed.

    Raises:
        WhitenError: the address cannot be used, or a file or bundle cannot be opened or proven.
    """
    form: Form = "text" if settings.log == "text" or (settings.log is None and sys.stderr.isatty()) else "json"
    log = Log(form)
    keys = read_keys(settings.api_key_file, os.environ, log.warn)
    listeners = bind(settings)
    try:
        process = Process(settings, choices, listeners, log, keys)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(process.run())
            _end_soon(listeners)
    finally:
        listeners.close()


class Process:
    """Opens the bundles, serves them, and obeys the signals.

    Args:
        settings: the settings.
        choices: the models.
        listeners: the sockets.
        log: where it says what it does.
        keys: keys, one of which a request must have.

    Raises:
        WhitenError: a file or bundle cannot be opened or proven.
    """

    def __init__(
        self,
        settings: Settings,
        choices: tuple[ModelChoice, ...],
        listeners: Listeners,
        log: Log,
        keys: tuple[str, ...],
    ) -> None:
        self._settings = settings
        self._listeners = listeners
        self._log = log
        self._keys = len(keys)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._terminal = sys.stderr.isatty()
        options = http_options(settings, keys, log.form)
        self._certificate = certificate(settings.tls_cert, settings.tls_key)
        self._guards = Guards(
            allowed_connections(settings.max_connections),
            settings.max_headers,
            settings.header_timeout,
            max(settings.keep_alive, settings.header_timeout),
            settings.body_timeout,
        )
        metrics, self._gauges = Metrics(), DriftGauges()
        self._state = State(connections=self._guards.connections, settings=told(settings))
        self._opened = open_models(choices, settings)
        self._lanes = make_lanes(self._opened, settings, metrics)
        self._models = Models(served(one, self._lanes) for one in self._opened)
        for one in self._opened:
            note(one, self._state, self._gauges)
        if settings.drift:
            metrics.registry.register(self._gauges)
        self._guards.refused = self._refused
        self._app = App(self._models, options, metrics, self._state)
        self._server = make_server(
            self._app, self._guards, settings.keep_alive, settings.grace, self._certificate, self._started
        )
        self._reloader = Reloader(
            settings,
            choices,
            self._models,
            self._lanes,
            self._state,
            self._gauges,
            log,
            (self._reload_keys, self._reload_certificate),
        )

    async def run(self) -> None:
        """Serve until a signal has been obeyed.

        Raises:
            WhitenError: another process listens on the address.
        """
        take_over(self._log)
        self._handle(signal.SIGTERM, self._terminate)
        self._handle(signal.SIGINT, self._terminate)
        if hasattr(signal, "SIGHUP"):
            self._handle(signal.SIGHUP, self._hang_up)
        if self._settings.drift:
            self._start(self._gauges.measure_for_ever())
        try:
            await self._server.serve(list(self._listeners.sockets))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise port_in_use(self._listeners.address) from None
            raise
        finally:
            for task in self._tasks:
                task.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSING):
                    await self._models.close(wait=False)
                    await asyncio.to_thread(self._lanes.close, wait=False)
        self._log.info("stopped")

    def _started(self) -> None:
        """Say that requests are answered."""
        _collect_seldom()
        sys.setswitchinterval(_SWITCH)
        self._state.ready = True
        agreements = {one.name: one.agreement for one in self._opened if one.agreement is not None}
        models = list(self._models)
        self._opened = []
        if self._log.form == "text":
            lines = banner(self._settings, self._listeners, models, agreements, self._lanes, self._keys)
            self._log.lines.write("\n".join(lines))
        else:
            shown = [describe(model, agreements.get(model.name)) for model in models]
            self._log.info("ready", address=self._listeners.address, models=shown, keys=self._keys)
        notify_ready(f"serving on {self._listeners.address}")

    def _refused(self, status: int, code: str) -> None:
        """Count and log what was refused before it was a request."""
        self._state.refused[code] += 1
        log_refused(int(status), code, self._app.options.access_log)

    def _handle(self, number: int, action: Callable[[int], object]) -> None:
        loop = asyncio.get_running_loop()
        try:
            loop.add_signal_handler(number, action, number)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda caught, frame: loop.call_soon_threadsafe(action, caught))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _terminate(self, number: int) -> None:
        """Begin to drain; end at once if that has begun already."""
        if self._stopping:
            self._log.warn(f"stopped at once by a second {signal.Signals(number).name}")
            self._listeners.close()
            os._exit(128 + number)
        self._stopping = True
        self._start(self._drain())

    def _hang_up(self, number: int) -> None:
        """Reload; or stop, if the signal says that the terminal is gone."""
        if self._terminal and not sys.stderr.isatty():
            self._terminate(number)
        else:
            self._start(self._reload())

    async def _drain(self) -> None:
        settings = self._settings
        self._state.draining = self._guards.draining = True
        notify_stopping()
        self._log.info(
            f"draining: requests are answered for {settings.drain:g} s, those that run then for up to "
            f"{settings.grace:g} s more; a second signal ends at once"
        )
        await asyncio.sleep(settings.drain)
        self._server.should_exit = True

    async def _reload(self) -> None:
        if not self._stopping:
            notify_reloading()
            await self._reloader.reload()
            notify_ready(f"serving on {self._listeners.address}")

    def _reload_keys(self) -> None:
        keys = read_keys(self._settings.api_key_file, os.environ, self._log.warn)
        self._app.options = replace(self._app.options, api_keys=keys)

    def _reload_certificate(self) -> None:
        if self._certificate is not None:
            self._certificate.reload()


def _collect_seldom() -> None:
    """Leave what lives as long as the process out of collections of garbage, and collect less often.

    Requests leave next to no cycles behind, and each allocates so much that looking for some took 5 % of its time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _end_soon(listeners: Listeners) -> None:
    """End the process in `_CLOSING` seconds, even if threads still run, which nothing can stop; before, if none do."""

    def end() -> None:
        listeners.close()
        os._exit(0)

    timer = threading.Timer(_CLOSING, end)
    timer.daemon = True
    timer.start()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes event loops: uvloop where it exists."""
    if sys.platform == "win32":
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
