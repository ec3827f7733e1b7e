"""Run the process of `whiten serve`: open the bundles, answer, reload on SIGHUP, drain and stop on SIGTERM."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import prometheus_client
import uvicorn

from whiten_runtime.bundle.space import is_in_space
from whiten_runtime.errors import WhitenError, needing_package
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.ort.process import is_terminal
from whiten_serving.arguments import ModelChoice, names_of_bundles, read_keys, usual_format
from whiten_serving.http.app import check_paths, make_app, make_probes, with_tracing
from whiten_serving.http.metrics import set_up_logs
from whiten_serving.http.models import Models
from whiten_serving.http.service import Service
from whiten_serving.opening import (
    address_of,
    check_certificate,
    describe,
    hosts_of,
    is_replaced,
    listen,
    load_certificate,
    make_models,
    make_scheduler,
    naming_certificate,
    open_encoder,
    open_socket,
    page_url,
)
from whiten_serving.scheduler import Scheduler
from whiten_serving.settings import Settings

_SWITCH = 0.001
"""Seconds after which a thread that waits for the interpreter gets it. With Python's 0.005, lanes that have computed a
batch wait for the event loop: 10 % fewer texts/s of all-MiniLM-L6-v2 on two cores. With 0.0001, they take so many small
batches that requests for layer 0, whose network costs nothing, take a fifth more of the processor."""

_GRACE_ON_TERMINAL = 0.5
"""Seconds in which requests that run may end after Ctrl-C: whoever pressed it waits."""

_LOG = logging.getLogger("whiten.serving")


def serve(settings: Settings, choices: Sequence[ModelChoice], hang_ups: Sequence[int] = ()) -> None:
    """Serve bundles until SIGTERM or SIGINT has been obeyed. A list of `hang_ups` may grow before it is ready."""
    set_up_logs(usual_format() if settings.log == "off" else settings.log)
    check_paths([choice.name for choice in choices], settings.root_path)
    with needing_package(settings.parser):
        import_module(settings.parser)
    if settings.tls is not None:
        check_certificate(settings.tls)
    with ExitStack() as stack:
        listener, probes = stack.enter_context(open_socket(settings.listen, settings)), None
        if settings.metrics_listen is not None:
            probes = stack.enter_context(open_socket(settings.metrics_listen, settings))
        process = open_process(settings, choices)
        with asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner:
            runner.run(process.run(listener, probes, hang_ups))


@dataclass
class Process:
    """Serves opened bundles, and obeys the signals."""

    settings: Settings
    choices: Sequence[ModelChoice]
    service: Service
    scheduler: Scheduler
    _stopping: bool = False

    async def run(
        self, listener: socket.socket, probes: socket.socket | None = None, hang_ups: Sequence[int] = ()
    ) -> None:
        """Serve until a signal has been obeyed; reload at once if there were hang-ups before."""
        settings = self.settings
        self.service.hosts = None if settings.api_keys else hosts_of(listener, settings.listen, settings)
        self._hung_up, self._tasks = asyncio.Event(), set[asyncio.Task[None]]()
        self._terminal = is_terminal(sys.stderr)
        if hang_ups:
            self._hung_up.set()

        def start() -> None:
            self._handle_signals()  # before the first request is answered, as whoever got an answer may stop the server
            self._say_ready(address_of(listener), None if probes is None else address_of(probes))
            self._tasks.add(asyncio.create_task(self._reload_when_asked()))

        self._server = self._make_server(with_tracing(make_app(self.service)), start, settings.tls)
        listen(listener)
        try:
            async with self._serving_probes(probes):
                await self._server.serve([listener])
        finally:
            for task in self._tasks:
                task.cancel()
            await self.service.models.close(wait=False)
            await asyncio.to_thread(self.scheduler.close, wait=False)
        _LOG.info("stopped")

    @asynccontextmanager
    async def _serving_probes(self, listener: socket.socket | None) -> AsyncIterator[None]:
        """Answer at --metrics-listen meanwhile, if that is set."""
        if listener is None:
            yield
            return
        self.service.probe_hosts = hosts_of(listener, str(self.settings.metrics_listen), self.settings)
        started = asyncio.Event()
        server = self._make_server(make_probes(self.service), started.set)
        listen(listener)
        serving = asyncio.create_task(server.serve([listener]))
        await started.wait()  # so that its handlers of signals are set before those of the process
        try:
            yield
        finally:
            server.should_exit = True
            await serving

    def _make_server(self, app: Any, start: Callable[[], None], tls: str | None = None) -> uvicorn.Server:
        """Return a server of an application. `start` is called when it has set its own handlers of signals."""
        settings = self.settings

        async def lifespan(receive: Any, send: Any) -> None:
            await receive()
            start()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})

        def application(scope: Any, receive: Any, send: Any) -> Any:
            return lifespan(receive, send) if scope["type"] == "lifespan" else app(scope, receive, send)

        config = uvicorn.Config(
            application,
            interface="asgi3",
            http=settings.parser,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.keep_alive,
            timeout_graceful_shutdown=settings.grace,
            ssl_certfile=tls,
        )
        with naming_certificate(tls):  # it may have been replaced while the bundles were opened
            config.load()
        return uvicorn.Server(config)

    def _say_ready(self, address: str, metrics: str | None) -> None:
        """Say that requests are answered, and set the interpreter up for them."""
        gc.collect()
        gc.freeze()  # what lives as long as the process: looking through it took 5 % of each request's time
        sys.setswitchinterval(_SWITCH)
        models = [describe(model) for model in self.service.models]
        values = {"address": address, "models": models, "keys": len(self.service.settings.api_keys)}
        url = page_url(self.settings, address)
        if url is not None:
            values["page"] = url
        if metrics is not None:
            values["metrics"] = metrics
        _LOG.info("ready", extra={"values": values})
        notify("READY=1", f"STATUS=serving on {address}")

    def _handle_signals(self) -> None:
        """Drain on SIGTERM and Ctrl-C, and reload on SIGHUP."""
        loop = asyncio.get_running_loop()
        actions: dict[str, Callable[[int], object]] = {
            "SIGTERM": self._terminate,
            "SIGINT": self._terminate,
            "SIGHUP": self._hang_up,
        }
        for name, action in actions.items():
            number = getattr(signal, name, None)
            if number is None:
                continue
            try:
                loop.add_signal_handler(number, action, number)
            except NotImplementedError:  # Windows
                signal.signal(
                    number,
                    lambda caught, _, action=action: loop.call_soon_threadsafe(action, caught),  # type: ignore[misc]
                )

    def _terminate(self, number: int) -> None:
        """Begin to drain; end at once if that has begun already."""
        if self._stopping:
            _LOG.warning(f"stopped at once by a second {signal.Signals(number).name}")
            os._exit(128 + number)
        self._stopping = self.service.draining = True
        notify("STOPPING=1", "STATUS=draining")
        drain, grace = self.settings.drain, self.settings.grace
        if number == signal.SIGINT and self._terminal:  # Ctrl-C: no balancer sends requests here
            drain, grace = 0.0, min(grace, _GRACE_ON_TERMINAL)
        self._server.config.timeout_graceful_shutdown = grace
        _LOG.info(
            f"draining: requests are answered for {drain:g} s, those that run then for up to {grace:g} s more; "
            "a second signal ends at once"
        )
        asyncio.get_running_loop().call_later(drain, setattr, self._server, "should_exit", True)

    def _hang_up(self, number: int) -> None:
        """Reload; or stop, if the signal says that the terminal is gone."""
        if self._terminal and not is_terminal(sys.stderr):
            self._terminate(number)
        else:
            self._hung_up.set()

    async def _reload_when_asked(self) -> None:
        """Reload for each SIGHUP; those that come during a reload have one more when it ends."""
        while await self._hung_up.wait():
            self._hung_up.clear()
            if not self._stopping:
                await self._reload()

    async def _reload(self) -> None:
        """Put bundles that were replaced on the disk in the place of the old ones, each when it is proven."""
        notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        self._reload_keys()
        self._reload_certificate()
        for bundle, names in names_of_bundles(self.choices).items():
            try:
                done = await self._reload_one(bundle, names)
            except Exception as error:  # whatever is wrong with a file, the old bundle goes on
                text = str(error) if isinstance(error, WhitenError) else f"{type(error).__name__}: {error}"
                _LOG.error(f"{', '.join(names)}: not reloaded, the old bundle goes on: {' '.join(text.split())}")
            else:
                for name in names:
                    _LOG.info(f"{name}: {done}", extra={"values": {"model": name}})
        notify("READY=1")

    def _reload_keys(self) -> None:
        if self.settings.api_key_file is not None:
            try:
                keys = read_keys(self.settings.api_key_file, os.environ, _LOG.warning)
            except WhitenError as error:  # the old ones go on: none would let everybody in
                _LOG.error(f"keys: not reloaded, the old ones go on: {error}")
            else:
                self.service.take_keys(keys)
                _LOG.info(f"keys: reloaded, {len(keys)}")

    def _reload_certificate(self) -> None:
        """Take the private key and the certificates of the file for new connections; those that are there go on."""
        if self.settings.tls is not None:
            try:
                check_certificate(self.settings.tls)  # all of it is taken, or nothing
                load_certificate(self._server.config.ssl, self.settings.tls)
            except WhitenError as error:
                _LOG.error(f"certificate: not reloaded, the old one goes on: {error}")
            else:
                _LOG.info("certificate: reloaded")

    async def _reload_one(self, bundle: str, names: Sequence[str]) -> str:
        old, unasked = self.service.models.named(names[0]), None
        try:
            await asyncio.to_thread(locate_bundle, bundle, refresh=True)
        except WhitenError as error:
            unasked = error
        replaced = await asyncio.to_thread(is_replaced, bundle, old.digest)
        if unasked is not None:
            _LOG.warning(f"{names[0]}: the hub's cache answers: {unasked}")
        if not replaced:
            return "unchanged"
        encoder, agreement = await asyncio.to_thread(open_encoder, bundle, self.settings)
        before = old.encoder.space
        for model in make_models(names, encoder, agreement, self.scheduler):
            self.service.models.replace(model)
        if not is_in_space(encoder.manifest, before):
            _LOG.warning(
                f"{names[0]}: the space of its vectors is no longer {before}, but {encoder.space}: embed the texts "
                "of an index again, unless the new bundle is a refit with --align-to"
            )
        return "reloaded"


def open_process(settings: Settings, choices: Sequence[ModelChoice]) -> Process:
    """Open and prove the bundles, and return the process that serves them."""
    prometheus_client.disable_created_metrics()
    with ExitStack() as opening:
        names, encoders = names_of_bundles(choices), []
        for bundle in names:
            encoders.append(open_encoder(bundle, settings))
            opening.callback(encoders[-1][0].close)
        scheduler = make_scheduler([encoder for encoder, _ in encoders], settings)
        opened = zip(names.values(), encoders, strict=True)
        models = {model.name: model for some, proof in opened for model in make_models(some, *proof, scheduler)}
        service = Service(Models(models[choice.name] for choice in choices), settings)
        scheduler.on_batch = service.metrics.on_batch
        for model in service.models:
            if not service.normalizes(model, False):
                _LOG.info(
                    f"{model.name}: vectors of /v1/embeddings are not of norm 1; for a store that compares by dot "
                    "product, set normalize = true, or let it compare by cosine"
                )
        opening.pop_all()
    return Process(settings, choices, service, scheduler)


def notify(*lines: str) -> None:
    """Tell systemd what the process does, by the protocol of sd_notify(3); does nothing without NOTIFY_SOCKET."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith(("/", "@")):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect("\0" + address[1:] if address.startswith("@") else address)
            sender.sendall("\n".join(lines).encode())
