# SPDX-License-Identifier: MIT
"""The walk over a state dict: a deep copy in which a hook copies each tensor and storage. One object
stays one object, also tensors; cycles are kept.

copy.deepcopy has no such hook, and torch.Tensor.__deepcopy__ would copy on the tensor's device.

Other code may look at the bytes of a copy: __setstate__, constructors, the append of a list's
subclass. While a copy is passed to such code, `seen` is true, and hooks then copy the bytes at once.
"""

from __future__ import annotations

import types
import weakref
from contextlib import contextmanager
from copyreg import dispatch_table
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

_ATOMIC = frozenset([
    type(None), int, float, bool, complex, bytes, str, types.CodeType, type, range,
    types.BuiltinFunctionType, types.FunctionType, weakref.ref, property, type(Ellipsis),
    type(NotImplemented), torch.dtype, torch.device, torch.layout, torch.memory_format,
])
_MISSING = object()
# Methods of the interpreter's own containers: they look at no tensor.
_IN_C = (types.MethodDescriptorType, types.WrapperDescriptorType)

TensorHook = Callable[[torch.Tensor, "Copier"], Any]
StorageHook = Callable[[Any, "Copier"], Any]


class Copier:
    """One walk. on_tensor(tensor, copier) and on_storage(storage, copier) give the copies."""

    def __init__(self, on_tensor: TensorHook, on_storage: StorageHook) -> None:
        self.on_tensor = on_tensor
        self.on_storage = on_storage
        # As in copy.deepcopy, since it is passed to __deepcopy__ of other classes.
        self.memo: Dict[int, Any] = {}
        self._seen = 0

    @property
    def seen(self) -> bool:
        """Is the copy passed to code that may look at its bytes?"""
        return self._seen > 0

    @contextmanager
    def for_eyes(self, it: bool = True) -> Iterator[None]:
        """Inside, `seen` is true; no effect if `it` is false."""
        self._seen += it
        try:
            yield
        finally:
            self._seen -= it

    def keep(self, x: Any) -> None:
        """x lives as long as the memo, which identifies objects by their address."""
        self.memo.setdefault(id(self.memo), []).append(x)

    def __call__(self, x: Any) -> Any:
        cls = type(x)
        if cls in _ATOMIC:
            return x
        y = self.memo.get(id(x), _MISSING)
        if y is not _MISSING:
            return y
        y = self._copy(x, cls)
        if y is not x:
            self.memo[id(x)] = y
            self.keep(x)
        return y

    def _copy(self, x: Any, cls: type) -> Any:
        if isinstance(x, torch.Tensor):
            return self.on_tensor(x, self)
        if torch.is_storage(x):
            return self.on_storage(x, self)
        if cls is dict:
            return self._dict(x)
        if cls is list:
            return self._list(x)
        if cls is tuple:
            return self._tuple(x)
        if cls is types.MethodType:
            return cls(x.__func__, self(x.__self__))
        if issubclass(cls, type):
            return x
        own = getattr(x, "__deepcopy__", None)
        if own is not None:
            return own(self.memo)
        return self.rebuild(x, self._reduce(x, cls))

    def _dict(self, x: Dict[Any, Any]) -> Dict[Any, Any]:
        y: Dict[Any, Any] = {}
        self.memo[id(x)] = y
        for key, value in x.items():
            y[self(key)] = self(value)
        return y

    def _list(self, x: List[Any]) -> List[Any]:
        y: List[Any] = []
        self.memo[id(x)] = y
        for value in x:
            y.append(self(value))
        return y

    def _tuple(self, x: Tuple[Any, ...]) -> Any:
        y = [self(value) for value in x]
        # A member that refers back to x has created its copy by now.
        known = self.memo.get(id(x), _MISSING)
        if known is not _MISSING:
            return known
        return x if all(a is b for a, b in zip(x, y)) else tuple(y)

    @staticmethod
    def _reduce(x: Any, cls: type) -> Any:
        reductor = dispatch_table.get(cls)
        if reductor is not None:
            return reductor(x)
        return x.__reduce_ex__(4)

    def rebuild(self, x: Any, reduced: Any) -> Any:
        """What pickle does with the result of __reduce_ex__, each part copied."""
        if isinstance(reduced, str):
            return x
        parts: List[Any] = list(reduced) + [None] * (6 - len(reduced))
        func, args, state, items, pairs = parts[:5]
        setter: Optional[Callable[[Any, Any], None]] = parts[5]
        with self.for_eyes():
            y = func(*[self(a) for a in args])
        self.memo[id(x)] = y
        if state is not None:
            with self.for_eyes(setter is not None or hasattr(y, "__setstate__")):
                state = self(state)
            self._set_state(y, state, setter)
        if items is not None:
            with self.for_eyes(not isinstance(type(y).append, _IN_C)):
                for item in items:
                    y.append(self(item))
        if pairs is not None:
            with self.for_eyes(not isinstance(type(y).__setitem__, _IN_C)):
                for key, value in pairs:
                    y[self(key)] = self(value)
        return y

    @staticmethod
    def _set_state(y: Any, state: Any, setter: Optional[Callable[[Any, Any], None]]) -> None:
        if setter is not None:
            setter(y, state)
            return
        if hasattr(y, "__setstate__"):
            y.__setstate__(state)
            return
        slots = None
        if isinstance(state, tuple) and len(state) == 2:
            state, slots = state
        if state is not None:
            y.__dict__.update(state)
        for key, value in (slots or {}).items():
            # A frozen dataclass with slots refuses setattr.
            object.__setattr__(y, key, value)
