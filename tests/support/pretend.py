"""Two GPUs that are not there: tensors with a CUDA device's name whose values a CPU computes.

Owns the pretence: what torch says about CUDA, tensors that know the device they would be on, and what such a device
would refuse or get wrong. An operation over tensors of different devices is an error, as it is there; a copy to the
host that nobody waits for leaves nonsense until somebody does; every read that waits for the device is counted.
Streams, events and recordings do nothing. Speed, memory and kernels cannot be pretended.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # asks about CUDA when it is imported, so that must come before the pretence
from torch.utils._python_dispatch import TorchDispatchMode

aten: Any = torch.ops.aten
CPU = torch.device("cpu")
# torch lets these have indices, or a source, on the host
MIXED = {aten.copy_.default, aten.index.Tensor, aten.index_put_.default, aten.index_put.default}
MEMORY = 16 << 30


class Pretended(torch.Tensor):
    """A tensor on a device that is not there; `inner` holds its values on the CPU."""

    inner: torch.Tensor
    place: torch.device

    @staticmethod
    def __new__(cls, inner: torch.Tensor, place: torch.device) -> Pretended:
        with torch.inference_mode(False):  # views of ordinary tensors have to be ordinary ones
            made: Pretended = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
                device="meta",  # torch's own code would look for a driver
            )  # fmt: skip
        made.inner, made.place = inner, place
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.place

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Pretended({self.inner!r}, {self.device})"


class Pretence(TorchDispatchMode):
    """Takes what is made on a device, or brought there. It belongs to a thread."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Reads:
    """How often a value was waited for, and what is still on its way to the host."""

    def __init__(self) -> None:
        self.count = 0
        self.late: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.pinned: weakref.WeakSet[Any] = weakref.WeakSet()
        self._gate = threading.Lock()

    def send(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """Have `values` arrive in `target` when somebody waits; until then there is nonsense."""
        with self._gate:
            self.late.append((target, values.clone()))
            target.fill_(float("nan") if target.is_floating_point() else 1)

    def arrive(self, *_: Any, **__: Any) -> None:
        """Somebody waits."""
        with self._gate, torch.inference_mode():
            for target, values in self.late:
                target.copy_(values)
            self.late.clear()


READS = Reads()
LAST = threading.local()  # .place: the device of this thread's latest operation


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation, on the CPU, with what the devices would say to it."""
    given = list(_tensors((*args, *kwargs.values())))
    places = {one.place for one in given if isinstance(one, Pretended)}
    asked = next((one for one in (*args, kwargs.get("device")) if isinstance(one, torch.device)), None)
    if not places and (asked is None or asked.type == "cpu"):
        return _run_here(func, args, kwargs)
    if asked is not None and asked.type == "meta":  # torch's own code, which takes the device of what it was given
        asked = LAST.place
    if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        with Pretence():  # made of others, which are seen one by one
            return func.decompose(*args, **kwargs)
    if func in (aten._fused_sdp_choice.default, aten.record_stream.default):
        return 0  # plain products, which every device has; and no stream
    if func is aten._to_copy.default:
        return _moved(args[0], asked or given[0].device, kwargs)
    if func is aten.copy_.default:
        return _copied(*args, **kwargs)
    return _run_there(func, args, kwargs, asked or next(iter(places)))


def _run_there(func: Any, args: Any, kwargs: dict[str, Any], place: torch.device) -> Any:
    """An operation of a device, or one that makes something there."""
    given = list(_tensors((*args, *kwargs.values())))
    strange = func not in MIXED and any(one.ndim for one in given if not isinstance(one, Pretended))
    if strange or len({one.device for one in given if isinstance(one, Pretended)}) > 1:
        raise RuntimeError(f"{func}: tensors of different devices, {[str(one.device) for one in given]}")
    LAST.place = place
    if _waits(func, given):
        READS.count += 1
    known = {id(one.inner): one for one in given if isinstance(one, Pretended)}
    bare = {name: _mapped(value, _inner) for name, value in kwargs.items()}
    if "device" in kwargs:
        bare["device"] = CPU
    out = func(*(_mapped(value, _inner) for value in args), **bare)
    if place.type == "cpu":
        return out
    return _mapped(out, lambda one: known[id(one)] if id(one) in known else Pretended(one, place))


def _run_here(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation of the host's own."""
    if not kwargs.get("pin_memory"):
        return func(*args, **kwargs)
    out = func(*args, **kwargs | {"pin_memory": False})
    READS.pinned.add(out.untyped_storage())
    return out


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    return type(value)(_mapped(one, change) for one in value) if isinstance(value, list | tuple) else value


def _inner(x: torch.Tensor) -> torch.Tensor:
    return x.inner if isinstance(x, Pretended) else x


def _waits(func: Any, given: list[torch.Tensor]) -> bool:
    """Whether the host must know values, or how many there are, before it can go on."""
    if func in (aten.index.Tensor, aten.index_put_.default):
        return any(one.dtype == torch.bool for one in given[1:])
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags))


def _moved(x: torch.Tensor, place: torch.device, kwargs: dict[str, Any]) -> torch.Tensor:
    """`x` in another type or on another device."""
    rest = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking", "pin_memory")}
    out: torch.Tensor = aten._to_copy.default(_inner(x), **rest)
    if place.type == "cuda":
        return Pretended(out, place)
    if isinstance(x, Pretended):
        if kwargs.get("non_blocking"):
            READS.send(out, out)
        else:
            READS.count += 1
            READS.arrive()
    return out


def _copied(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`source` written into `target`, wherever both are."""
    to, values = _inner(target), _inner(source)
    if to is target and values is not source:
        if non_blocking:
            READS.send(to, values.to(to.dtype).expand_as(to))
            return target
        READS.count += 1
    to.copy_(values)
    return target


class _Quiet:
    """A stream, an event or a recording: everything it is asked to do is done already."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return READS.arrive if name in ("synchronize", "query") else lambda *_, **__: None


@contextmanager
def gpus(count: int = 2) -> Iterator[Reads]:
    """Within the block torch shows `count` CUDA devices, to every thread that begins in it."""
    run, tensor, generator = threading.Thread.run, torch.tensor, torch.Generator

    def pretending(thread: threading.Thread) -> None:
        with Pretence():
            run(thread)

    def made(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        out = tensor(*args, **kwargs)
        return out if device is None else out.to(device)

    said = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: count,
        "mem_get_info": lambda *_: (MEMORY // 2, MEMORY),
        "get_device_name": lambda *_: "a GPU that is not there",
        "get_device_capability": lambda *_: (7, 5),
        "set_device": lambda *_: None,
        "empty_cache": lambda: None,
        "synchronize": READS.arrive,
        "current_stream": _Quiet,
        "default_stream": _Quiet,
        "stream": lambda *_: nullcontext(),
        "Stream": _Quiet,
        "Event": _Quiet,
    }

    def is_pinned(x: torch.Tensor) -> bool:
        return x.untyped_storage() in READS.pinned

    READS.count = 0
    with (
        mock.patch.multiple(torch.cuda, **said),
        mock.patch.object(threading.Thread, "run", pretending),
        mock.patch.object(torch, "tensor", made),
        mock.patch.object(torch, "Generator", lambda *_: generator()),
        mock.patch.object(torch.Tensor, "is_pinned", is_pinned),
        mock.patch.object(torch.Tensor, "pin_memory", lambda x: x),
        Pretence(),
    ):
        yield READS
