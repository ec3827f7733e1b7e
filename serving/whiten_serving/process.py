"""Run the process of `whiten serve`: open the bundles, answer, reload on SIGHUP, drain and stop on SIGTERM."""

import asyncio
import gc
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module
from typing import Any

import prometheus_client
import uvicorn

from whiten_runtime.bundle.manifest import bundle_hash
from whiten_runtime.bundle.space import is_in_space
from whiten_runtime.errors import WhitenError, needing_package
from whiten_runtime.hub import locate_bundle
from whiten_runtime.ort.process import is_terminal
from whiten_serving.http.app import check_paths, make_app, make_probes, with_tracing
from whiten_serving.http.metrics import set_up_logs
from whiten_serving.http.models import Models, describe, make_models, make_scheduler, open_encoder
from whiten_serving.http.service import Service
from whiten_serving.settings import Settings, names_of_bundles, read_keys, usual_format
from whiten_serving.sockets import hosts_of, listen, load_certificate, open_socket, page_url, show

_SWITCH = 0.001
"""Seconds after which a thread that waits for the interpreter gets it. With Python's 0.005, lanes that have computed a
batch wait for the event loop: 10 % fewer texts/s of all-MiniLM-L6-v2 on two cores. With 0.0001, they take so many small
batches that requests for layer 0, whose network costs nothing, take a fifth more of the processor."""

_GRACE_ON_TERMINAL = 0.5
"""Seconds in which requests that run may end after Ctrl-C: whoever pressed it waits."""

_LOG = logging.getLogger("whiten.serving")


def serve(settings: Settings, bundles: Mapping[str, str], hang_ups: Sequence[int] = ()) -> None:
    """Serve bundles by their names until SIGTERM or SIGINT has been obeyed. `hang_ups` may grow until it is ready."""
    set_up_logs(usual_format() if settings.log == "off" else settings.log)
    check_paths(list(bundles), settings.root_path)
    with needing_package(settings.parser):
        import_module(settings.parser)
    tls = None if settings.tls is None else load_certificate(settings.tls)
    with ExitStack() as stack:
        listener, probes = stack.enter_context(open_socket(settings.listen, settings)), None
        if settings.metrics_listen is not None:
            probes = stack.enter_context(open_socket(settings.metrics_listen, settings))
        process = Process(settings, bundles, tls)
        with asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner:
            runner.run(process.run(listener, probes, hang_ups))


class Process:
    """Opens and proves bundles, serves them, and obeys the signals."""

    def __init__(self, settings: Settings, bundles: Mapping[str, str], tls: ssl.SSLContext | None) -> None:
        self.settings, self.bundles, self.tls = settings, bundles, tls
        self._stopping, self._terminal = False, is_terminal(sys.stderr)
        prometheus_client.disable_created_metrics()
        with ExitStack() as opening:
            names, encoders = names_of_bundles(bundles), []
            for bundle in names:
                encoders.append(open_encoder(bundle, settings))
                opening.callback(encoders[-1][0].close)
            self.scheduler = make_scheduler([encoder for encoder, _ in encoders], settings)
            opened = zip(names.values(), encoders, strict=True)
            models = {model.name: model for same, pair in opened for model in make_models(same, *pair, self.scheduler)}
            self.service = Service(Models(models[name] for name in bundles), settings)
            self.scheduler.on_batch = self.service.metrics.on_batch
            for model in self.service.models:
                if not self.service.normalizes(model, False):
                    _LOG.info(
                        f"{model.name}: vectors of /v1/embeddings are not of norm 1; for a store that compares by dot "
                        "product, set normalize = true, or let it compare by cosine"
                    )
            opening.pop_all()

    async def run(self, listener: socket.socket, probes: socket.socket | None, hang_ups: Sequence[int]) -> None:
        """Serve until a signal has been obeyed."""
        settings, loop = self.settings, asyncio.get_running_loop()
        self._hung_up = asyncio.Event()
        self.service.hosts = None if settings.api_keys else hosts_of(listener, settings.listen, settings)
        self._server = self._make_server(with_tracing(make_app(self.service)), self.tls)
        tasks = []
        if probes is not None:
            self.service.probe_hosts = hosts_of(probes, str(settings.metrics_listen), settings)
            prober = self._make_server(make_probes(self.service))
            listen(probes)
            tasks.append(loop.create_task(prober.serve([probes])))
            await asyncio.sleep(0)  # it takes the signals first, and gives them back last
        listen(listener)
        if hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        loop.call_soon(self._say_ready, listener, probes)  # when the server has taken the signals
        if hang_ups:
            loop.call_soon(self._hang_up)
        reloading = loop.create_task(self._reload_when_asked())
        try:
            await self._server.serve([listener])
        finally:
            reloading.cancel()
            if probes is not None:
                prober.should_exit = True
            await asyncio.gather(*tasks)
            await self.service.models.close(wait=False)
            await asyncio.to_thread(self.scheduler.close, wait=False)
        _LOG.info("stopped")

    def _make_server(self, app: Any, tls: ssl.SSLContext | None = None) -> uvicorn.Server:
        """Return a server of an application, whose signals this process handles."""
        config = uvicorn.Config(
            app,
            interface="asgi3",
            http=self.settings.parser,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=self.settings.keep_alive,
            timeout_graceful_shutdown=self.settings.grace,
        )
        config.load()
        config.ssl = tls
        server, loop = uvicorn.Server(config), asyncio.get_running_loop()
        server.handle_exit = lambda number, frame: loop.call_soon_threadsafe(self._terminate, number)
        return server

    def _say_ready(self, listener: socket.socket, probes: socket.socket | None) -> None:
        """Say that requests are answered, and set the interpreter up for them."""
        gc.collect()
        gc.freeze()  # what lives as long as the process: looking through it took 5 % of each request's time
        sys.setswitchinterval(_SWITCH)
        models, address = [describe(model) for model in self.service.models], show(listener.getsockname())
        values = {"address": address, "models": models, "keys": len(self.service.settings.api_keys)}
        url = page_url(self.settings, address)
        if url is not None:
            values["page"] = url
        if probes is not None:
            values["metrics"] = show(probes.getsockname())
        _LOG.info("ready", extra={"values": values})
        notify("READY=1", f"STATUS=serving on {address}")

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

    def _hang_up(self) -> None:
        """Reload; or stop, if the signal says that the terminal is gone."""
        if self._terminal and not is_terminal(sys.stderr):
            self._terminate(signal.SIGHUP)
        else:
            self._hung_up.set()

    async def _reload_when_asked(self) -> None:
        """Reload for each SIGHUP; those that come during a reload have one more when it ends."""
        while await self._hung_up.wait():
            self._hung_up.clear()
            if not self._stopping:
                await self._reload()

    async def _reload(self) -> None:
        """Take what was replaced on the disk, each when it is read and proven; what was there goes on otherwise."""
        notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        parts = [("keys", self._reload_keys), ("certificate", self._reload_certificate)]
        for bundle, names in names_of_bundles(self.bundles).items():
            parts.append((", ".join(names), partial(self._reload_bundle, bundle, names)))
        for name, reload in parts:
            try:
                await reload()
            except Exception as error:  # whatever is wrong with a file: no keys would let everybody in
                text = str(error) if isinstance(error, WhitenError) else f"{type(error).__name__}: {error}"
                _LOG.error(f"{name}: not reloaded, the old one goes on: {' '.join(text.split())}")
        notify("READY=1")

    async def _reload_keys(self) -> None:
        if self.settings.api_key_file is not None:
            keys = read_keys(self.settings.api_key_file, os.environ, _LOG.warning)
            self.service.take_keys(keys)
            _LOG.info(f"keys: reloaded, {len(keys)}")

    async def _reload_certificate(self) -> None:
        """Take the file for new connections; those that are there go on."""
        if self.settings.tls is not None and self.tls is not None:
            load_certificate(self.settings.tls, self.tls)
            _LOG.info("certificate: reloaded")

    async def _reload_bundle(self, bundle: str, names: Sequence[str]) -> None:
        old, outcome = self.service.models.named(names[0]), "unchanged"
        if await asyncio.to_thread(_newest, names[0], bundle) != old.digest:
            encoder, parity = await asyncio.to_thread(open_encoder, bundle, self.settings)
            before, outcome = old.encoder.space, "reloaded"
            for model in make_models(names, encoder, parity, self.scheduler):
                self.service.models.replace(model)
            if not is_in_space(encoder.manifest, before):
                _LOG.warning(
                    f"{names[0]}: the space of its vectors is no longer {before}, but {encoder.space}: embed the texts "
                    "of an index again, unless the new bundle is a refit with --align-to"
                )
        for name in names:
            _LOG.info(f"{name}: {outcome}", extra={"values": {"model": name}})


def _newest(name: str, bundle: str) -> str:
    """Return the hash of a bundle's manifest as it is now on the disk, or on the hub if that answers."""
    try:
        folder = locate_bundle(bundle, refresh=True)
    except WhitenError as error:
        folder = locate_bundle(bundle)
        _LOG.warning(f"{name}: the hub's cache answers: {error}")
    return bundle_hash(folder)


def notify(*lines: str) -> None:
    """Tell systemd what the process does, by the protocol of sd_notify(3); does nothing without NOTIFY_SOCKET."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith(("/", "@")):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect("\0" + address[1:] if address.startswith("@") else address)
            sender.sendall("\n".join(lines).encode())
