"""Launching `sglang.Engine` inside a worker.

SGLang is a guest here: its scheduler and detokenizer are processes of their own, its tokenizer
manager runs on the worker's event loop. This module keeps it from taking over what belongs to the
host: the event loop policy, the log handlers, SIGTERM, and other child processes.

The engine is constructed in a thread of its own, so that the loop goes on turning while the model
loads. That thread must live as long as the engine: the child processes, or the one that they are
forked from, ask the kernel to be killed when the thread that started them ends.

Source: `sglang.srt.entrypoints.engine` and `sglang.srt.managers.tokenizer_manager`, version 0.5.23.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import multiprocessing
import os
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from workers.engines.sglang_health import Failure
from workers.engines.sglang_metrics import share_metrics
from workers.engines.sglang_scheduler import run_scheduler_process

log = structlog.get_logger()

_CPU_CACHE_TOKENS: Final = 65_536
"""Upper bound of the KV cache on a CPU: over a gigabyte for a model of 270 million parameters."""

_EXIT_GRACE_S: Final = 10.0

QUOTING: Final = (
    "constrained",
    "function_call",
    "managers.async_dynamic_batch_tokenizer",
    "managers.schedule_batch",
    "managers.scheduler_components.batch_result_processor",
    "multimodal",
    "parser",
)
"""Modules of SGLang whose log lines have something of a request or of its answer in them."""


class Launched(msgspec.Struct, frozen=True):
    """A running engine, the thread that must outlive it, and what tells that it has failed."""

    engine: Any
    thread: ThreadPoolExecutor
    failure: Failure


async def launch(
    model: str, *, slots: int, server_args: Mapping[str, Any], last_words_s: float
) -> Launched:
    """Start SGLang. Must run in the loop that will serve, best in the main thread.

    Args:
        model: Directory or hub id.
        slots: Requests run at once.
        server_args: Fields of SGLang's `ServerArgs`.
        last_words_s: How long the process may go on after SGLang has failed.

    Raises:
        RuntimeError: The model could not be loaded; SGLang has written why to stderr.
    """
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sglang-launch")
    loop = asyncio.get_running_loop()
    guarded = threading.current_thread() is threading.main_thread()
    if guarded:
        # A child that fails to start sends SIGQUIT, which would kill the worker without a word.
        # Unheard, it turns into an exception of the constructor. After the start it is a failure.
        loop.add_signal_handler(signal.SIGQUIT, log.error, "engine.launch_failed")
    failure = Failure(_end_everything, last_words_s=last_words_s)
    try:
        engine = await loop.run_in_executor(
            thread, _construct, model, slots, dict(server_args), failure
        )
        engine.tokenizer_manager.auto_create_handle_loop()
    except BaseException:
        if guarded:
            loop.remove_signal_handler(signal.SIGQUIT)
        thread.shutdown(wait=False)
        raise
    return Launched(engine, thread, failure)


async def shut_down(launched: Launched) -> None:
    """Stop the engine's own processes; SGLang's `shutdown` would kill every child of the host."""
    engine, manager = launched.engine, launched.engine.tokenizer_manager
    atexit.unregister(engine.shutdown)
    for task in manager.asyncio_tasks:
        task.cancel()
    loop = asyncio.get_running_loop()
    grace_s = 0.0 if launched.failure.told else _EXIT_GRACE_S
    await loop.run_in_executor(launched.thread, _end_processes, engine, grace_s)
    launched.failure.close()
    if threading.current_thread() is threading.main_thread():
        loop.remove_signal_handler(signal.SIGQUIT)  # last: a child may still send one
    manager.recv_from_detokenizer.close(linger=0)
    manager.send_to_scheduler.close(linger=0)
    if engine.send_to_rpc is not None:
        engine.send_to_rpc.close(linger=0)
    launched.thread.shutdown(wait=False)


def _construct(model: str, slots: int, given: dict[str, Any], failure: Failure) -> Any:
    """Import SGLang and build the engine; blocks until the model is loaded."""
    import torch

    _prepare_environment(given.get("log_level", "error"))
    forks = not torch.cuda.is_available()
    if forks:
        multiprocessing.set_forkserver_preload(["workers.engines.sglang_preload"])
        forkserver.ensure_running()
    policy = asyncio.get_event_loop_policy()
    with _without_collection():
        from sglang.srt.entrypoints.engine import Engine, init_tokenizer_manager
        from sglang.srt.managers.detokenizer_manager import run_detokenizer_process
        from sglang.srt.managers.tokenizer_manager import TokenizerManager
    asyncio.set_event_loop_policy(policy)  # importing SGLang replaces it

    class HostedTokenizerManager(TokenizerManager):  # type: ignore[misc]
        """Leaves SIGTERM to the worker, which drains in its own way."""

        event_loop: asyncio.AbstractEventLoop | None

        def _coalesce_streaming_chunks(
            self, out_list: list[dict[str, Any]], rid: str, *args: Any, **kwargs: Any
        ) -> dict[str, Any]:
            # What is joined when its reader is late could not be counted apart: which of the
            # tokens are reasoning, which came after a stop string.
            return {**out_list[-1], "pieces": out_list}

        def auto_create_handle_loop(self) -> None:
            if self.event_loop is not None:
                return
            # SGLang's own version has the loop's signal handlers and the task that exits the
            # process after SIGTERM; and when a child or its reader fails, it kills the process
            # before that could tell anybody.
            loop = self.event_loop = asyncio.get_running_loop()
            reading = loop.create_task(self.handle_loop())
            reading.add_done_callback(read)
            self.asyncio_tasks.add(reading)
            if threading.current_thread() is threading.main_thread():
                loop.add_signal_handler(signal.SIGQUIT, failure.tell, "a process of it has failed")

    def read(reading: asyncio.Task[None]) -> None:
        if not reading.cancelled():
            failure.tell(f"its outputs cannot be read: {type(reading.exception()).__name__}")

    def hosted(server_args: Any, port_args: Any) -> Any:
        return init_tokenizer_manager(server_args, port_args, HostedTokenizerManager)

    class HostedEngine(Engine):  # type: ignore[misc]
        init_tokenizer_manager_func = staticmethod(hosted)
        run_scheduler_process_func = staticmethod(_Here(run_scheduler_process))
        run_detokenizer_process_func = staticmethod(_Here(run_detokenizer_process))

        @classmethod
        def _launch_scheduler_processes(cls, *args: Any, **kwargs: Any) -> Any:
            if forks:  # SGLang has just chosen another way
                multiprocessing.set_start_method("forkserver", force=True)
            return super()._launch_scheduler_processes(*args, **kwargs)

    engine = HostedEngine(model_path=model, **{**_defaults(model, slots, given), **given})
    engine.loop.close()  # made for this thread; requests run on the worker's loop
    return engine


@contextmanager
def _without_collection() -> Iterator[None]:
    """A fifth of an import of this size would be spent on looking for garbage that it never has."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Here:
    """A function for a child process, and the environment as it is when that is started.

    A forked one has the environment of before SGLang was imported, without what SGLang has set.
    """

    def __init__(self, run: Callable[..., object]) -> None:
        self._run = run

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        share_metrics()
        self._run(*args, **kwargs)

    def __getstate__(self) -> tuple[Callable[..., object], dict[str, str]]:
        return self._run, dict(os.environ)  # noqa: TID251 - a child needs the whole of it

    def __setstate__(self, state: tuple[Callable[..., object], dict[str, str]]) -> None:
        self._run, environment = state
        known = os.environ  # noqa: TID251
        # Only what is new: a process that replaced all could not change its title any more.
        known.update({name: v for name, v in environment.items() if known.get(name) != v})


def _end_everything() -> None:
    """End the worker and all below it, whatever state they are in."""
    from sglang.srt.utils import kill_process_tree

    kill_process_tree(os.getpid())


def _end_processes(engine: Any, grace_s: float) -> None:
    import psutil
    from sglang.srt.managers.io_struct import ShutdownReq
    from sglang.srt.utils import kill_process_tree

    manager = engine.tokenizer_manager
    if manager._subprocess_watchdog is not None:
        manager._subprocess_watchdog.stop()
    if grace_s:  # else nobody may be there to take it, and sending would wait for ever
        # A scheduler that ends by itself gives its GPU memory back in order.
        manager._dispatch_to_scheduler(ShutdownReq())
    processes = []
    for pid in engine.get_all_child_pids():
        try:
            processes.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    schedulers, detokenizers = processes[:-1], processes[-1:]
    psutil.wait_procs(schedulers, timeout=grace_s)
    for process in [*schedulers, *detokenizers]:
        if process.is_running():
            kill_process_tree(process.pid)
    multiprocessing.active_children()  # reaps those that have ended


def _prepare_environment(log_level: str) -> None:
    """Variables that SGLang reads at import, here and in its child processes."""
    import torch

    environment = os.environ  # noqa: TID251 - SGLang takes these no other way
    if not torch.cuda.is_available():
        environment.setdefault("SGLANG_USE_CPU_ENGINE", "1")
        # Threads that spin while they wait make a busy machine several times slower.
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        # Compiling needs a C++ compiler and 20 s of the first request; no token came any sooner.
        environment.setdefault("TORCHDYNAMO_DISABLE", "1")
    # While a grammar compiles, every step of all other requests waits this long for it.
    environment.setdefault("SGLANG_GRAMMAR_POLL_INTERVAL", "0.001")
    # What it warns of on import (kernels that this machine lacks) is nothing an operator can mend.
    environment.setdefault("PYTHONWARNINGS", "ignore::UserWarning")
    warnings.filterwarnings("ignore", category=UserWarning, module=r"sglang\.")
    # SGLang would replace the host's log handlers. Also, some of what it logs quotes the caller or
    # the model: grammars that fail to compile, tokens that a grammar refuses, calls and images that
    # cannot be read.
    if "SGLANG_LOGGING_CONFIG_PATH" not in environment:
        level = log_level.upper()
        quiet: dict[str, Any] = {f"sglang.srt.{name}": {"level": "CRITICAL"} for name in QUOTING}
        levels = {"sglang": {"level": level}, **quiet}
        with tempfile.NamedTemporaryFile(
            prefix="headrace-sglang-logging-", suffix=".json", delete=False
        ) as file:
            file.write(msgspec.json.encode({"version": 1, "incremental": True, "loggers": levels}))
        environment["SGLANG_LOGGING_CONFIG_PATH"] = file.name
        atexit.register(Path(file.name).unlink, missing_ok=True)


def _defaults(model: str, slots: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Server arguments that differ from SGLang's defaults; `given` ones win."""
    import torch

    defaults: dict[str, Any] = {
        "incremental_streaming_output": True,  # increments are what the worker wants
        "sleep_on_idle": True,  # else an idle scheduler keeps a core busy
        "max_running_requests": slots,
        "log_level": "error",
        # Lets a constraint wait for the end of reasoning, if the template shows that there is any.
        "reasoning_parser": "auto",
        # White space without end is valid JSON, and small models find that.
        "constrained_json_disable_any_whitespace": True,
    }
    defaults |= _ranks(given)
    if torch.cuda.is_available():
        return defaults
    return {**defaults, **_cpu_defaults(model, slots, given)}


def _ranks(given: Mapping[str, Any]) -> dict[str, Any]:
    """Prompts of live requests are read before those of batch work, and keep their memory longer.

    A running request is not stopped for another one, unless the operator asks for ranks.
    """
    if given.get("schedule_policy", "fcfs") not in ("fcfs", "lof"):
        return {}  # there are no ranks with these
    if not given.get("enable_priority_scheduling", True):
        return {}
    return {
        "enable_priority_scheduling": True,
        "disable_priority_preemption": "enable_priority_scheduling" not in given,
        "default_priority_value": 0,
        "retraction_policy": "priority",
    }


def _cpu_defaults(model: str, slots: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """What SGLang needs on a CPU without its own CPU kernels."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(
        model, trust_remote_code=bool(given.get("trust_remote_code"))
    ).get_text_config()
    window: int = given.get("context_length") or config.max_position_embeddings
    return {
        "device": "cpu",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        # `auto` would choose half precision, which CPUs are slow at.
        "dtype": "float32" if "float32" in str(config.dtype) else "bfloat16",
        # SGLang would size its cache by free memory and leave none.
        "max_total_tokens": max(window, min(slots * window, _CPU_CACHE_TOKENS)),
    }
